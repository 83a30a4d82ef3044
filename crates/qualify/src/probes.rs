//! The corpus. Each probe is what it observes, what it makes of that, and what people are told of both.
//!
//! A judgement is a plain function of what was seen, so that bad sights can be shown to it in tests: a probe that cannot
//! fail says nothing.

mod ends;
mod identity;
mod output;
mod owner;
mod stdin;
mod tree;

use crate::probe::{Judgement, Probe, fail, partial, pass};
use serde::Serialize;

/// All probes, in the order in which they are done: cheap and telling ones first.
#[must_use]
pub fn all() -> Vec<Probe> {
    [output::PROBES, ends::PROBES, tree::PROBES, owner::PROBES, identity::PROBES, stdin::PROBES].concat()
}

/// What each probe does and what its answer proves, as `docs/QUALIFICATION.md` has it.
#[must_use]
pub fn markdown() -> String {
    all()
        .iter()
        .map(|Probe { id, title, does, proves, proves_not, cases, .. }| {
            let cases = match cases {
                [] => String::new(),
                cases => {
                    format!("\n- Cases: {}", cases.iter().map(u16::to_string).collect::<Vec<_>>().join(", "))
                }
            };
            format!(
                "### {id}: {title}\n\n{does}\n\n- Proves: {proves}\n- Does not prove: {proves_not}{cases}\n"
            )
        })
        .collect::<Vec<_>>()
        .join("\n")
}

/// Output beside what it must be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Bytes {
    expected: u64,
    got: u64,
    same: bool,
    /// What the subject says is missing.
    gap: Option<String>,
    /// How the subject says that the command ended.
    said: String,
}

fn judge_bytes(bytes: &Bytes) -> Judgement {
    let Bytes { expected, got, same, gap, said } = bytes;
    match (same, gap) {
        (true, _) => pass(format!("all {expected} bytes, exact")),
        (false, Some(gap)) if got < expected => {
            partial(format!("{got} of {expected} bytes, and says so: {gap}"))
        }
        (false, _) if got == expected => fail(format!("{got} bytes, but not the same ones ({said})")),
        (false, _) => fail(format!("{got} of {expected} bytes, and does not say so ({said})")),
    }
}

/// A length of time for people.
fn took(ms: u64) -> String {
    if ms < 1000 { format!("{ms} ms") } else { format!("{:.1} s", ms as f64 / 1000.0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Verdict;
    use std::collections::BTreeSet;

    #[test]
    fn every_probe_is_told_apart_and_explained() {
        let probes = all();
        let ids: BTreeSet<&str> = probes.iter().map(|probe| probe.id).collect();
        assert_eq!(ids.len(), probes.len());
        for probe in probes {
            assert!(probe.bound_s > 0, "{}", probe.id);
            for text in [probe.title, probe.does, probe.proves, probe.proves_not] {
                assert!(!text.is_empty(), "{}", probe.id);
            }
        }
    }

    #[test]
    fn the_page_says_what_the_probes_say() {
        let page = include_str!("../../../docs/QUALIFICATION.md");
        let probes = markdown();
        // `OUTLAST_QUALIFY_PAGE=FILE` gives the text to put there.
        if let Some(file) = std::env::var_os("OUTLAST_QUALIFY_PAGE") {
            std::fs::write(file, &probes).unwrap();
        }
        assert!(page.contains(&probes), "docs/QUALIFICATION.md does not have the probes as they are");
    }

    #[test]
    fn output_is_judged_by_its_bytes() {
        let bytes = |got, same, gap: Option<&str>| Bytes {
            expected: 10,
            got,
            same,
            gap: gap.map(str::to_owned),
            said: "ended, exit 0".to_owned(),
        };
        for (seen, verdict) in [
            (bytes(10, true, None), Verdict::Pass),
            (bytes(10, false, None), Verdict::Fail),
            (bytes(0, false, None), Verdict::Fail),
            (bytes(11, false, Some("x")), Verdict::Fail),
            (bytes(4, false, Some("the middle")), Verdict::Partial),
        ] {
            assert_eq!(judge_bytes(&seen).0, verdict, "{seen:?}");
        }
    }
}
