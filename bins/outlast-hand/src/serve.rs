//! `outlast-hand serve`.

use crate::args::{self, Failure, home};
use crate::help;
use lexopt::{Arg, Parser};
use outlast_core::id::SandboxGeneration;
use outlast_hand::home::HomeError;
use outlast_runner::serve::{Ready, ServeError, serve};
use outlast_runner::settings::{Dial, INHERITED, Listen, Settings, TlsFiles};
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

pub(crate) fn run(args: Vec<OsString>) -> Result<(), Failure> {
    let Some(settings) = settings(args)? else { return help::of(&[help::SERVE]) };
    match serve(settings, announce) {
        Ok(()) => Ok(()),
        Err(error @ ServeError::Served(_)) => Err(Failure::conflict(error.to_string())),
        Err(error @ (ServeError::Argument(_) | ServeError::Home(HomeError::BadSandbox { .. }))) => {
            Err(Failure::usage(error.to_string()))
        }
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

/// What the words ask for; `None` where it is help.
fn settings(args: Vec<OsString>) -> Result<Option<Settings>, Failure> {
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
            Arg::Long("home") => named_home = Some(args::path(&mut parser, "--home")?),
            Arg::Long("listen") => listen.push(args::text(&mut parser, "--listen")?),
            Arg::Long("dial") => dial.push(args::text(&mut parser, "--dial")?),
            Arg::Long("sandbox") => settings.sandbox = Some(args::text(&mut parser, "--sandbox")?),
            Arg::Long("sandbox-generation") => {
                let number = args::number(&mut parser, "--sandbox-generation", "a number")?;
                settings.sandbox_generation = Some(SandboxGeneration(number));
            }
            Arg::Long("token-file") => settings.token_file = Some(args::path(&mut parser, "--token-file")?),
            Arg::Long("tls-cert") => cert = Some(args::path(&mut parser, "--tls-cert")?),
            Arg::Long("tls-key") => key = Some(args::path(&mut parser, "--tls-key")?),
            Arg::Long("client-ca") => client_ca = Some(args::path(&mut parser, "--client-ca")?),
            Arg::Long("client-pin") => client_pins.push(args::text(&mut parser, "--client-pin")?),
            Arg::Long("dial-ca") => dial_ca = Some(args::path(&mut parser, "--dial-ca")?),
            Arg::Long("dial-pin") => dial_pins.push(args::text(&mut parser, "--dial-pin")?),
            Arg::Long("dial-token") => dial_token = Some(args::path(&mut parser, "--dial-token")?),
            Arg::Long("allow-uid") => {
                settings.allow_uids.push(args::number(&mut parser, "--allow-uid", "the number of a user")?);
            }
            Arg::Long("inherit") => inherit.get_or_insert_default().push(parser.value()?),
            Arg::Long("idle-exit") => {
                let seconds = args::number(&mut parser, "--idle-exit", "a number of seconds")?;
                settings.idle_exit = Some(Duration::from_secs(seconds));
            }
            Arg::Long("help") | Arg::Short('h') => return Ok(None),
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
    Ok(Some(settings))
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
