//! Capture against the real shells: the same output, the same status, the right stages.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a test says so by failing")]

use std::path::Path;
use std::process::{Command, Stdio};

use outlast_shell::{
    CapturePlan, Dialect, LastPipeline, NotCaptured, ScriptCall, StageEvidence, WhyNot, analyze_argv,
    analyze_script, bash_env_text, instrument_dash, parse_stages, plan_capture, plan_capture_argv, reconcile,
};

/// What one run showed.
#[derive(Debug, PartialEq, Eq)]
struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

fn run(dir: &Path, shell: &str, args: &[&str], environment: &[(&str, &Path)]) -> Ran {
    let mut command = Command::new(shell);
    command.args(args).current_dir(dir).stdin(Stdio::null()).env_remove("BASH_ENV").env_remove("ENV");
    // These tests may themselves run inside a job.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"OUTLAST_"))
    {
        command.env_remove(name);
    }
    for (name, value) in environment {
        command.env(name, value);
    }
    let output = command.output().unwrap();
    Ran {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// The stages and the effective status, or why they were not captured.
fn outcome(
    script: &str,
    dialect: Dialect,
    record: &Path,
    code: Option<i32>,
) -> Result<(Vec<i32>, i32), NotCaptured> {
    let last = analyze_script(script.as_bytes(), dialect).last_pipeline;
    let bytes = std::fs::read(record).unwrap_or_default();
    match reconcile(&last, parse_stages(&bytes), code.unwrap_or(-1)) {
        StageEvidence::NotCaptured(why) => Err(why),
        StageEvidence::Captured(stages) => {
            let shell = u8::try_from(code.unwrap_or(0)).unwrap();
            let effective = outlast_core::pipeline::effective(shell, &stages).unwrap();
            Ok((stages.iter().map(|stage| i32::from(stage.status)).collect(), i32::from(effective.status)))
        }
    }
}

/// Runs with and without the BASH_ENV file; nothing but the record may differ.
fn bash(script: &str) -> Result<(Vec<i32>, i32), NotCaptured> {
    let dir = tempfile::tempdir().unwrap();
    let (env, record) = (dir.path().join("env"), dir.path().join("record"));
    std::fs::write(&env, bash_env_text(None).unwrap()).unwrap();
    let plain = run(dir.path(), "bash", &["-c", script], &[]);
    let with = run(dir.path(), "bash", &["-c", script], &[("BASH_ENV", &env), ("OUTLAST_STAGES", &record)]);
    assert_eq!(with, plain, "{script:?}: the instrument shows");
    let from_c = outcome(script, Dialect::Bash, &record, with.code);
    // The same from a file, whose name and lines must stay what they are.
    std::fs::remove_file(&record).ok();
    let file = dir.path().join("script.sh");
    std::fs::write(&file, script).unwrap();
    let with = run(dir.path(), "bash", &["script.sh"], &[("BASH_ENV", &env), ("OUTLAST_STAGES", &record)]);
    let plain = run(dir.path(), "bash", &["script.sh"], &[]);
    assert_eq!(with, plain, "{script:?}: the instrument shows in a file");
    assert_eq!(outcome(script, Dialect::Bash, &record, with.code), from_c, "{script:?}");
    from_c
}

#[test]
fn bash_records_every_stage() {
    let rows: &[(&str, &[i32], i32)] = &[
        ("false | true", &[1, 0], 1),
        ("true | false", &[0, 1], 1),
        ("true | true", &[0, 0], 0),
        ("(exit 101) | tail -n 20", &[101, 0], 101),
        ("yes | head -1", &[141, 0], 0),
        ("echo a > f; grep zzz f | wc -l", &[1, 0], 0),
        ("(exit 2) | (exit 3) | (exit 0)", &[2, 3, 0], 3),
        ("cd . && false | true", &[1, 0], 1),
        ("cd . && cd . && false | true", &[1, 0], 1),
        ("cd /nonexistent 2>/dev/null || false | true", &[1, 0], 1),
        ("{ false | true; }", &[1, 0], 1),
        ("{ false | true; } 2>&1", &[1, 0], 1),
        ("! false | true; false | true", &[1, 0], 1),
        ("set -o pipefail; false | true", &[1, 0], 1),
        ("set -o pipefail; yes | head -1", &[141, 0], 141),
        ("set -e; false | true", &[1, 0], 1),
        ("set -eo pipefail\nfalse | true\n", &[1, 0], 1),
        ("set -x; true | true", &[0, 0], 0),
        ("set -u; false | true", &[1, 0], 1),
        ("false |\n  true # done\n# more\n", &[1, 0], 1),
        ("cat <<E | grep -c b\na\nb\nE\n", &[0, 0], 0),
        ("echo $LINENO $0\necho $LINENO | cat", &[0, 0], 0),
        ("(exit 7)\necho $? | cat", &[0, 0], 0),
        ("env | grep -c -e OUTLAST -e BASH_ENV | cat", &[0, 1, 0], 0),
        ("bash -c 'true | true | true'; false | true", &[1, 0], 1),
        ("shopt -s lastpipe; false | true", &[1, 0], 1),
        ("kill -9 $BASHPID | true", &[137, 0], 137),
        ("false |& true", &[1, 0], 1),
        ("f() { return 4; }; f | cat", &[4, 0], 4),
        ("(exit 5) | while read x; do :; done", &[5, 0], 5),
        ("echo a | read x", &[0, 0], 0),
        ("ls | head -1 >/dev/null; (exit 3) | cat", &[3, 0], 3),
        ("exec 2>/dev/null; false | true", &[1, 0], 1),
        ("exec >out; echo x | (cat >f; exit 6)", &[0, 6], 6),
        ("set -C; set -f; IFS=0; (exit 100) | true", &[100, 0], 100),
    ];
    for (script, stages, effective) in rows {
        assert_eq!(bash(script), Ok((stages.to_vec(), *effective)), "{script:?}");
    }
}

#[test]
fn bash_records_nothing_it_could_not_vouch_for() {
    let rows = [
        "trap 'echo bye' EXIT; false | true",
        "cd /nonexistent 2>/dev/null && false | true",
        "cd . || false | true",
        "set -e; false; true | true",
        "exit 3; true | true",
        "exec true; true | true",
        "set -u; echo $nope 2>/dev/null; true | true",
        "false | true && exit 0; true | true",
        "kill -TERM $$; true | true",
        "true | true &",
        "! false | true",
        "false | true && true",
        "false | true; true",
        "(false | true)",
        "if true; then false | true; fi",
        "true",
        "for i in 1; do false | true; done",
        "f() { false | true; }; f",
    ];
    for script in rows {
        let got = bash(script);
        assert!(got.is_err(), "{script:?}: {got:?}");
    }
}

#[test]
fn bash_keeps_an_original_bash_env() {
    let dir = tempfile::tempdir().unwrap();
    let (env, record, original) =
        (dir.path().join("env"), dir.path().join("record"), dir.path().join("original"));
    std::fs::write(&original, "greeting=hello\n").unwrap();
    let text = bash_env_text(Some(original.as_os_str().as_encoded_bytes())).unwrap();
    std::fs::write(&env, text).unwrap();
    let script = "echo $greeting; bash -c 'echo $greeting'; echo $?$BASH_ENV; (exit 9) | cat";
    let plain = run(dir.path(), "bash", &["-c", script], &[("BASH_ENV", &original)]);
    let with = run(dir.path(), "bash", &["-c", script], &[("BASH_ENV", &env), ("OUTLAST_STAGES", &record)]);
    assert_eq!(with, plain);
    assert_eq!(outcome(script, Dialect::Bash, &record, with.code), Ok((vec![9, 0], 9)));
}

#[test]
fn bash_flags_and_wrappers() {
    let rows: &[&[&str]] = &[
        &["bash", "-c", "(exit 9) | cat"],
        &["bash", "-ec", "(exit 9) | cat"],
        &["bash", "-lc", "(exit 9) | cat"],
        &["bash", "-euo", "pipefail", "-c", "(exit 9) | cat"],
        &["env", "A=b", "bash", "-c", "(exit 9) | cat"],
        &["timeout", "9", "nice", "bash", "-c", "(exit 9) | cat"],
    ];
    for words in rows {
        let argv: Vec<Vec<u8>> = words.iter().map(|word| word.as_bytes().to_vec()).collect();
        assert_eq!(plan_capture_argv(&argv), CapturePlan::BashEnv, "{words:?}");
        let dir = tempfile::tempdir().unwrap();
        let (env, record) = (dir.path().join("env"), dir.path().join("record"));
        std::fs::write(&env, bash_env_text(None).unwrap()).unwrap();
        let ran = run(dir.path(), words[0], &words[1..], &[("BASH_ENV", &env), ("OUTLAST_STAGES", &record)]);
        let last = analyze_argv(&argv).last_pipeline;
        let evidence = reconcile(&last, parse_stages(&std::fs::read(&record).unwrap()), ran.code.unwrap());
        let StageEvidence::Captured(stages) = evidence else { panic!("{words:?}: {evidence:?}") };
        let shell = u8::try_from(ran.code.unwrap()).unwrap();
        assert_eq!(outlast_core::pipeline::effective(shell, &stages).unwrap().status, 9);
    }
}

/// Runs the rewritten script beside the original in `shell`; nothing but the record may differ.
fn rewritten(shell: &str, script: &str) -> Result<(Vec<i32>, i32), NotCaptured> {
    let dialect = if shell == "dash" { Dialect::Dash } else { Dialect::Sh };
    let plan = plan_capture(ScriptCall { text: script.as_bytes(), dialect });
    let text = match plan {
        CapturePlan::Rewrite(text) => String::from_utf8(text).unwrap(),
        CapturePlan::NotCaptured { why } => return Err(why),
        other => panic!("{script:?}: {other:?}"),
    };
    assert_eq!(text.lines().count(), script.lines().count(), "{script:?}: lines have moved");
    // `dash` is called as what it is; a bash called `sh` needs the name.
    let dir = tempfile::tempdir().unwrap();
    let mut program = "/bin/dash".to_owned();
    if shell == "bash" {
        let link = dir.path().join("sh");
        std::os::unix::fs::symlink("/bin/bash", &link).unwrap();
        program = link.to_str().unwrap().to_owned();
    }
    let record = dir.path().join("record");
    let place = [("OUTLAST_STAGES", record.as_path())];
    let plain = run(dir.path(), &program, &["-c", script], &place);
    assert!(!record.exists());
    let with = run(dir.path(), &program, &["-c", &text], &place);
    assert_eq!(with, plain, "{script:?} in {shell}: the instrument shows\n{text}");
    outcome(script, dialect, &record, with.code)
}

#[test]
fn rewriting_records_every_stage() {
    let rows: &[(&str, &[i32], i32)] = &[
        ("false | true", &[1, 0], 1),
        ("true | false", &[0, 1], 1),
        ("(exit 101) | tail -n 20", &[101, 0], 101),
        ("yes | head -1", &[141, 0], 0),
        ("echo a > f; grep zzz f | wc -l", &[1, 0], 0),
        ("(exit 2) | (exit 3) | (exit 0)", &[2, 3, 0], 3),
        ("cd . && false | true", &[1, 0], 1),
        ("cd /nonexistent 2>/dev/null || false | true", &[1, 0], 1),
        ("{ false | true; }", &[1, 0], 1),
        ("{ false|true;}", &[1, 0], 1),
        ("set -e; false | true", &[1, 0], 1),
        ("set -e; { false; echo no; } | cat", &[1, 0], 1),
        ("set -e; true | { false; echo no; }", &[0, 1], 1),
        ("set -e; (false; echo no) | cat", &[1, 0], 1),
        ("set -u; false | true", &[1, 0], 1),
        ("false |\n  true # done\n# more\n", &[1, 0], 1),
        ("false | # why\n\n true", &[1, 0], 1),
        ("false \\\n | true", &[1, 0], 1),
        ("echo $LINENO\necho $LINENO | cat", &[0, 0], 0),
        ("cat <<E\nx\nE\nfalse | true", &[1, 0], 1),
        ("f() { return 4; }; f | cat", &[4, 0], 4),
        ("f() { exit 4; }; f | cat", &[4, 0], 4),
        ("(exit 5) | while read x; do :; done", &[5, 0], 5),
        ("for i in 1 2; do echo $i; done | grep 3 | cat", &[0, 1, 0], 0),
        ("if true; then exit 3; fi | cat", &[3, 0], 3),
        ("case a in a) exit 6;; esac | cat", &[6, 0], 6),
        ("echo a 2>&1 >f | cat", &[0, 0], 0),
        ("a=3 sh -c 'exit $a' | cat", &[3, 0], 3),
        ("ls | head -1 >/dev/null; (exit 3) | cat", &[3, 0], 3),
        ("nosuchprogram 2>/dev/null | cat", &[127, 0], 127),
        ("sh -c 'kill -9 $$' | cat", &[137, 0], 137),
        ("trap 'echo bye' EXIT; false | true", &[1, 0], 1),
        ("echo 'it''s \"q\"' | tr a-z A-Z | cat", &[0, 0, 0], 0),
        ("echo \"$(echo 'x | y')\" | cat", &[0, 0], 0),
        ("exec 2>/dev/null; false | true", &[1, 0], 1),
        ("set -C; set -f; IFS=0; (exit 100) | true", &[100, 0], 100),
        ("false | true;", &[1, 0], 1),
        ("false|true", &[1, 0], 1),
        ("echo x | { read y; echo $y; exit 8; }", &[0, 8], 8),
        ("(trap 'echo in' EXIT; exit 2) | cat", &[2, 0], 2),
    ];
    for shell in ["dash", "bash"] {
        for (script, stages, effective) in rows {
            let got = rewritten(shell, script);
            if script.contains("(trap") {
                assert!(got.is_err(), "a stage that sets traps is left alone");
            } else {
                assert_eq!(got, Ok((stages.to_vec(), *effective)), "{script:?} in {shell}");
            }
        }
    }
}

#[test]
fn rewriting_leaves_alone_what_it_could_change() {
    let rows = [
        "cat <<E | cat\nx\nE\n",
        "echo $? | cat",
        "f() { echo $?; }; f | cat",
        "set -x; false | true",
        "set -o verbose; false | true",
        "alias x=y; false | true",
        "printf() { :; }; false | true",
        "trap x USR1 | cat",
        "eval 'echo $?' | cat",
        "false | true &",
        "false | true && x",
        "! false | true",
        "(false | true)",
        "f() { :; } | cat",
        "true",
        "a | (",
    ];
    for script in rows {
        for dialect in [Dialect::Dash, Dialect::Sh] {
            let plan = plan_capture(ScriptCall { text: script.as_bytes(), dialect });
            assert!(matches!(plan, CapturePlan::NotCaptured { .. }), "{script:?}: {plan:?}");
        }
    }
    // A stage that replaces itself, and a pipeline that does not run, leave nothing to believe.
    for script in ["exec false | true", "cd . || false | true", "exit 2; true | true"] {
        assert!(rewritten("dash", script).is_err(), "{script:?}");
    }
}

#[test]
fn a_command_line_is_rewritten_in_its_place() {
    let argv: Vec<Vec<u8>> =
        ["env", "A=b", "sh", "-c", "false | true", "zero"].map(|w| w.as_bytes().to_vec()).to_vec();
    let CapturePlan::RewriteArgv(new) = plan_capture_argv(&argv) else { panic!("not rewritten") };
    assert_eq!(new.len(), argv.len());
    assert!((0..6).all(|index| (index == 4) != (new[index] == argv[index])));
    for words in [
        &["make"][..],
        &["bash", "a.sh"],
        &["zsh", "-c", "a | b"],
        &["bash", "-xc", "a | b"],
        &["env", "-i", "bash", "-c", "a | b"],
    ] {
        let argv: Vec<Vec<u8>> = words.iter().map(|word| word.as_bytes().to_vec()).collect();
        assert!(matches!(plan_capture_argv(&argv), CapturePlan::NotCaptured { .. }), "{words:?}");
    }
}

#[test]
fn an_analysis_of_another_text_rewrites_nothing() {
    let analysis = analyze_script(b"false | true", Dialect::Dash);
    assert_eq!(instrument_dash(b"x; false | true", &analysis), None);
    assert_eq!(instrument_dash(b"", &analysis), None);
}

#[test]
fn which_pipeline_decides() {
    use WhyNot::*;
    let no: &[(&str, WhyNot)] = &[
        ("", Empty),
        ("# x", Empty),
        ("a", NotAPipeline),
        ("a | b; c", NotAPipeline),
        ("a | b\nwait", NotAPipeline),
        ("a | b && c", Condition),
        ("a | b || c", Condition),
        ("a | b && c | d", Condition),
        ("! a | b", Negated),
        ("x && ! a | b", Negated),
        ("a | b &", Background),
        ("(a | b)", Nested),
        ("if x; then a | b; fi", Nested),
        ("if a | b; then x; fi", Nested),
        ("while a | b; do x; done", Nested),
        ("for x in y; do a | b; done", Nested),
        ("case x in y) a | b;; esac", Nested),
        ("f() { a | b; }", NotAPipeline),
        ("f() { a | b; }; f", NotAPipeline),
        ("x=$(a | b)", NotAPipeline),
        ("bash -c 'a | b'", NotAPipeline),
        ("{ a | b; c; }", NotAPipeline),
        ("[[ a || b ]]", NotAPipeline),
        ("set -e; a | b; c | d", Ambiguous),
        ("a | b && exit; c | d", Condition),
        ("a | b; x || exit 1; c | d", Ambiguous),
        ("a | b; $x; c | d", Ambiguous),
        ("a | b; echo ${x:?}; c | d", Ambiguous),
        ("a | (", Unparsed),
    ];
    for (script, why) in no {
        let got = analyze_script(script.as_bytes(), Dialect::Bash).last_pipeline;
        if *script == "a | b && exit; c | d" {
            assert_eq!(got, LastPipeline::No { why: Ambiguous }, "{script:?}");
        } else {
            assert_eq!(got, LastPipeline::No { why: *why }, "{script:?}");
        }
    }
    type Row<'a> = (&'a str, &'a [Option<&'a str>], Option<bool>);
    let yes: &[Row<'_>] = &[
        ("cargo test | tail -n 20", &[Some("cargo"), Some("tail")], Some(false)),
        ("x; /bin/a | LC_ALL=C sudo -u z grep b | $c", &[Some("a"), Some("grep"), None], Some(false)),
        ("x && a | b", &[Some("a"), Some("b")], Some(false)),
        ("x || a | b", &[Some("a"), Some("b")], Some(false)),
        ("x || exit 1; a | b", &[Some("a"), Some("b")], Some(false)),
        ("a | b; c | d", &[Some("c"), Some("d")], Some(false)),
        ("set -e; a | b | c; c | d", &[Some("c"), Some("d")], Some(false)),
        ("x=$(a | b); exit_code=1; set -e; c | d", &[Some("c"), Some("d")], Some(false)),
        ("{ a | b; }", &[Some("a"), Some("b")], Some(false)),
        ("time a | b", &[Some("a"), Some("b")], Some(false)),
        ("a | while x; do y; done", &[Some("a"), None], Some(false)),
        ("set -euo pipefail; a | b", &[Some("a"), Some("b")], Some(true)),
        ("set -o pipefail; set +o pipefail; a | b", &[Some("a"), Some("b")], Some(false)),
        ("if x; then set -o pipefail; fi; a | b", &[Some("a"), Some("b")], None),
        ("(set -o pipefail); a | b", &[Some("a"), Some("b")], Some(false)),
        ("a | xargs grep b", &[Some("a"), Some("xargs")], Some(false)),
    ];
    for (script, programs, pipefail) in yes {
        let got = analyze_script(script.as_bytes(), Dialect::Bash).last_pipeline;
        let LastPipeline::Decides { stages, pipefail: on } = got else { panic!("{script:?}: {got:?}") };
        let names: Vec<Option<&str>> = stages.iter().map(|stage| stage.program.as_deref()).collect();
        assert_eq!(&names[..], *programs, "{script:?}");
        assert_eq!(on, *pipefail, "{script:?}");
    }
    let argv: Vec<Vec<u8>> =
        ["bash", "-o", "pipefail", "-c", "a | b"].map(|word| word.as_bytes().to_vec()).to_vec();
    let LastPipeline::Decides { pipefail, .. } = analyze_argv(&argv).last_pipeline else {
        panic!("not found")
    };
    assert_eq!(pipefail, Some(true));
}
