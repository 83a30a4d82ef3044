//! `outlast job settle`.

use crate::args::job::SettleArgs;
use crate::budget::Budget;
use crate::context::Context;
use crate::done::Done;
use crate::envelope::{Answer, CallFacts, Data};
use crate::failure::{self, Failure};
use crate::result::{Look, Show, job_data};
use crate::settling;
use outlast_core::id::JobId;
use outlast_core::status::State;
use outlast_hand::home::Home;
use outlast_hand::job::Job;
use outlast_hand::settle::{Outcome, Settle, settle};
use outlast_sys::proc_tree::scan_environ_mark;
use serde_json::{Value, json};

/// Processes that are listed before a person gives their word.
const LISTED: usize = 64;

/// Settles a job that lost its keeper, or records a person's word about it.
pub(crate) fn run(context: &Context, args: &SettleArgs) -> Result<Done, Failure> {
    let budget = context.budget(args.budget)?;
    let (home, job) = context.find(&args.job)?;
    let look = Look::at(&job)?;
    if look.facts.receipt.is_some() || look.facts.attestation.is_some() {
        return Ok(settled(context, &home, &job, budget, Some("noop"))?.into());
    }
    if let Some(name) = &args.attest
        && look.state() == State::Unknown
    {
        return attest(context, &home, &job, budget, name, args.yes);
    }
    match settling::within(&home, job.id(), Settle::Asked, budget.ends_at(context.started))? {
        None => Ok(still_at_it(context, &home, &job, budget)?.into()),
        Some(Outcome::Settled(_) | Outcome::Attested(_)) => {
            Ok(settled(context, &home, &job, budget, None)?.into())
        }
        Some(Outcome::KeeperLives) => {
            Err(Failure::new(failure::KEEPER_LIVES, format!("job {} has its keeper", job.id()))
                .fix("nothing was done; stop it with", context.follow_up.job("cancel", job.id(), &[])))
        }
        Some(Outcome::Busy) => Ok(still_at_it(context, &home, &job, budget)?.into()),
        Some(Outcome::StillUnknown { why }) => Err(unproved(context, &job, &why)),
    }
}

fn attest(
    context: &Context,
    home: &Home,
    job: &Job,
    budget: Budget,
    name: &str,
    yes: bool,
) -> Result<Done, Failure> {
    if name.trim().is_empty() || name.len() > 200 || name.chars().any(char::is_control) {
        return Err(Failure::new(
            failure::BAD_ARGUMENT,
            "--attest needs a name of 1 to 200 printable characters",
        ));
    }
    let (processes, unreadable) = carriers(job)?;
    if !yes {
        return Err(unconfirmed(job.id(), &processes, unreadable));
    }
    let how = Settle::Attest { name: name.to_owned() };
    match settle(home, job, &how).map_err(|error| failure::of_system("recording the attestation", &error))? {
        Outcome::Attested(_) | Outcome::Settled(_) => Ok(settled(context, home, job, budget, None)?.into()),
        Outcome::KeeperLives => {
            Err(Failure::new(failure::KEEPER_LIVES, format!("job {} has its keeper", job.id()))
                .fix("nothing was recorded; stop it with", context.follow_up.job("cancel", job.id(), &[])))
        }
        Outcome::Busy => Ok(still_at_it(context, home, job, budget)?.into()),
        Outcome::StillUnknown { why } => Err(unproved(context, job, &why)),
    }
}

/// What a person has to look at before their word is taken. No command that gives it is offered: whoever follows what
/// an answer says without looking would attest what nobody knows.
fn unconfirmed(id: JobId, processes: &[Value], unreadable: u64) -> Failure {
    let mut message = match processes {
        [] => format!("nothing proves that job {id} is dead; no process carries its mark"),
        found => {
            format!("nothing proves that job {id} is dead; processes carry its mark: {}", listed(found))
        }
    };
    if unreadable > 0 {
        message.push_str(&format!("; {unreadable} processes could not be read, which may carry it too"));
    }
    let look = match processes {
        [] => "look first whether anything of its command still runs (`ps -ef`)".to_owned(),
        found => {
            let pids: Vec<String> = found.iter().map(|process| process["pid"].to_string()).collect();
            format!("look first at what these are and end them (`ps -fp {}`)", pids.join(","))
        }
    };
    Failure::new(failure::CONFIRMATION_REQUIRED, message)
        .suggest(format!("nothing was recorded; {look}; who then knows that it is dead adds --yes"))
        .context(json!({
            "_source": "external", "_trusted": false, "processes": processes, "processes_not_readable": unreadable,
        }))
}

/// The processes whose environment names the job, and how many could not be looked at.
fn carriers(job: &Job) -> Result<(Vec<Value>, u64), Failure> {
    let mark = format!("{}={}", crate::context::JOB_VARIABLE, job.id());
    let marked = scan_environ_mark(mark.as_bytes())
        .map_err(|errno| failure::of_system("looking through /proc", &std::io::Error::from(errno)))?;
    let processes = marked
        .found
        .iter()
        .take(LISTED)
        .map(|process| json!({ "pid": process.pid.as_raw_nonzero().get(), "name": String::from_utf8_lossy(process.comm()) }))
        .collect();
    Ok((processes, u64::try_from(marked.unreadable).unwrap_or(u64::MAX)))
}

fn listed(processes: &[Value]) -> String {
    let name = |process: &Value| format!("{} ({})", process["pid"], process["name"].as_str().unwrap_or("?"));
    processes.iter().map(name).collect::<Vec<_>>().join(", ")
}

fn settled(
    context: &Context,
    home: &Home,
    job: &Job,
    budget: Budget,
    effect: Option<&'static str>,
) -> Result<Answer, Failure> {
    let look = Look::at(job)?;
    let mut data = job_data(context, home, job, &look, Show::Counts);
    data.effect = effect;
    let text = format!("{}  {}\n", job.id(), look.projection.because);
    let facts =
        CallFacts { budget_ms: budget.millis(), timeout_ms: look.timeout_ms(), ..CallFacts::default() };
    Ok(Answer { data: Some(Data::Job(Box::new(data))), text: text.into_bytes(), facts, ..Answer::default() })
}

fn still_at_it(context: &Context, home: &Home, job: &Job, budget: Budget) -> Result<Answer, Failure> {
    let answer = settled(context, home, job, budget, None)?;
    let error = Failure::new(failure::INCOMPLETE, "its tree is being ended; its death is not proved yet")
        .fix("go on with", context.follow_up.job("settle", job.id(), &[]));
    Ok(Answer { error: Some(error), text: Vec::new(), ..answer })
}

fn unproved(context: &Context, job: &Job, why: &str) -> Failure {
    Failure::new(failure::DEATH_NOT_PROVED, format!("job {} stays unknown: {why}", job.id())).fix(
        "a restart of the machine proves its death; a person who knows may attest it with",
        context.follow_up.job("settle", job.id(), &["--attest", "NAME"]),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_looked_at_is_said() {
        let id: JobId = "0000000000000000.1.1".parse().unwrap();
        let none = unconfirmed(id, &[], 0);
        assert_eq!(
            none.message,
            "nothing proves that job 0000000000000000.1.1 is dead; no process carries its mark"
        );
        let some = unconfirmed(id, &[json!({ "pid": 7, "name": "sleep" })], 3);
        assert!(some.message.contains("7 (sleep); 3 processes could not be read"), "{}", some.message);
        assert!(some.suggestion.as_deref().unwrap().contains("ps -fp 7"));
        assert_eq!(some.fix_command, None);
    }
}
