//! `outlast qualify`: the call. What the probes find is theirs to test, and slow.

use crate::scene::Scene;

#[test]
fn one_probe_is_asked_and_nothing_is_left() {
    let scene = Scene::new();
    let scratch = tempfile::tempdir().unwrap();
    let record = scratch.path().join("record.json");
    let place = scratch.path().join("place");
    std::fs::create_dir(&place).unwrap();
    let words = ["qualify", "--quick", "--only", "exit-code,pipeline", "--scratch"];
    let words = [&words[..], &[place.to_str().unwrap(), "--json", record.to_str().unwrap()]].concat();
    let answer = scene.ask(&words).exits(0);
    let probes = answer["data"]["probes"].as_array().unwrap();
    assert_eq!(probes.len(), 2);
    assert!(probes.iter().all(|row| row["verdict"] == "pass"), "{probes:?}");
    let kept: serde_json::Value = serde_json::from_slice(&std::fs::read(&record).unwrap()).unwrap();
    assert_eq!(kept, answer["data"]);
    assert_eq!(std::fs::read_dir(&place).unwrap().count(), 0);
}

#[test]
fn a_name_that_no_probe_has_is_refused_before_anything() {
    let scene = Scene::new();
    let answer = scene.ask(&["qualify", "--only", "exit-cod"]).exits(2);
    assert_eq!(answer["error"]["code"], "BAD_ARGUMENT");
}

#[test]
fn a_runner_or_a_place_that_cannot_be_had_is_told() {
    let scene = Scene::new();
    let runner = scene.ask(&["qualify", "--runner", "unix:/nonexistent"]).exits(12);
    assert_eq!(runner["error"]["code"], "SUBJECT_UNAVAILABLE");
    let address = scene.ask(&["qualify", "--runner", "nonsense:"]).exits(2);
    assert_eq!(address["error"]["code"], "BAD_ARGUMENT");
    let place = scene.ask(&["qualify", "--quick", "--scratch", "/nonexistent/place"]).exits(4);
    assert_eq!(place["error"]["code"], "SCRATCH_UNUSABLE");
}

#[test]
fn every_probe_is_explained() {
    let scene = Scene::new();
    let answer = scene.ask(&["qualify", "--explain"]).exits(0);
    let probes = answer["data"]["probes"].as_array().unwrap();
    assert!(probes.len() > 20);
    assert!(probes.iter().all(|probe| probe["proves_not"].as_str().is_some_and(|text| !text.is_empty())));
}
