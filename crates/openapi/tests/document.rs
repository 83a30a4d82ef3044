//! The document against the code: the types, the runner's routes, the runner's codes, the page for people.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use http::StatusCode;
use outlast_core::evidence::{Evidence, Isolation};
use outlast_core::exit::{Cause, Exit, NotStarted};
use outlast_core::fence::{Stale, StopReason};
use outlast_core::id::{Attempt, BootId, Cursor, Generation, JobId, MutationMark, SandboxGeneration};
use outlast_core::ledger::Straggler;
use outlast_core::pipeline::{Effective, Rule, Stage, Stages};
use outlast_core::progress::Progress;
use outlast_core::receipt::{
    Attestation, Authority, Drain, Facts, Gap, Output, OutputHash, Receipt, TerminalMutation,
};
use outlast_core::spec::{Boundary, JobKind, Warning};
use outlast_core::status::{Obligation, Party, State};
use outlast_core::time::{Millis, UnixMicros};
use outlast_openapi::{codes, document, samples, text};
use outlast_runner::OPERATIONS;
use outlast_wire::admission::Admission;
use outlast_wire::hello::{Hello, HelloRequest};
use outlast_wire::problem::Problem;
use outlast_wire::verbs::{Acknowledge, Fence, Resize, Seal, Settle, Stop};
use outlast_wire::view::{Acknowledged, Arrival, FenceView, JobList, JobView, SetUpFailed, VerdictView};
use outlast_wire::{call, limits};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::rc::Rc;

fn file(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn read(path: &str) -> String {
    std::fs::read_to_string(file(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Checks values against the schemas of the document.
struct Checker {
    document: Value,
    validators: RefCell<HashMap<String, Rc<jsonschema::Validator>>>,
}

impl Checker {
    fn new() -> Checker {
        Checker { document: document(), validators: RefCell::default() }
    }

    /// What is wrong with `value`, by a schema that may refer to others.
    fn wrong(&self, schema: &Value, value: &Value) -> Vec<String> {
        let make = || {
            let schemas = &self.document["components"]["schemas"];
            let whole = json!({ "allOf": [schema], "components": { "schemas": schemas } });
            Rc::new(jsonschema::draft202012::new(&whole).unwrap())
        };
        let validator =
            Rc::clone(self.validators.borrow_mut().entry(schema.to_string()).or_insert_with(make));
        validator.iter_errors(value).map(|error| format!("{}: {error}", error.instance_path)).collect()
    }

    fn is(&self, name: &str, value: &Value) -> bool {
        assert!(self.document["components"]["schemas"][name].is_object(), "there is no schema {name}");
        self.wrong(&json!({ "$ref": format!("#/components/schemas/{name}") }), value).is_empty()
    }

    /// A value of a type is what the schema says, and is read back.
    fn accepts<T: Serialize + DeserializeOwned>(&self, name: &str, value: &T) {
        let value = serde_json::to_value(value).unwrap();
        let wrong = self.wrong(&json!({ "$ref": format!("#/components/schemas/{name}") }), &value);
        assert!(wrong.is_empty(), "{name}: {value:#}\n{wrong:#?}");
        serde_json::from_value::<T>(value).unwrap();
    }

    /// Schema and type take or refuse the same texts.
    fn agrees<T: DeserializeOwned>(&self, name: &str, value: Value, good: bool) {
        assert_eq!(serde_json::from_value::<T>(value.clone()).is_ok(), good, "{name} as a type: {value}");
        assert_eq!(self.is(name, &value), good, "{name} as a schema: {value}");
    }

    fn resolve<'v>(&'v self, value: &'v Value) -> &'v Value {
        match value["$ref"].as_str() {
            Some(place) => self.document.pointer(place.strip_prefix('#').unwrap()).unwrap(),
            None => value,
        }
    }

    /// All operations: method, path, description.
    fn operations(&self) -> Vec<(String, String, &Value)> {
        let paths = self.document["paths"].as_object().unwrap();
        let all = paths.iter().flat_map(|(path, methods)| {
            let methods = methods.as_object().unwrap();
            methods.iter().map(move |(method, operation)| (method.to_uppercase(), path.clone(), operation))
        });
        all.collect()
    }
}

#[test]
fn what_is_checked_in_is_what_the_code_makes() {
    let there = std::fs::read_to_string(file("docs/hand-protocol.openapi.json")).unwrap_or_default();
    assert!(
        there == text(),
        "docs/hand-protocol.openapi.json is not what the code makes. Renew it:\n\n    \
         cargo run -p outlast-openapi --example openapi > docs/hand-protocol.openapi.json\n"
    );
    assert_eq!(serde_json::from_str::<Value>(&there).unwrap(), document());
}

#[test]
fn every_reference_leads_somewhere_and_every_component_is_used() {
    fn walk(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                if let Some(Value::String(place)) = fields.get("$ref") {
                    found.insert(place.clone());
                }
                fields.values().for_each(|value| walk(value, found));
            }
            Value::Array(items) => items.iter().for_each(|value| walk(value, found)),
            _ => {}
        }
    }
    let document = document();
    let mut found = BTreeSet::new();
    walk(&document, &mut found);
    for place in &found {
        assert!(document.pointer(place.strip_prefix('#').unwrap()).is_some(), "{place} leads nowhere");
    }
    // Two codes belong to no operation: their paths or methods are none.
    let nowhere = ["#/components/examples/NO_SUCH_PATH", "#/components/examples/METHOD_NOT_ALLOWED"];
    for kind in ["schemas", "parameters", "headers", "responses", "examples"] {
        for name in document["components"][kind].as_object().unwrap().keys() {
            let place = format!("#/components/{kind}/{name}");
            assert_eq!(found.contains(&place), !nowhere.contains(&place.as_str()), "{place}");
        }
    }
}

#[test]
fn every_route_of_the_runner_is_described() {
    let checker = Checker::new();
    let described = checker.operations();
    let mut ids = BTreeSet::new();
    assert_eq!(described.len(), OPERATIONS.len());
    for route in OPERATIONS {
        let (method, path) = (route.method, route.path);
        let found = described.iter().find(|(m, p, _)| (m.as_str(), p.as_str()) == (method, path));
        let (_, _, operation) = found.unwrap_or_else(|| panic!("{method} {path} is not described"));
        assert!(ids.insert(operation["operationId"].as_str().unwrap()), "{method} {path} has another's id");
        let parameters: Vec<&Value> = operation["parameters"]
            .as_array()
            .unwrap()
            .iter()
            .map(|parameter| checker.resolve(parameter))
            .collect();
        let names = |place: &str| -> BTreeSet<&str> {
            let here = parameters.iter().filter(|parameter| parameter["in"] == place);
            here.map(|parameter| parameter["name"].as_str().unwrap()).collect()
        };
        assert_eq!(names("query"), route.query.iter().copied().collect(), "{method} {path}");
        let mut headers = BTreeSet::new();
        if path != "/hello" {
            headers.insert(call::SCOPE);
        }
        if route.changes {
            headers.extend([
                call::REQUEST_ID,
                call::EXPIRES_AT,
                call::SANDBOX,
                call::SANDBOX_GENERATION,
                call::GENERATION,
            ]);
        }
        assert_eq!(names("header"), headers, "{method} {path}");
        assert_eq!(names("path").contains("job_id"), path.contains("{job_id}"), "{method} {path}");
    }
}

#[test]
fn every_answer_is_described() {
    let checker = Checker::new();
    for (method, path, operation) in checker.operations() {
        for (status, response) in operation["responses"].as_object().unwrap() {
            let response = checker.resolve(response);
            assert!(!response["description"].as_str().unwrap().is_empty(), "{method} {path} {status}");
            for (kind, content) in response["content"].as_object().unwrap() {
                if kind != "application/problem+json" {
                    assert_eq!(status, "200");
                    continue;
                }
                for (code, example) in content["examples"].as_object().unwrap() {
                    let value = &checker.resolve(example)["value"];
                    assert_eq!(value["code"], code.as_str());
                    assert_eq!(value["status"].to_string(), *status, "{method} {path} {code}");
                }
            }
        }
        for text in ["summary", "description", "operationId"] {
            assert!(operation[text].as_str().is_some_and(|text| !text.is_empty()), "{method} {path}: {text}");
        }
    }
}

#[test]
fn every_example_is_what_its_schema_says() {
    fn walk(checker: &Checker, place: &str, value: &Value, count: &mut usize) {
        if let Some(fields) = value.as_object() {
            if let Some(schema) = fields.get("schema") {
                let mut examples: Vec<Value> = fields.get("example").into_iter().cloned().collect();
                if let Some(Value::Object(named)) = fields.get("examples") {
                    examples.extend(named.values().map(|example| checker.resolve(example)["value"].clone()));
                }
                for example in examples {
                    let wrong = checker.wrong(schema, &example);
                    assert!(wrong.is_empty(), "{place}: {example:#}\n{wrong:#?}");
                    *count += 1;
                }
            }
            for (name, value) in fields {
                walk(checker, &format!("{place}/{name}"), value, count);
            }
        }
        for (at, value) in value.as_array().into_iter().flatten().enumerate() {
            walk(checker, &format!("{place}/{at}"), value, count);
        }
    }
    let checker = Checker::new();
    let mut count = 0;
    walk(&checker, "", &checker.document["paths"], &mut count);
    walk(&checker, "", &checker.document["components"]["responses"], &mut count);
    assert!(count > 60, "{count} examples");
    for (name, schema) in checker.document["components"]["schemas"].as_object().unwrap() {
        for example in schema["examples"].as_array().into_iter().flatten() {
            assert!(checker.is(name, example), "{name}: {example}");
        }
    }
}

#[test]
fn examples_of_requests_are_read_by_the_runner() {
    let checker = Checker::new();
    for (_, path, operation) in checker.operations() {
        let content = &operation["requestBody"]["content"]["application/json"];
        let Some(schema) = content["schema"]["$ref"].as_str() else { continue };
        for example in content["examples"].as_object().unwrap().values() {
            let value = example["value"].clone();
            let read = |value: Value| match schema.rsplit('/').next().unwrap() {
                "HelloRequest" => serde_json::from_value::<HelloRequest>(value).map(drop),
                "Admission" => serde_json::from_value::<Admission>(value).map(drop),
                "Stop" => serde_json::from_value::<Stop>(value).map(drop),
                "Settle" => serde_json::from_value::<Settle>(value).map(drop),
                "Fence" => serde_json::from_value::<Fence>(value).map(drop),
                "Seal" => serde_json::from_value::<Seal>(value).map(drop),
                "Resize" => serde_json::from_value::<Resize>(value).map(drop),
                "Acknowledge" => serde_json::from_value::<Acknowledge>(value).map(drop),
                other => panic!("{path}: {other} is read by nothing here"),
            };
            read(value.clone()).unwrap_or_else(|error| panic!("{path}: {error}: {value:#}"));
            // What is not known is refused by both.
            let mut other = value;
            other["no_such_field"] = json!(1);
            assert!(!checker.wrong(&content["schema"], &other).is_empty(), "{path}");
            // An internally tagged variant without fields is not told of what stands beside it.
            if !schema.ends_with("Settle") {
                assert!(read(other).is_err(), "{path}");
            }
        }
    }
}

#[test]
fn schemas_and_types_agree_on_requests() {
    let checker = Checker::new();
    let admission = |more: Value| {
        let mut body = json!({ "key": "k", "command": { "argv": ["true"] }, "cwd": "/" });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    for (more, good) in [
        (json!({}), true),
        (json!({ "command": { "script": { "shell": "", "text": { "hex": "ff" } } } }), true),
        (json!({ "command": { "script": { "text": "x" } } }), false),
        (json!({ "command": { "argv": ["a"], "script": { "shell": "", "text": "" } } }), false),
        (json!({ "command": { "argv": [{ "hex": "0g" }] } }), false),
        (json!({ "command": { "argv": [{ "hex": "abc" }] } }), false),
        (json!({ "command": { "argv": [7] } }), false),
        (json!({ "key": "" }), false),
        (json!({ "key": "a\nb" }), false),
        (json!({ "key": "a\u{85}b" }), false),
        (json!({ "key": "x".repeat(512) }), true),
        (json!({ "key": "x".repeat(513) }), false),
        (json!({ "attempt": 0 }), false),
        (json!({ "attempt": 4_294_967_295u32 }), true),
        (json!({ "attempt": 4_294_967_296u64 }), false),
        (json!({ "stdin": { "kind": "open" } }), true),
        (json!({ "stdin": { "kind": "pipe" } }), false),
        (json!({ "stdin": { "kind": "spooled" } }), false),
        (json!({ "window": [24, 80] }), true),
        (json!({ "window": null }), true),
        (json!({ "window": [24] }), false),
        (json!({ "window": [24, 80, 1] }), false),
        (json!({ "window": [24, 65_536] }), false),
        (json!({ "limits": { "deadline": 0, "pids": 7 } }), true),
        (json!({ "limits": { "deadline": -1 } }), false),
        (json!({ "limits": { "cpu": 1 } }), false),
        (json!({ "containment": "cgroup2+subreaper" }), true),
        (json!({ "containment": "cgroup2" }), false),
        (json!({ "user": { "uid": 1, "gid": 1 } }), true),
        (json!({ "user": { "uid": 1 } }), false),
        (json!({ "caller": "model" }), true),
        (json!({ "caller": "robot" }), false),
        (json!({ "kind": "service" }), true),
        (json!({ "env": { "A": "1", "B": { "hex": "" } } }), true),
        (json!({ "env": { "A": 1 } }), false),
        (json!({ "merge": "yes" }), false),
    ] {
        checker.agrees::<Admission>("Admission", admission(more), good);
    }
    for (value, good) in [
        (json!({ "id": "s" }), true),
        (json!({ "id": "s", "reason": { "kind": "call_budget", "after_ms": 5 } }), true),
        (json!({ "id": "s", "reason": { "kind": "call_budget" } }), false),
        (json!({ "id": "s", "reason": { "kind": "pause" }, "force": true, "grace": 7 }), true),
        (json!({}), false),
    ] {
        checker.agrees::<Stop>("Stop", value, good);
    }
    for (text, good) in [
        ("7k2m9qxw4t1rz5cb.1.1", true),
        ("7k2m9qxw4t1rz5cb.4294967295.4294967295", true),
        ("7k2m9qxw4t1rz5cb.1.0", false),
        ("7k2m9qxw4t1rz5cb.01.1", false),
        ("7k2m9qxw4t1rz5cu.1.1", false),
        ("7k2m9qxw4t1rz5ci.1.1", false),
        ("7k2m9qxw4t1rz5cl.1.1", false),
        ("7k2m9qxw4t1rz5co.1.1", false),
        ("7K2M9QXW4T1RZ5CB.1.1", false),
        ("7k2m9qxw4t1rz5cb.1", false),
        ("", false),
    ] {
        checker.agrees::<JobId>("JobId", json!(text), good);
    }
    for (value, good) in [
        (json!({ "how": "prove" }), true),
        (json!({ "how": "attest", "name": "me" }), true),
        (json!({ "how": "attest" }), false),
        (json!({ "how": "guess" }), false),
    ] {
        checker.agrees::<Settle>("Settle", value, good);
    }
    checker.agrees::<Resize>("Resize", json!({ "rows": 1, "cols": 65_536 }), false);
    checker.agrees::<Acknowledge>("Acknowledge", json!({ "brain": "b", "cursor": u64::MAX }), true);
}

fn at() -> UnixMicros {
    UnixMicros(1_767_225_600_000_001)
}

fn receipt(change: impl FnOnce(&mut Facts)) -> Receipt {
    let mut facts = samples::facts();
    change(&mut facts);
    samples::receipt(facts).unwrap()
}

fn boot() -> BootId {
    BootId::new("b").unwrap()
}

fn straggler() -> Straggler {
    Straggler { pid: 7, name: "sleep".to_owned() }
}

#[test]
fn receipts_of_every_kind_are_what_the_schema_says() {
    let checker = Checker::new();
    let accepts = |receipt: Receipt| checker.accepts("Receipt", &receipt);
    let why = || "why".to_owned();
    for exit in [
        Exit::Exited { code: 255 },
        Exit::Signaled { signal: 9, core_dumped: true },
        Exit::ExecFailed { errno: 2, stage: "execve".to_owned() },
        Exit::NotStarted { why: NotStarted::NoKeeper },
        Exit::NotStarted { why: NotStarted::Cancelled },
        Exit::NotStarted { why: NotStarted::SetUpFailed },
        Exit::Unknown { why: why() },
    ] {
        accepts(receipt(|facts| facts.exit = exit));
    }
    for cause in [
        Cause::OwnEnd,
        Cause::Stop { id: "s".to_owned() },
        Cause::Deadline { after_ms: u64::MAX },
        Cause::CallBudget { after_ms: 1 },
        Cause::OutOfMemory,
        Cause::Stall { idle_ms: 1 },
        Cause::KeeperLost,
        Cause::Reboot,
        Cause::NotStarted,
        Cause::Unknown,
    ] {
        accepts(receipt(|facts| facts.cause = cause));
    }
    for evidence in [
        Evidence::CgroupEmptyAndReaped { leaf: "/l".to_owned(), reaped: 1, at: at() },
        Evidence::AllReaped { reaped: 1, at: at() },
        Evidence::PidNamespaceInitReaped { init_pid: 1, namespace: 1, at: at() },
        Evidence::PidNamespaceInitGone { init_pid: 1, start_time: 1, at: at() },
        Evidence::ClosedCgroupEmptied { leaf: "/l".to_owned(), at: at() },
        Evidence::BootChanged { started_in: boot(), settled_in: boot() },
        Evidence::SandboxDestroyed {
            provider_ref: "p".to_owned(),
            generation: SandboxGeneration(1),
            at: at(),
        },
        Evidence::NeverStarted { claimed_by: "c".to_owned() },
        Evidence::NeverExecuted { at: at() },
    ] {
        let mut receipt = receipt(|_| ());
        receipt.death = evidence;
        accepts(receipt);
    }
    let effective = |rule| Effective { status: 1, rule, stage: Some(0), left_out: vec![1] };
    let stages =
        vec![Stage { program: None, status: 1 }, Stage { program: Some("grep".to_owned()), status: 1 }];
    for rule in [Rule::AllSucceeded, Rule::LastStage, Rule::EarlierStage, Rule::LeftOut, Rule::ShellStatus] {
        let stages = Stages::Captured { stages: stages.clone(), effective: effective(rule) };
        accepts(receipt(|facts| facts.stages = stages));
    }
    accepts(receipt(|facts| facts.stages = Stages::NotCaptured { why: why() }));
    for drain in [
        Drain::Complete,
        Drain::Incomplete { held_by: vec![straggler()] },
        Drain::Lost { why: why() },
        Drain::StorageFailed { why: why() },
    ] {
        let gaps = vec![
            Gap { from: Cursor(1), to: Some(Cursor(2)), cause: "log_limit".to_owned() },
            Gap { from: Cursor(3), to: None, cause: "scribe_lost".to_owned() },
        ];
        let hash = OutputHash::Unknown { why: why() };
        let output = Output {
            final_cursor: Cursor(u64::MAX),
            hash,
            drain,
            gaps,
            stdout_bytes: None,
            stderr_bytes: None,
        };
        accepts(receipt(|facts| facts.output = output));
    }
    for mark in [
        TerminalMutation::Marked { mark: MutationMark(1) },
        TerminalMutation::Unknown { why: why() },
        TerminalMutation::None,
    ] {
        accepts(receipt(|facts| facts.terminal_mutation = mark));
    }
    for boundary in [Boundary::Cgroup2Subreaper, Boundary::Subreaper, Boundary::PidNamespace] {
        for isolation in [Isolation::SameUid, Isolation::OtherUid, Isolation::PidNamespace] {
            accepts(receipt(|facts| {
                facts.boundary = Some(boundary);
                facts.isolation = Some(isolation);
                facts.authority = Authority::Settler { name: "s".to_owned() };
                facts.stops = vec!["s".to_owned()];
                facts.stragglers = vec![straggler()];
            }));
        }
    }
    accepts(receipt(|facts| {
        facts.resources = None;
        facts.started = None;
        facts.exited = None;
        facts.boundary = None;
        facts.isolation = None;
    }));
}

#[test]
fn answers_of_every_kind_are_what_the_schema_says() {
    let checker = Checker::new();
    checker.accepts::<Hello>("Hello", &samples::hello().unwrap());
    checker.accepts::<JobView>("JobView", &samples::running());
    checker.accepts::<JobView>("JobView", &samples::settled().unwrap());
    let bare = JobView {
        key: None,
        run: None,
        arrival: None,
        obligations: Vec::new(),
        keeper_pid: None,
        ..samples::running()
    };
    checker.accepts("JobView", &bare);
    for state in
        [State::Starting, State::Running, State::Stopping, State::Unknown, State::Paused, State::Settled]
    {
        checker.accepts("JobView", &JobView { state, kind: JobKind::Service, ..bare.clone() });
    }
    for arrival in [Arrival::Admitted, Arrival::Existing, Arrival::Removed] {
        checker.accepts("JobView", &JobView { arrival: Some(arrival), removed: true, ..bare.clone() });
    }
    for owed_by in [Party::Warden, Party::Scribe, Party::Settler, Party::Person, Party::Caller] {
        let obligations = vec![Obligation { what: "exit".to_owned(), owed_by, settled_by: None }];
        checker.accepts("JobView", &JobView { obligations, ..bare.clone() });
    }
    let attestation = Attestation {
        job_id: samples::job_id(),
        name: "me".to_owned(),
        at: at(),
        seen: vec![straggler()],
        final_cursor: Cursor(0),
    };
    let set_up_failed =
        SetUpFailed { code: "LIMIT_UNAVAILABLE".to_owned(), message: String::new(), remedy: String::new() };
    let warning = |context| Warning { code: "BUSY_WAIT".to_owned(), message: String::new(), context };
    let full = JobView {
        attempt: Attempt::FIRST.next(),
        attestation: Some(attestation),
        ending: Some(Cause::Stop { id: "s".to_owned() }),
        exit: Some(Exit::Unknown { why: String::new() }),
        progress: Some(Progress { done: 1, total: Some(2), unit: Some("files".to_owned()) }),
        set_up_failed: Some(set_up_failed),
        verdict: Some(VerdictView {
            exit_code: 143,
            code: Some("CANCELLED".to_owned()),
            message: String::new(),
        }),
        warnings: vec![warning(None), warning(Some(json!({ "a": [1] })))],
        ..bare
    };
    checker.accepts("JobView", &full);
    let progress = Some(Progress { done: 1, total: None, unit: None });
    checker.accepts("JobView", &JobView { progress, ..full });
    checker.accepts("JobList", &samples::list());
    checker.accepts("JobList", &JobList { jobs: Vec::new(), unreadable: Vec::new(), next_after: None });
    let other_job = Stale::OtherJob { meant: samples::job_id(), target: samples::job_id().next_attempt() };
    checker.accepts("Stopped", &outlast_wire::verbs::Stopped::Stale { stale: other_job });
    for (_, stopped) in samples::stopped() {
        checker.accepts("Stopped", &stopped);
    }
    for (_, settled) in samples::settled_so() {
        checker.accepts("Settled", &settled);
    }
    for (_, acknowledged) in samples::acknowledged().unwrap() {
        checker.accepts::<Acknowledged>("Acknowledged", &acknowledged);
    }
    checker.accepts("FenceView", &samples::fence_view());
    let nothing = FenceView { generation: Generation(0), sealed: Vec::new(), mutation_mark: MutationMark(0) };
    checker.accepts("FenceView", &nothing);
    checker.accepts("Sealed", &samples::sealed().unwrap());
    for reason in [StopReason::Asked, StopReason::CallBudget { after_ms: 1 }, StopReason::Pause] {
        let stop = Stop { id: "s".to_owned(), force: true, grace: Some(Millis(1)), reason };
        checker.accepts("Stop", &stop);
    }
}

#[test]
fn answers_may_gain_fields_and_have_no_nulls() {
    let checker = Checker::new();
    let mut view = serde_json::to_value(samples::running()).unwrap();
    view["new_in_a_later_runner"] = json!(1);
    assert!(checker.is("JobView", &view));
    view["receipt"] = Value::Null;
    assert!(!checker.is("JobView", &view));
}

#[test]
fn problems_are_what_the_schema_says() {
    let checker = Checker::new();
    for code in codes::CODES {
        let status = StatusCode::from_u16(code.status).unwrap();
        let problem = Problem::new(status, code.code, "what happened");
        checker.accepts("Problem", &problem);
        let example = &checker.document["components"]["examples"][code.code]["value"];
        assert_eq!(example["title"], problem.title, "{}", code.code);
        let more =
            problem.about(samples::job_id()).remedy("do").retryable().context(json!({ "differs": ["cwd"] }));
        checker.accepts("Problem", &more);
    }
    checker.accepts("Problem", &Problem::new(StatusCode::CONFLICT, "OF_A_LATER_RUNNER", ""));
}

/// The codes in the sources of the runner, with the status where it stands beside them.
fn codes_of_the_runner() -> BTreeSet<(String, u16)> {
    let mut found = BTreeSet::new();
    let mut note = |text: &str, before: &str, status: Option<u16>| {
        for part in text.split(before).skip(1) {
            let (status, rest) = match status {
                Some(status) => (status, part),
                None => {
                    let (name, rest) = part.split_once(',').unwrap();
                    let all = (100..600).filter_map(|number| StatusCode::from_u16(number).ok());
                    // `NOT_FOUND` as `404 Not Found` has it.
                    let named = |status: &StatusCode| {
                        let words = status
                            .canonical_reason()
                            .map(|words| words.to_uppercase().replace([' ', '-'], "_"));
                        words.as_deref() == Some(name.trim())
                    };
                    match all.into_iter().find(named) {
                        Some(status) => (status.as_u16(), rest),
                        None => continue,
                    }
                }
            };
            let Some(rest) = rest.trim_start().strip_prefix('"') else { continue };
            let Some((code, _)) = rest.split_once('"') else { continue };
            found.insert((code.to_owned(), status));
        }
    };
    for entry in std::fs::read_dir(file("crates/runner/src")).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        // However the lines are broken.
        let code = text.split("#[cfg(test)]").next().unwrap();
        let code = code.split_whitespace().collect::<Vec<_>>().join(" ").replace("( ", "(");
        let code = code.as_str();
        note(code, "Problem::new(StatusCode::", None);
        note(code, "bad(", Some(422));
        note(code, "conflict(", Some(409));
    }
    let reading = read("crates/hand/src/reading.rs");
    note(reading.split("#[cfg(test)]").next().unwrap(), "refusal(", Some(422));
    found
}

#[test]
fn every_code_of_the_runner_is_known() {
    let known: BTreeSet<(String, u16)> =
        codes::CODES.iter().map(|code| (code.code.to_owned(), code.status)).collect();
    assert_eq!(known.len(), codes::CODES.len());
    assert_eq!(codes_of_the_runner(), known, "crates/openapi/src/codes.rs and the runner's sources differ");
}

#[test]
fn the_page_for_people_leaves_nothing_out() {
    let page = read("docs/HAND-PROTOCOL.md");
    let has = |what: &str| assert!(page.contains(what), "docs/HAND-PROTOCOL.md does not say {what}");
    for operation in OPERATIONS {
        has(&format!("`{} {}`", operation.method, operation.path.replace("{job_id}", "ID")));
        for word in operation.query {
            has(&format!("`{word}`"));
        }
    }
    for code in codes::CODES {
        has(&format!("`{}`", code.code));
    }
    let headers = [
        call::SCOPE,
        call::REQUEST_ID,
        call::EXPIRES_AT,
        call::SANDBOX,
        call::SANDBOX_GENERATION,
        call::GENERATION,
        call::output::NEXT,
        call::output::COMMITTED,
        call::output::TAIL,
        call::output::GAPS,
    ];
    for header in headers {
        has(&format!("`{header}`"));
    }
    let row = |what: &str, value: String| has(&format!("| {what} | {value} |"));
    let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
    row("a body of JSON", mib(limits::JSON_BODY));
    row("standard input in one call", mib(limits::STDIN_BODY));
    row("standard input that is spooled", mib(limits::SPOOL_BODY));
    row(
        "output in one answer",
        format!("{}, {} where `max` is not given", mib(limits::OUTPUT_AT_MOST), mib(limits::OUTPUT_DEFAULT)),
    );
    row("jobs in one answer", format!("{}, 100 where `limit` is not given", limits::LIST_AT_MOST));
    row("all headers of a request", format!("{} KiB", limits::HEADERS >> 10));
    row("requests at once on one HTTP/2 connection", limits::STREAMS.to_string());
    row("request id", format!("{} characters", limits::REQUEST_ID));
    row("id of a stop", format!("{} bytes", limits::STOP_ID));
    row("words of a command, variables, secrets, each", limits::LIST_ITEMS.to_string());
    row("connections at once", outlast_runner::settings::CONNECTIONS.to_string());
    row("jobs that have not ended", outlast_runner::settings::OPEN_JOBS.to_string());
    row("one call waits", format!("{} s", limits::WAIT_AT_MOST.as_secs()));
    row("expiry of a call", format!("{} s ahead", limits::EXPIRY_AT_MOST.as_secs()));
    row("connecting, the look-up of the host included", format!("{} s", limits::CONNECT_WITHIN.as_secs()));
    row("TLS handshake, attaching", format!("{} s", limits::HANDSHAKE_WITHIN.as_secs()));
}
