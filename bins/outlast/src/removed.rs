//! The answer about a job that is not kept any more: its key is still answered, by its receipt alone.

use crate::budget::Budget;
use crate::context::Context;
use crate::done::Done;
use crate::envelope::{Answer, CallFacts, Data};
use crate::failure::{self, Failure};
use crate::rfc3339;
use outlast_core::receipt::Receipt;
use outlast_core::status::State;
use outlast_core::verdict::judge;
use outlast_hand::gc::Tombstone;
use serde_json::json;

/// Answers about a job that was asked for by its id and not found: by its tombstone, where there is one.
pub(crate) fn instead(
    context: &Context,
    text: &str,
    budget: Budget,
    not_found: Failure,
) -> Result<Done, Failure> {
    if not_found.code != failure::JOB_NOT_FOUND.code {
        return Err(not_found);
    }
    let Some(tombstone) = context.removed(text)? else { return Err(not_found) };
    let mut done = answer(context, &tombstone, budget);
    done.answer.facts.idempotency_hit = false;
    Ok(done)
}

/// Answers by a tombstone.
pub(crate) fn answer(context: &Context, tombstone: &Tombstone, budget: Budget) -> Done {
    let receipt = &tombstone.receipt;
    let verdict = judge(receipt);
    let error = verdict.code.map(|code| {
        let failure = Failure::with(code, verdict.exit_code, verdict.message.clone());
        if code == "JOB_LOST" {
            failure.suggest("it is not kept any more, so no attempt can follow it; choose another key")
        } else {
            failure
        }
    });
    let note = (error.is_none() && !context.json())
        .then(|| format!("job {} succeeded before; its output is not kept any more", receipt.job_id));
    Answer {
        data: Some(Data::Other(data(receipt))),
        error,
        warnings: Vec::new(),
        text: Vec::new(),
        note,
        facts: CallFacts { budget_ms: budget.millis(), idempotency_hit: true, ..CallFacts::default() },
    }
    .into()
}

fn data(receipt: &Receipt) -> serde_json::Value {
    json!({
        "job_id": receipt.job_id,
        "state": State::Settled,
        "because": "its receipt is all that is kept of it",
        "attempt": receipt.attempt,
        "idempotency_key": receipt.key,
        "started_at": receipt.times.started.map(rfc3339::format),
        "ended_at": rfc3339::format(receipt.times.exited.unwrap_or(receipt.times.settled)),
        "duration_ms": receipt.times.settled.since(receipt.times.admitted),
        "progress": { "done": receipt.output.final_cursor, "unit": "bytes" },
        "exit": receipt.exit,
        "cause": receipt.cause,
        "output": null,
        "output_unavailable": "the job was removed after its keeping time; its receipt is kept",
        "receipt": { "death": receipt.death.name() },
        "attached": {
            "started_at": receipt.times.started.map(rfc3339::format),
            "ended_at": rfc3339::format(receipt.times.exited.unwrap_or(receipt.times.settled)),
        },
        "effect": "noop",
    })
}
