//! `outlast job explain`.

use crate::args::job::ExplainArgs;
use crate::context::Context;
use crate::done::Done;
use crate::envelope::{Answer, CallFacts, Data};
use crate::failure::Failure;
use crate::result::Look;
use crate::settling;
use outlast_core::status::{Obligation, Party};

use outlast_hand::clock;

/// Says why a job is in the state it is in: each obligation, who owes it, and what settled it.
pub(crate) fn run(context: &Context, args: &ExplainArgs) -> Result<Done, Failure> {
    let (home, job) = context.find(&args.job)?;
    settling::if_due(&home, &job, Some(clock::mono_now().plus(settling::IN_PASSING)))?;
    let look = Look::at(&job)?;
    let data = serde_json::json!({
        "job_id": job.id(),
        "state": look.state(),
        "because": look.projection.because,
        "obligations": look.projection.obligations,
        "receipt": look.facts.receipt,
        "attestation": look.facts.attestation,
    });
    let text = format!(
        "{}  {}\n{}\n{}",
        job.id(),
        look.state().name(),
        look.projection.because,
        obligations(&look.projection.obligations)
    );
    Ok(Answer {
        data: Some(Data::Other(data)),
        text: text.into_bytes(),
        facts: CallFacts { timeout_ms: look.timeout_ms(), ..CallFacts::default() },
        ..Answer::default()
    }
    .into())
}

fn obligations(all: &[Obligation]) -> String {
    let mut text = String::new();
    for obligation in all {
        let name = obligation.what.replace('_', " ");
        match &obligation.settled_by {
            Some(receipt) => text.push_str(&format!("  settled  {name:<18} {receipt}\n")),
            None => text.push_str(&format!("  owed     {name:<18} by {}\n", party(obligation.owed_by))),
        }
    }
    text
}

fn party(party: Party) -> &'static str {
    match party {
        Party::Warden => "the keeper's warden",
        Party::Scribe => "the keeper's scribe",
        Party::Settler => "whoever settles it: the next call about the job, or a runner",
        Party::Person => "a person (`outlast job settle --attest`), or the provider of the sandbox",
        Party::Caller => "the caller that admitted it",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_obligation_has_its_line() {
        let owed = Obligation { what: "death_proof".into(), owed_by: Party::Warden, settled_by: None };
        let settled =
            Obligation { what: "exit".into(), owed_by: Party::Warden, settled_by: Some("exit 3".into()) };
        assert_eq!(
            obligations(&[settled, owed]),
            "  settled  exit               exit 3\n  owed     death proof        by the keeper's warden\n"
        );
    }
}
