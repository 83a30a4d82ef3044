//! `outlast-hand serve`.

use crate::args::{Failure, home};
use lexopt::{Arg, Parser, ValueExt};
use outlast_core::id::SandboxGeneration;
use outlast_runner::serve::{Ready, ServeError, serve};
use outlast_runner::settings::{Dial, INHERITED, Listen, Settings, TlsFiles};
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

pub(crate) fn run(args: Vec<OsString>) -> Result<(), Failure> {
    let settings = settings(args)?;
    match serve(settings, announce) {
        Ok(()) => Ok(()),
        Err(error @ ServeError::Served(_)) => Err(Failure::conflict(error.to_string())),
        Err(error) => Err(Failure::of(&error)),
    }
}

/// One line for each address, on standard output: what started it may wait for them.
fn announce(ready: &Ready) {
    let mut out = std::io::stdout().lock();
    for address in &ready.addresses {
        let _ = writeln!(out, "listening on {address}");
    }
    if let Some(fingerprint) = &ready.fingerprint {
        let _ = writeln!(out, "certificate {fingerprint}");
    }
    let _ = out.flush();
}

fn settings(args: Vec<OsString>) -> Result<Settings, Failure> {
    let mut parser = Parser::from_args(args);
    let mut named_home = None;
    let (mut listen, mut dial) = (Vec::new(), Vec::new());
    let (mut cert, mut key, mut client_ca) = (None::<PathBuf>, None::<PathBuf>, None::<PathBuf>);
    let (mut client_pins, mut dial_pins) = (Vec::new(), Vec::new());
    let (mut dial_ca, mut dial_token) = (None::<PathBuf>, None::<PathBuf>);
    let mut inherit: Option<Vec<OsString>> = None;
    let mut settings = Settings {
        home: PathBuf::new(),
        sandbox: None,
        sandbox_generation: None,
        listen: Vec::new(),
        dial: Vec::new(),
        allow_uids: Vec::new(),
        token_file: None,
        environment: Default::default(),
        keeper: None,
        idle_exit: None,
    };
    while let Some(arg) = parser.next()? {
        match arg {
            Arg::Long("home") => named_home = Some(parser.value()?),
            Arg::Long("listen") => listen.push(parser.value()?.string()?),
            Arg::Long("dial") => dial.push(parser.value()?.string()?),
            Arg::Long("sandbox") => settings.sandbox = Some(parser.value()?.string()?),
            Arg::Long("sandbox-generation") => {
                settings.sandbox_generation = Some(SandboxGeneration(parser.value()?.parse()?));
            }
            Arg::Long("token-file") => settings.token_file = Some(parser.value()?.into()),
            Arg::Long("tls-cert") => cert = Some(parser.value()?.into()),
            Arg::Long("tls-key") => key = Some(parser.value()?.into()),
            Arg::Long("client-ca") => client_ca = Some(parser.value()?.into()),
            Arg::Long("client-pin") => client_pins.push(parser.value()?.string()?),
            Arg::Long("dial-ca") => dial_ca = Some(parser.value()?.into()),
            Arg::Long("dial-pin") => dial_pins.push(parser.value()?.string()?),
            Arg::Long("dial-token") => dial_token = Some(parser.value()?.into()),
            Arg::Long("allow-uid") => settings.allow_uids.push(parser.value()?.parse()?),
            Arg::Long("inherit") => inherit.get_or_insert_default().push(parser.value()?),
            Arg::Long("idle-exit") => {
                settings.idle_exit = Some(Duration::from_secs(parser.value()?.parse()?));
            }
            other => return Err(other.unexpected().into()),
        }
    }
    settings.home = home(named_home)?;
    let identity = match (cert, key) {
        (Some(cert), Some(key)) => Some((cert, key)),
        (None, None) => None,
        _ => return Err(Failure::usage("--tls-cert and --tls-key go together")),
    };
    let tls = TlsFiles { identity: identity.clone(), authorities: client_ca, pins: client_pins };
    settings.listen = if listen.is_empty() && dial.is_empty() {
        vec![Listen::Unix(None)]
    } else {
        listen.iter().map(|text| place(text, &tls)).collect::<Result<_, _>>()?
    };
    let tls = TlsFiles { identity, authorities: dial_ca, pins: dial_pins };
    settings.dial =
        dial.into_iter().map(|to| Dial { to, tls: tls.clone(), token: dial_token.clone() }).collect();
    let inherited = inherit.unwrap_or_else(|| INHERITED.iter().map(OsString::from).collect());
    settings.environment =
        inherited.into_iter().filter_map(|name| Some((name.clone(), std::env::var_os(name)?))).collect();
    Ok(settings)
}

fn place(text: &str, tls: &TlsFiles) -> Result<Listen, Failure> {
    let wrong = || {
        Failure::usage(format!(
            "--listen {text}: say unix, unix:PATH or tls:IP:PORT (plain TCP is not offered)"
        ))
    };
    match text.split_once(':') {
        None if text == "unix" => Ok(Listen::Unix(None)),
        Some(("unix", path)) if !path.is_empty() => Ok(Listen::Unix(Some(path.into()))),
        Some(("tls", at)) => Ok(Listen::Tls { at: at.parse().map_err(|_| wrong())?, tls: tls.clone() }),
        _ => Err(wrong()),
    }
}
