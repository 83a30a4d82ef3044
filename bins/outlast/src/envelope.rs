//! The one object that answers a program: `ok`, `data`, `error`, `warnings`, `meta`, always all five.
//!
//! `schemas/envelope.schema.json` describes it, and the tests check real answers against that.

use crate::failure::Failure;
use crate::result::JobData;
use outlast_core::spec::Warning;
use serde::Serialize;
use serde_json::Value;

/// The version of the envelope.
pub(crate) const SCHEMA_VERSION: &str = "1.0.0";

/// The version of this program.
pub(crate) const TOOL_VERSION: &str = env!("CARGO_PKG_VERSION");

/// What a command has to say.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    /// Facts, for programs.
    pub(crate) data: Option<Data>,
    /// Why it is no success.
    pub(crate) error: Option<Failure>,
    /// What the caller should know that stopped nothing.
    pub(crate) warnings: Vec<Warning>,
    /// What a person is shown on standard output.
    pub(crate) text: Vec<u8>,
    /// What a person is shown on standard error, in place of the error's own line.
    pub(crate) note: Option<String>,
    /// Numbers about the call.
    pub(crate) facts: CallFacts,
}

/// The `data` of an answer.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Data {
    /// A job.
    Job(Box<JobData>),
    /// Anything else.
    Other(Value),
}

/// Numbers about a call that its command knows.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CallFacts {
    /// The work's own duration, where an answer hands over a stored result.
    pub(crate) duration_ms: Option<u64>,
    /// The bound of this call; absent where none applies.
    pub(crate) budget_ms: Option<u64>,
    /// The deadline of the whole work; 0 for none.
    pub(crate) timeout_ms: u64,
    /// The result was there already, under the same idempotency key.
    pub(crate) idempotency_hit: bool,
}

impl Answer {
    /// A success with facts.
    pub(crate) fn of(data: Value) -> Answer {
        Answer { data: Some(Data::Other(data)), ..Answer::default() }
    }

    /// The exit code of the call.
    pub(crate) fn exit_code(&self) -> u8 {
        self.error.as_ref().map_or(0, |error| error.exit_code)
    }
}

impl From<Failure> for Answer {
    fn from(failure: Failure) -> Answer {
        Answer { error: Some(failure), ..Answer::default() }
    }
}

#[derive(Serialize)]
struct Envelope<'a> {
    ok: bool,
    data: &'a Option<Data>,
    error: &'a Option<Failure>,
    warnings: &'a [Warning],
    meta: Meta<'a>,
}

#[derive(Serialize)]
struct Meta<'a> {
    exit_code: u8,
    duration_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    budget_ms: Option<u64>,
    timeout_ms: u64,
    schema_version: &'static str,
    tool_version: &'static str,
    command: &'a str,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    idempotency_hit: bool,
}

/// The answer as one line of JSON.
pub(crate) fn to_json(answer: &Answer, command: &str, duration_ms: u64) -> Vec<u8> {
    let exit_code = answer.exit_code();
    let envelope = Envelope {
        ok: exit_code == 0,
        data: &answer.data,
        error: &answer.error,
        warnings: &answer.warnings,
        meta: Meta {
            exit_code,
            duration_ms: answer.facts.duration_ms.unwrap_or(duration_ms),
            budget_ms: answer.facts.budget_ms,
            timeout_ms: answer.facts.timeout_ms,
            schema_version: SCHEMA_VERSION,
            tool_version: TOOL_VERSION,
            command,
            idempotency_hit: answer.facts.idempotency_hit,
        },
    };
    let mut text = Vec::with_capacity(1024);
    // Strings, numbers and maps with string keys into memory: there is nothing in it that could fail.
    if serde_json::to_writer(&mut text, &envelope).is_err() {
        text.clear();
    }
    text.push(b'\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure;
    use serde_json::json;

    fn read(answer: &Answer) -> Value {
        serde_json::from_slice(&to_json(answer, "run", 7)).unwrap()
    }

    #[test]
    fn five_keys_whatever_the_answer() {
        for answer in
            [Answer::default(), Answer::of(json!({"a": 1})), Failure::new(failure::DAMAGED, "x").into()]
        {
            let value = read(&answer);
            let keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
            assert_eq!(keys, ["data", "error", "meta", "ok", "warnings"]);
            assert_eq!(value["ok"], json!(value["meta"]["exit_code"] == 0));
            assert_eq!(value["error"].is_null(), value["ok"] == true);
        }
    }

    #[test]
    fn meta_has_a_budget_where_one_applies() {
        let mut answer = Answer::default();
        assert!(read(&answer)["meta"].get("budget_ms").is_none());
        answer.facts.budget_ms = Some(0);
        assert_eq!(read(&answer)["meta"]["budget_ms"], 0);
        assert_eq!(read(&answer)["meta"]["duration_ms"], 7);
        answer.facts.duration_ms = Some(9);
        assert_eq!(read(&answer)["meta"]["duration_ms"], 9);
    }
}
