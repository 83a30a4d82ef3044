//! `outlast doctor`.

use crate::args::DoctorArgs;
use crate::context::Context;
use crate::done::Done;
use crate::envelope::Answer;
use crate::failure::{self, Failure};
use crate::size;
use outlast_hand::probe::{Offer, Offers, probe};
use outlast_hand::verify::{Report, verify};

/// Says what this machine offers; with `--verify`, checks every job of the home.
pub(crate) fn run(context: &Context, args: &DoctorArgs) -> Result<Done, Failure> {
    let home = context.home()?;
    let offers = probe(&home);
    let report = match args.verify {
        true => Some(verify(&home).map_err(|error| failure::of_system("checking the home", &error))?),
        false => None,
    };
    let mut answer = Answer::of(serde_json::json!({
        "home": home.path().to_string_lossy(),
        "home_id": home.id(),
        "scope": context.scope,
        "offers": offers,
        "verify": report,
    }));
    answer.text = text(&home.path().to_string_lossy(), &offers, report.as_ref()).into_bytes();
    if let Some(report) = report.filter(|report| !report.violations.is_empty()) {
        let first = &report.violations[0];
        let count = report.violations.len();
        answer.error = Some(
            Failure::new(
                failure::VIOLATIONS_FOUND,
                format!("{count} invariants are violated; {}: {}", first.invariant, first.what),
            )
            .suggest("keep the home as it is and report what `data.verify.violations` lists"),
        );
    }
    Ok(answer.into())
}

fn text(home: &str, offers: &Offers, report: Option<&Report>) -> String {
    let mut text = format!("home      {home}\nkernel    {}\n", offers.kernel);
    let storage = &offers.storage;
    text.push_str(&format!(
        "storage   {}, {}, {}, {} free, a sync takes {} µs\n",
        storage.kind,
        if storage.local { "local" } else { "not known to be local" },
        if storage.durable { "survives a restart" } else { "does not survive a restart" },
        size::humane(storage.free_bytes),
        storage.sync_us
    ));
    let mut list = |title: &str, offers: &[Offer]| {
        for offer in offers {
            let sign = if offer.available { "yes" } else { "no " };
            text.push_str(&format!("{title:<9} {sign}  {:<18} {}\n", offer.name, offer.detail));
        }
    };
    list("contain", &offers.containment);
    list("limit", &offers.limits);
    let sign = |yes: bool| if yes { "yes" } else { "no " };
    text.push_str(&format!("user      {}  another user's uid (--user)\n", sign(offers.other_user)));
    text.push_str(&format!(
        "exit      {}  the exit of a process whose parent was lost\n",
        sign(offers.exit_of_strangers)
    ));
    if let Some(report) = report {
        text.push_str(&format!(
            "verify    {} jobs, {} of output hashed again, {} violations\n",
            report.jobs,
            size::humane(report.hashed_bytes),
            report.violations.len()
        ));
        for violation in &report.violations {
            let job = violation.job_id.map_or_else(|| "home".to_owned(), |id| id.to_string());
            text.push_str(&format!("  {}  {job}  {}\n", violation.invariant, violation.what));
        }
    }
    text
}
