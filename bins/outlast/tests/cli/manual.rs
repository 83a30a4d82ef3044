//! The manual: every command explains itself.

use crate::scene::Scene;

#[test]
fn help_is_text_even_for_a_program() {
    let scene = Scene::new();
    for words in
        [&["--help"][..], &["help", "run"], &["run", "--help"], &["job", "wait", "--help"], &["help", "job"]]
    {
        let answer = scene.ask(words);
        assert_eq!(answer.code, 0, "{words:?}");
        assert!(answer.text().contains("Usage:"), "{words:?}");
    }
    assert_eq!(scene.ask(&["--version"]).text(), format!("outlast {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn the_manual_of_run_has_what_a_manual_has() {
    let scene = Scene::new();
    let answer = scene.ask(&["help", "run"]);
    for part in [
        "Exit codes:",
        "Environment",
        "AGENT_CALL_BUDGET_MS",
        "OUTLAST_CHECKPOINT",
        "Signals",
        "Examples:",
        "INCOMPLETE",
        "DETACH_REFUSED",
        "--idempotency-key",
        "Ctrl-]",
    ] {
        assert!(answer.text().contains(part), "{part}");
    }
}

#[test]
fn every_verb_has_a_manual() {
    let scene = Scene::new();
    for verb in
        ["list", "wait", "status", "logs", "cancel", "settle", "retry", "explain", "stdin", "resize", "gc"]
    {
        let answer = scene.ask(&["job", verb, "--help"]);
        assert!(answer.code == 0 && answer.text().len() > 400, "{verb}");
    }
}
