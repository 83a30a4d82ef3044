//! Who a home is for.

use crate::support::Ground;
use outlast_core::id::SandboxGeneration;
use outlast_hand::home::{Home, HomeError};

#[test]
fn a_home_answers_for_one_incarnation_of_one_sandbox() {
    let ground = Ground::new();
    let path = ground.folder.path().join("sandboxed");
    let generation = |number| Some(SandboxGeneration(number));
    let home = Home::open_as(&path, Some("box:1"), generation(7)).unwrap();
    assert_eq!((home.sandbox(), home.sandbox_generation()), ("box:1", SandboxGeneration(7)));
    for (sandbox, number) in
        [(Some("box:1"), generation(7)), (None, generation(7)), (Some("box:1"), None), (None, None)]
    {
        let again = Home::open_as(&path, sandbox, number).unwrap();
        assert_eq!((again.sandbox(), again.sandbox_generation()), ("box:1", SandboxGeneration(7)));
    }
    for (sandbox, number) in [
        (Some("box:2"), generation(7)),
        (Some("box:1"), generation(8)),
        (Some("box:1"), generation(6)),
        (Some("box:2"), None),
        (None, generation(8)),
        (Some(home.id()), None),
    ] {
        let error = Home::open_as(&path, sandbox, number).unwrap_err();
        assert!(matches!(error, HomeError::OtherSandbox { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("box:1") && text.contains(sandbox.unwrap_or("box:1")), "{text}");
    }
}

#[test]
fn without_a_sandbox_a_home_is_its_own() {
    let ground = Ground::new();
    assert_eq!(ground.home.sandbox(), ground.home.id());
    assert_eq!(ground.home.sandbox_generation(), SandboxGeneration(1));
    let id = ground.home.id().to_owned();
    assert_eq!(Home::open_as(ground.home.path(), Some(&id), None).unwrap().sandbox(), id);
}

#[test]
fn a_home_of_an_earlier_version_opens() {
    let ground = Ground::new();
    let path = ground.folder.path().join("old");
    for folder in ["jobs", "open", "tmp", "checkpoints", "tombstones"] {
        std::fs::create_dir_all(path.join(folder)).unwrap();
    }
    let secret = "0".repeat(64);
    let text =
        format!(r#"{{"schema":1,"id":"0123456789abcdef","sandbox_generation":1,"secret":"{secret}"}}"#);
    std::fs::write(path.join("home.json"), text).unwrap();
    let home = Home::open(&path).unwrap();
    assert_eq!(home.sandbox(), "0123456789abcdef");
    let ground = Ground { home, ..ground };
    ground.new_job(&ground.ask(Some("k")));
}

#[test]
fn what_names_a_sandbox() {
    let ground = Ground::new();
    let open = |id: &str, place: usize| {
        Home::open_as(&ground.folder.path().join(format!("named-{place}")), Some(id), None)
    };
    for (place, id) in ["a", "A-b_c.d:e9", &"x".repeat(128)].into_iter().enumerate() {
        assert_eq!(open(id, place).unwrap().sandbox(), id);
    }
    for id in ["", "a b", "a/b", "ü", "a\n", &"x".repeat(129)] {
        assert!(matches!(open(id, 9).unwrap_err(), HomeError::BadSandbox { .. }), "{id:?}");
        assert!(!ground.folder.path().join("named-9").exists(), "nothing was made");
    }
}
