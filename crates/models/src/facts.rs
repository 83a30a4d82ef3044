//! Values of the core that models are about.

// A name that is no name is a mistake in a model, and ends its test.
#![expect(clippy::expect_used, reason = "what is written here is valid")]

use outlast_core::exit::{Cause, Exit};
use outlast_core::id::{
    Attempt, ConversationId, Generation, JobId, PrincipalId, RunId, SandboxGeneration, TaskId, TenantId,
};
use outlast_core::receipt::Receipt;
use outlast_core::task::Owner;
use std::num::NonZeroU32;
use std::sync::LazyLock;

const PEOPLE: [&str; 2] = ["ann", "bob"];

pub(crate) fn tenant() -> TenantId {
    TenantId::new("acme").expect("a name")
}

pub(crate) fn conversation() -> ConversationId {
    ConversationId::new("c").expect("a name")
}

pub(crate) fn person(index: usize) -> PrincipalId {
    PrincipalId::new(PEOPLE[index]).expect("a name")
}

pub(crate) fn index_of(person: &PrincipalId) -> usize {
    usize::from(person.as_str() == PEOPLE[1])
}

pub(crate) fn run_of(person: usize) -> RunId {
    RunId::new(PEOPLE[person]).expect("a name")
}

pub(crate) fn task_id(index: usize) -> TaskId {
    TaskId::new(["t0", "t1"][index]).expect("a name")
}

pub(crate) fn token(worker: usize, life: u8) -> outlast_core::id::ClaimToken {
    outlast_core::id::ClaimToken::new(format!("{worker}-{life}")).expect("a name")
}

pub(crate) fn stop_id(text: &str) -> outlast_core::id::StopId {
    outlast_core::id::StopId::new(text).expect("a name")
}

pub(crate) fn attempt(number: usize) -> Attempt {
    let number = u32::try_from(number).ok().and_then(NonZeroU32::new);
    Attempt(number.expect("attempts are few, and from 1"))
}

pub(crate) fn owner(person_index: usize, generation: u8, sandbox: u8) -> Owner {
    Owner {
        tenant: tenant(),
        conversation: conversation(),
        run: run_of(person_index),
        principal: person(person_index),
        generation: Generation(u64::from(generation)),
        sandbox_generation: SandboxGeneration(u64::from(sandbox)),
    }
}

pub(crate) fn job_id(attempt: Attempt) -> JobId {
    format!("0000000000000000.1.{attempt}").parse().expect("a job id")
}

static RECEIPT: LazyLock<Receipt> = LazyLock::new(|| {
    let text = format!(
        r#"{{
            "schema": 1, "job_id": "0000000000000000.1.1", "scope": "s", "digest": "{}", "attempt": 1,
            "generation": 0, "sandbox_generation": 0, "boot_id": "b", "authority": {{"kind": "keeper"}},
            "exit": {{"kind": "exited", "code": 0}}, "cause": {{"kind": "own_end"}},
            "stages": {{"kind": "not_a_pipeline"}}, "death": {{"kind": "all_reaped", "reaped": 1, "at": 1}},
            "output": {{
                "final_cursor": 1, "hash": {{"kind": "unknown", "why": "a model"}}, "drain": {{"kind": "complete"}}
            }},
            "terminal_mutation": {{"kind": "none"}}, "times": {{"admitted": 1, "dead": 1, "settled": 1}}
        }}"#,
        "0".repeat(64)
    );
    serde_json::from_str(&text).expect("a receipt")
});

/// A receipt with one byte of output.
pub(crate) fn receipt(attempt: Attempt, owner: &Owner, exit: Exit, cause: Cause) -> Box<Receipt> {
    let mut receipt = Box::new(RECEIPT.clone());
    receipt.job_id = job_id(attempt);
    receipt.attempt = attempt;
    receipt.generation = owner.generation;
    receipt.sandbox_generation = owner.sandbox_generation;
    receipt.exit = exit;
    receipt.cause = cause;
    receipt
}
