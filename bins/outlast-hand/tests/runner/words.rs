//! The command line: what it refuses, how it says so, and that nothing was done then.

use crate::support::PROGRAM;
use std::os::unix::ffi::OsStringExt;
use std::process::{Command, Output, Stdio};

const PIN: &str = "sha256:0000000000000000000000000000000000000000000000000000000000000000";

fn said(words: &[&str]) -> Output {
    Command::new(PROGRAM).args(words).env_clear().stdin(Stdio::null()).output().unwrap()
}

/// A value that cannot be is a bad argument, told with the option it was given to; no home is made for it.
#[test]
fn bad_values_are_told_with_their_option() {
    let folder = std::env::temp_dir().join(format!("outlast-words-{}", std::process::id()));
    let home = folder.display().to_string();
    let rows: &[(&[&str], &[&str])] = &[
        (&["serve", "--dial", "foo"], &["--dial foo", "HOST:PORT"]),
        (&["serve", "--dial", "foo:0", "--dial-pin", PIN], &["--dial foo:0", "the port", "HOST:PORT"]),
        (&["serve", "--dial", "foo:1"], &["--dial foo:1", "--dial-ca or --dial-pin"]),
        (&["serve", "--dial", "foo:1", "--dial-pin", "x"], &["--dial-pin x", "64 hexadecimal digits"]),
        (&["serve", "--listen", "tls:127.0.0.1:0"], &["--listen", "--token-file"]),
        (&["serve", "--listen", "tls:127.0.0.1:0", "--client-pin", "x"], &["--client-pin x", "hexadecimal"]),
        (&["serve", "--listen", "foo"], &["--listen foo", "tls:IP:PORT"]),
        (&["serve", "--sandbox", "a/b"], &["a/b", "cannot name a sandbox"]),
        (&["serve", "--sandbox-generation", "x"], &["--sandbox-generation x", "a number"]),
        (&["serve", "--idle-exit", "x"], &["--idle-exit x", "a number of seconds"]),
        (&["serve", "--idle-exit"], &["--idle-exit"]),
        (&["serve", "--allow-uid", "-1"], &["--allow-uid -1", "the number of a user"]),
        (&["serve", "--token-file="], &["--token-file names nothing"]),
        (&["serve", "--nope"], &["--nope"]),
        (&["serve", "nope"], &["nope"]),
        (&["connect", "--no-start=x"], &["--no-start"]),
        (&["token"], &["token new --file FILE"]),
        (&["token", "old"], &["token new --file FILE"]),
        (&["token", "new"], &["--file FILE is missing"]),
        (&["token", "new", "--expires", "soon"], &["--expires soon", "a number of seconds"]),
        (&["nope"], &["nope", "serve, connect and token"]),
        (&[], &["serve, connect or token"]),
    ];
    for (words, told) in rows {
        let mut command = Command::new(PROGRAM);
        command.args(*words).env_clear().env("OUTLAST_HOME", &home).stdin(Stdio::null());
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {text}");
        assert!(told.iter().all(|part| text.contains(part)), "{words:?}: {text}");
        assert_eq!(output.stdout, b"", "{words:?}");
        assert!(!folder.exists(), "{words:?} made a home");
    }
    let no_text = std::ffi::OsString::from_vec(b"\xff".to_vec());
    let output = Command::new(PROGRAM).args(["token", "new", "--scope"]).arg(no_text).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("--scope") && text.contains("UTF-8"), "{text}");
}

#[test]
fn a_file_that_is_not_there_leaves_no_home_behind() {
    let folder = std::env::temp_dir().join(format!("outlast-words-file-{}", std::process::id()));
    let mut command = Command::new(PROGRAM);
    command.args(["serve", "--token-file", "/nonexistent/tokens", "--home"]).arg(&folder).env_clear();
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nonexistent/tokens"), "{output:?}");
    assert!(!folder.exists());
}

/// Each verb tells how it is used, wherever among its words it is asked; the whole tells all of it.
#[test]
fn each_verb_has_help() {
    let whole = said(&["--help"]);
    assert!(whole.status.success());
    let whole = String::from_utf8(whole.stdout).unwrap();
    for (verb, words, options) in [
        ("serve", &["serve", "--help"][..], &["--dial HOST:PORT", "--idle-exit SECONDS"][..]),
        ("serve", &["serve", "--idle-exit", "3", "-h"], &["--token-file FILE"]),
        ("connect", &["connect", "--help"], &["--no-start"]),
        ("token", &["token", "--help"], &["--scope PREFIX", "--file FILE"]),
        ("token", &["token", "new", "-h"], &["--expires SECONDS"]),
    ] {
        let output = said(words);
        assert_eq!((output.status.code(), &output.stderr[..]), (Some(0), &b""[..]), "{words:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.starts_with(&format!("outlast-hand {verb}")), "{words:?}: {text}");
        assert!(
            options.iter().all(|option| text.contains(option) && whole.contains(option)),
            "{words:?}: {text}"
        );
        for other in ["serve", "connect", "token"].iter().filter(|other| **other != verb) {
            assert!(!text.contains(&format!("\noutlast-hand {other}")), "{words:?}: {text}");
        }
        assert!(text.contains("Exit codes:"), "{words:?}: {text}");
    }
}
