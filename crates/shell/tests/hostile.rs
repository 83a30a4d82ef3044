//! Whatever comes in, an answer comes out, and soon.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a test says so by failing")]

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use outlast_shell::{
    CapturePlan, Dialect, Parsed, ScriptCall, analyze_argv, analyze_script, instrument_dash, parse_stages,
    plan_capture,
};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// Generous for a debug build on a busy machine; what it guards against takes for ever.
const BOUND: Duration = Duration::from_secs(10);

fn survives(text: &[u8]) -> bool {
    let mut parsed = false;
    for dialect in [Dialect::Bash, Dialect::Sh, Dialect::Dash] {
        let start = Instant::now();
        let got = analyze_script(text, dialect);
        assert!(start.elapsed() < BOUND, "{:?}: {:?}", &text[..text.len().min(80)], start.elapsed());
        for finding in got.findings.iter().chain(&got.busy_waits) {
            assert!(finding.start <= finding.end && finding.end <= text.len());
            assert!(finding.excerpt.chars().count() <= 81);
        }
        parsed |= got.is_parsed();
    }
    parsed
}

#[test]
fn nesting() {
    let pairs = [
        ("(", ")"),
        ("( ", " )"),
        ("{ ", "; }"),
        ("$(", ")"),
        ("$( ", " )"),
        ("\"$(", ")\""),
        ("${x:-", "}"),
        ("\"${x:-", "}\""),
        ("${a[", "]}"),
        ("$((", "))"),
        ("$(( ", " ))"),
        ("$((", ") )"),
        ("((", "))"),
        ("((", ") )"),
        ("$[", "]"),
        ("a[", "]"),
        ("`", "`"),
        ("\\`", "\\`"),
        ("'", "'"),
        ("\"", "\""),
        ("$'", "'"),
        ("@(", ")"),
        ("$(@(", "))"),
        ("<(", ")"),
        ("cat <(", ")"),
        ("if ", "; then x; fi"),
        ("if x; then ", "; fi"),
        ("if x; then y; else ", "; fi"),
        ("while x; do ", "; done"),
        ("for x in y; do ", "; done"),
        ("case a in b) ", ";; esac"),
        ("case a in b) ", " ; esac"),
        ("f() { ", "; }"),
        ("function f { ", "; }"),
        ("! ", ""),
        ("time ", ""),
        ("coproc ", ""),
        ("x=(", ")"),
        ("[[ ( ", " ) ]]"),
        ("eval ", ""),
        ("env ", ""),
        ("sh -c ", ""),
        ("eval '", "'"),
        ("bash -c \"", "\""),
        ("\\", ""),
        ("a && ", "b"),
        ("a | ", "b"),
        ("a & ", ""),
        ("f() { f; }; f; ", ""),
        ("<<a ", ""),
        ("cat <<a; ", ""),
        ("#", "\n"),
        ("\\\n", ""),
        ("$", ""),
        ("{", ","),
        ("select x in y; do ", "; done"),
        ("$(<", ")"),
        ("~", "/"),
        ("! (", ")"),
    ];
    for count in [1, 3, 5, 10, 20, 50, 199, 201, 1000, 10_000] {
        for (open, close) in pairs {
            survives(open.repeat(count).as_bytes());
            survives(format!("{}a", open.repeat(count)).as_bytes());
            survives(format!("{}a{}", open.repeat(count), close.repeat(count)).as_bytes());
            survives(format!("{}a{}", open.repeat(count), close.repeat(count / 2)).as_bytes());
            survives(format!("echo \"{}a{}\"", open.repeat(count), close.repeat(count)).as_bytes());
        }
    }
    // Within the limit the text is read, beyond it the answer says so.
    let nest = |count: usize| format!("{}a{}", "( ".repeat(count), " )".repeat(count));
    assert!(analyze_script(nest(60).as_bytes(), Dialect::Bash).is_parsed());
    assert!(!analyze_script(nest(1000).as_bytes(), Dialect::Bash).is_parsed());
}

#[test]
fn size() {
    for piece in [
        "a",
        "a ",
        "a;",
        "a\n",
        "a|",
        "'a' ",
        "\"a\" ",
        "$a ",
        "a & ",
        "cat <<A\nA\n",
        "(a);",
        "$(a) ",
        "a=(b) ",
        "f() { a & }; f;\n",
        "if a & then b; fi\n",
        "eval 'a &';",
        "wait;",
        "a & p=$!;",
        "\u{e9}",
        "\\",
    ] {
        let large = piece.repeat(64 * 1024 / piece.len());
        survives(large.as_bytes());
        let over = piece.repeat(1024 * 1024 / piece.len());
        assert!(!analyze_script(over.as_bytes(), Dialect::Bash).is_parsed(), "{piece:?}");
    }
    let argv = vec![b"bash".to_vec(), b"-c".to_vec(), vec![b'a'; 1024 * 1024]];
    assert!(!analyze_argv(&argv).is_parsed());
    assert!(!analyze_argv(&vec![b"a".to_vec(); 1024 * 1024]).is_parsed());
    // Functions that call each other twice do not double for ever.
    let mut doubling = "f0() { a & }\n".to_owned();
    for level in 1..400 {
        doubling.push_str(&format!("f{level}() {{ f{0}; f{0}; }}\n", level - 1));
    }
    doubling.push_str("f399\n");
    assert!(!survives(doubling.as_bytes()), "the walk gave up and said so");
}

#[test]
fn broken() {
    for text in [
        &b"\0"[..],
        b"a\0b &",
        b"\xff\xfe",
        b"\xff &",
        b"'",
        b"\"",
        b"`",
        b"$(",
        b"${",
        b"$((",
        b"$[",
        b"<<",
        b"<<A",
        b"<<A\n",
        b"<<'A\nx\n",
        b"a |",
        b"a &&",
        b"&",
        b";",
        b";;",
        b"a;;b",
        b"| a",
        b"&& a",
        b"(",
        b")",
        b"()",
        b"f()",
        b"f() x",
        b"{",
        b"}",
        b"if",
        b"fi",
        b"then",
        b"do",
        b"done",
        b"case",
        b"case x",
        b"case x in",
        b"esac",
        b"for",
        b"for x",
        b"for x in",
        b"[[",
        b"[[ a",
        b"]]",
        b"((",
        b"((a",
        b"a=(",
        b"x[",
        b"$'",
        b"\\",
        b"a\\",
        b"${x",
        b"${}",
        b"${x:",
        b"2>",
        b">",
        b"<",
        b"<<<",
        b">&",
        b"a 2>&",
        b"function",
        b"coproc",
        b"select",
        b"time",
        b"!",
        b"a & & b",
        b"\r\n",
        b"a\r\n",
        b"${ a; }",
        b"${|a;}",
        b"$(case x in a) b)",
        b"a <(b",
        b"@(a",
        b"a () b",
        b"foo &; bar",
    ] {
        survives(text);
    }
    // What a shell would refuse is never taken as read.
    for text in
        ["a |", "a &&", "(", "a & & b", "foo &; bar", "if a; fi", "'", "$(", "a;;b", "}", "a )", "a\0b"]
    {
        assert!(!analyze_script(text.as_bytes(), Dialect::Bash).is_parsed(), "{text:?}");
    }
    // What was seen before an inner script turned out to be broken is still told.
    let got = analyze_script(b"nohup a; bash -c 'if'", Dialect::Bash);
    assert!(!got.is_parsed());
    assert_eq!(got.findings.len(), 1);
}

fn soup() -> impl Strategy<Value = String> {
    let tokens = prop::sample::select(vec![
        "a",
        "b",
        " ",
        "\n",
        ";",
        "&",
        "|",
        "&&",
        "||",
        ";;",
        ";&",
        "(",
        ")",
        "((",
        "))",
        "{",
        "}",
        "[[",
        "]]",
        "$(",
        "$((",
        "${",
        "`",
        "'",
        "\"",
        "\\",
        "$",
        "$'",
        "<",
        ">",
        "<<A\n",
        "A\n",
        "<<<",
        "<(",
        ">&",
        "&>",
        "2>&1",
        "#",
        "!",
        "=",
        "x=(",
        "if ",
        "then ",
        "else ",
        "fi ",
        "for x in ",
        "do ",
        "done ",
        "while ",
        "case x in ",
        "esac ",
        "function f ",
        "f() ",
        "coproc ",
        "time ",
        "wait ",
        "sleep 1 ",
        "nohup ",
        "eval ",
        "bash -c ",
        "docker run -d ",
        "@(",
        "x[",
        "]",
        "$!",
        "é",
        "\t",
        "select ",
    ]);
    prop::collection::vec(tokens, 0..60).prop_map(|tokens| tokens.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes(text in prop::collection::vec(any::<u8>(), 0..2000)) {
        survives(&text);
        let _ = parse_stages(&text);
        let analysis = analyze_script(&text, Dialect::Dash);
        let _ = instrument_dash(&text, &analysis);
    }

    #[test]
    fn any_tokens(text in soup()) {
        survives(text.as_bytes());
        analyze_argv(&[b"bash".to_vec(), b"-c".to_vec(), text.clone().into_bytes()]);
        if let CapturePlan::Rewrite(new) = plan_capture(ScriptCall { text: text.as_bytes(), dialect: Dialect::Dash }) {
            let got = analyze_script(&new, Dialect::Dash);
            prop_assert_eq!(got.parsed, Parsed::Parsed, "{}", text);
        }
    }

    #[test]
    fn any_arguments(argv in prop::collection::vec(soup(), 0..6)) {
        analyze_argv(&argv.into_iter().map(String::into_bytes).collect::<Vec<_>>());
    }
}

fn shell_accepts(shell: &[&str], text: &str) -> bool {
    let mut child = Command::new(shell[0])
        .args(&shell[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    child.wait().unwrap().success()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, rng_seed: RngSeed::Fixed(7), failure_persistence: None, ..ProptestConfig::default() })]

    /// What we take as read, the shell itself must take as well: else the tree is not the shell's.
    #[test]
    fn nothing_is_read_that_the_shell_refuses(text in soup()) {
        if analyze_script(text.as_bytes(), Dialect::Bash).is_parsed() {
            // Patterns are read whether or not `extglob` is on, since a script may turn it on.
            let accepts = shell_accepts(&["bash", "-n"], &text) || shell_accepts(&["bash", "-O", "extglob", "-n"], &text);
            prop_assert!(accepts, "bash refuses {:?}", text);
        }
        if analyze_script(text.as_bytes(), Dialect::Dash).is_parsed() {
            prop_assert!(shell_accepts(&["dash", "-n"], &text), "dash refuses {:?}", text);
        }
    }
}
