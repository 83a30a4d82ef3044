//! The checker: the invariants that can be read off a home's files alone, after any fault.
//!
//! The numbers are those of the project's list of invariants; `ARCHITECTURE.md` says which of them concern one machine.

use crate::home::Home;
use crate::job::{Job, name, read_json};
use crate::{clock, fence, files, log, marks};
use outlast_bytelog::DirDisk;
use outlast_core::evidence::{Evidence, Isolation};
use outlast_core::exit::Exit;
use outlast_core::fence::FenceRecord;
use outlast_core::id::{Attempt, JobId, Scope};
use outlast_core::ledger::{Record, StartMark};
use outlast_core::receipt::{Authority, Drain, OutputHash, Receipt, TerminalMutation};
use outlast_core::spec::{Boundary, JobKind};
use outlast_core::status::{JobFacts, Liveness, State, project};
use outlast_core::time::Millis;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;

/// Something that must never be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// The invariant, such as `I12`.
    pub invariant: &'static str,
    /// The job it was found at; absent for the home itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_id: Option<JobId>,
    /// What was found.
    pub what: String,
}

/// What a check found.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// Jobs looked at.
    pub jobs: u64,
    /// Of these, by state.
    pub states: BTreeMap<&'static str, u64>,
    /// Bytes of output whose hash was computed again.
    pub hashed_bytes: u64,
    /// What must never be.
    pub violations: Vec<Violation>,
}

/// A keeper may be this late with its deadline before that is a violation: the machine may be busy.
const DEADLINE_SLACK: Millis = Millis(60_000);

/// Checks every job of a home.
///
/// # Errors
/// Where the home itself cannot be listed; what is wrong with a job is a violation.
pub fn verify(home: &Home) -> io::Result<Report> {
    let mut check = Check { report: Report::default(), marks_seen: BTreeMap::new(), fences: BTreeMap::new() };
    let mut ids = home.jobs()?;
    ids.sort_unstable();
    for id in &ids {
        match home.job(*id) {
            Ok(Some(job)) => {
                check.report.jobs += 1;
                if let Err(error) = check.job(home, &job, &ids) {
                    check.found("readable", Some(*id), format!("it cannot be read: {error}"));
                }
            }
            Ok(None) => check.found("readable", Some(*id), "its folder has no spec".to_owned()),
            Err(error) => check.found("readable", Some(*id), format!("it cannot be read: {error}")),
        }
    }
    check.open_entries(home, &ids)?;
    Ok(check.report)
}

struct Check {
    report: Report,
    marks_seen: BTreeMap<u64, JobId>,
    /// What was fenced of each scope that has a job; `None` where that cannot be read.
    fences: BTreeMap<Scope, Option<FenceRecord>>,
}

impl Check {
    fn found(&mut self, invariant: &'static str, job_id: Option<JobId>, what: String) {
        self.report.violations.push(Violation { invariant, job_id, what });
    }

    fn job(&mut self, home: &Home, job: &Job, all: &[JobId]) -> io::Result<()> {
        let id = job.id();
        let facts = job.look()?;
        let state = project(&facts).state;
        *self.report.states.entry(state.name()).or_default() += 1;
        let spec = job.spec();
        if spec.job_id != id {
            self.found("I13", Some(id), format!("its spec names {}", spec.job_id));
        }
        if spec.digest != spec.work.digest() {
            self.found("I13", Some(id), "its digest is not that of its command".to_owned());
        }
        self.attempts(home, id, all)?;
        self.fence(home, job);
        self.ledger(job, &facts)?;
        if state != State::Settled && state != State::Paused && state != State::Unknown {
            self.deadline(&facts);
        }
        match &facts.receipt {
            Some(receipt) => self.receipt(home, job, &facts, receipt)?,
            None => self.committed(job)?,
        }
        Ok(())
    }

    /// I12: an attempt follows only a death proof (or a person's word).
    fn attempts(&mut self, home: &Home, id: JobId, all: &[JobId]) -> io::Result<()> {
        if id.attempt == Attempt::FIRST {
            return Ok(());
        }
        let before = all
            .iter()
            .filter(|other| other.call == id.call && other.number == id.number && other.attempt < id.attempt);
        for other in before {
            let Some(job) = home.job(*other)? else { continue };
            if job.receipt()?.is_none() && job.attestation()?.is_none() {
                self.found("I12", Some(id), format!("it was admitted while {other} is not proved dead"));
            }
        }
        Ok(())
    }

    /// I2, I4: nothing is admitted under a run after its seal, nor under a generation that the hand does not know of.
    fn fence(&mut self, home: &Home, job: &Job) {
        let spec = job.spec();
        if !self.fences.contains_key(&spec.scope) {
            let record = match fence::look(home, &spec.scope) {
                Ok(record) => Some(record),
                Err(error) => {
                    self.found(
                        "I4",
                        None,
                        format!("the fence of scope {} cannot be read: {error}", spec.scope),
                    );
                    None
                }
            };
            self.fences.insert(spec.scope.clone(), record);
        }
        let Some(Some(fence)) = self.fences.get(&spec.scope) else { return };
        let highest = fence.generation;
        let sealed = spec.run.as_ref().and_then(|run| fence.sealed_at(run));
        if sealed.is_some_and(|at| spec.admitted_at > at) {
            self.found("I2", Some(job.id()), "it was admitted after its run was sealed".to_owned());
        }
        if spec.generation > highest {
            let what =
                format!("its generation {} is higher than the highest seen, {highest}", spec.generation);
            self.found("I4", Some(job.id()), what);
        }
    }

    /// I14, I19, I26: one start; KILL only after TERM or by force; signals only for a reason.
    fn ledger(&mut self, job: &Job, facts: &JobFacts) -> io::Result<()> {
        let text = files::read_small(job.dir(), name::LEDGER)?.unwrap_or_default();
        let mut started: Option<(u32, u64)> = None;
        let (mut termed, mut reason) = (false, false);
        for line in text.split(|byte| *byte == b'\n') {
            let Ok(record) = serde_json::from_slice::<Record>(line) else { continue };
            match record {
                Record::Started { pid, start_time, .. } => {
                    if started.is_some_and(|before| before != (pid, start_time)) {
                        self.found(
                            "I14",
                            Some(job.id()),
                            "two processes were started under one attempt".to_owned(),
                        );
                    }
                    started = Some((pid, start_time));
                }
                Record::StopAccepted { request, .. } => {
                    reason = true;
                    termed |= request.force;
                    if request.job_id != job.id() || request.generation != facts.spec.generation {
                        self.found(
                            "I26",
                            Some(job.id()),
                            format!("stop {} was meant for another job", request.id),
                        );
                    }
                }
                Record::Ending { .. } | Record::Stragglers { .. } => reason = true,
                Record::Signaled { signal: 15, .. } => termed = true,
                Record::Signaled { signal: 9, .. } if !termed => {
                    self.found(
                        "I19",
                        Some(job.id()),
                        "it was killed without TERM and without force".to_owned(),
                    );
                }
                Record::Exited { .. } => reason = true,
                _ => {}
            }
        }
        if termed && !reason && facts.receipt.is_some() {
            self.found("I26", Some(job.id()), "it was signalled for no recorded reason".to_owned());
        }
        if started.is_some()
            && !matches!(facts.start, Some(StartMark::Keeper(_)))
            && facts.boot_id == facts.spec.boot_id
        {
            self.found("I14", Some(job.id()), "it was started without a start mark of its keeper".to_owned());
        }
        Ok(())
    }

    /// I17: past its deadline and grace, a job is being ended.
    fn deadline(&mut self, facts: &JobFacts) {
        let (Some(deadline), Some(StartMark::Keeper(mark))) = (facts.spec.work.limits.deadline, &facts.start)
        else {
            return;
        };
        if deadline.0 == 0 || facts.spec.work.kind == JobKind::Service || facts.ledger.exited.is_some() {
            return;
        }
        let late = mark.mono.plus(deadline).plus(facts.spec.manner.grace).plus(DEADLINE_SLACK);
        if facts.warden == Liveness::Alive && clock::mono_now() > late && facts.ledger.ending.is_none() {
            self.found("I17", Some(facts.spec.job_id), "it runs past its deadline".to_owned());
        }
    }

    fn receipt(&mut self, home: &Home, job: &Job, facts: &JobFacts, receipt: &Receipt) -> io::Result<()> {
        let id = job.id();
        if receipt.job_id != id || receipt.digest != facts.spec.digest || receipt.scope != facts.spec.scope {
            self.found("I13", Some(id), "its receipt is another job's".to_owned());
        }
        self.death(facts, receipt);
        match &receipt.terminal_mutation {
            TerminalMutation::Marked { mark } => {
                if mark.0 == 0 || mark.0 % marks::MARK_BYTES != 0 || mark.0 > marks::latest(home.dir())?.0 {
                    self.found("I3", Some(id), format!("its mark {mark} is none"));
                }
                if let Some(other) = self.marks_seen.insert(mark.0, id) {
                    self.found("I3", Some(id), format!("its mark {mark} is also that of {other}"));
                }
            }
            TerminalMutation::None
                if !matches!(receipt.exit, Exit::NotStarted { .. } | Exit::ExecFailed { .. }) =>
            {
                self.found("I3", Some(id), "it ran and took no mark".to_owned());
            }
            TerminalMutation::None | TerminalMutation::Unknown { .. } => {}
        }
        self.output(job, receipt)
    }

    /// I9, I10, I11: the evidence fits the boundary, and who made it.
    fn death(&mut self, facts: &JobFacts, receipt: &Receipt) {
        let id = Some(receipt.job_id);
        let by_keeper = receipt.authority == Authority::Keeper;
        let mark = match &facts.start {
            Some(StartMark::Keeper(mark)) => Some(mark),
            _ => None,
        };
        let boundary = mark.map(|mark| mark.boundary);
        let fits = match &receipt.death {
            Evidence::CgroupEmptyAndReaped { .. } => {
                by_keeper && boundary == Some(Boundary::Cgroup2Subreaper)
            }
            Evidence::AllReaped { .. } => by_keeper && boundary == Some(Boundary::Subreaper),
            Evidence::PidNamespaceInitReaped { .. } => by_keeper && boundary == Some(Boundary::PidNamespace),
            Evidence::NeverExecuted { .. } => by_keeper && matches!(receipt.exit, Exit::ExecFailed { .. }),
            Evidence::PidNamespaceInitGone { .. } => !by_keeper && boundary == Some(Boundary::PidNamespace),
            Evidence::ClosedCgroupEmptied { .. } => {
                !by_keeper && mark.is_some_and(|mark| mark.isolation != Isolation::SameUid)
            }
            Evidence::BootChanged { started_in, settled_in } => !by_keeper && started_in != settled_in,
            Evidence::NeverStarted { .. } => match (&receipt.exit, &facts.start) {
                // Whoever took the mark said why; whoever wrote the receipt says the same.
                (Exit::NotStarted { why }, Some(StartMark::Settler { why: Some(marked), .. })) => {
                    why == marked
                }
                (Exit::NotStarted { .. }, _) => mark.is_none(),
                _ => false,
            },
            Evidence::SandboxDestroyed { provider_ref, .. } => !provider_ref.is_empty(),
        };
        if !fits {
            let what = format!(
                "{} is no evidence that its authority could make for its boundary",
                receipt.death.name()
            );
            self.found("I9", id, what);
        }
    }

    /// I20, I22, I24: the log holds what the receipt says, byte for byte, gaps stated.
    fn output(&mut self, job: &Job, receipt: &Receipt) -> io::Result<()> {
        let id = Some(job.id());
        let output = &receipt.output;
        let found = outlast_bytelog::inspect(&DirDisk::open(job.path())?, log::log_id(job.id()))
            .map_err(io::Error::other)?;
        if matches!(output.drain, Drain::StorageFailed { .. }) {
            return Ok(());
        }
        if found.end() != output.final_cursor.0 {
            let what = format!("the log ends at {}, the receipt says {}", found.end(), output.final_cursor);
            self.found("I20", id, what);
        }
        let whole = output.gaps.is_empty();
        if found.gaps().is_empty() != whole {
            self.found(
                "I23",
                id,
                format!("the log has {} gaps, the receipt states {}", found.gaps().len(), output.gaps.len()),
            );
        }
        if let OutputHash::Blake3 { value } = &output.hash
            && whole
        {
            let reread = log::reread(job.path()).map_err(io::Error::other)?;
            self.report.hashed_bytes += reread.end.0;
            let again = reread.hasher.map(|hasher| hasher.finalize().to_hex().to_string());
            if again.as_ref() != Some(value) {
                self.found("I21", id, "the log's bytes do not have the hash in the receipt".to_owned());
            }
        }
        Ok(())
    }

    /// I24: no cursor was announced that the log does not reach.
    fn committed(&mut self, job: &Job) -> io::Result<()> {
        let announced = job.committed()?;
        let found = outlast_bytelog::inspect(&DirDisk::open(job.path())?, log::log_id(job.id()))
            .map_err(io::Error::other)?;
        if announced.0 > found.end() {
            let what = format!("cursor {announced} was announced, the log ends at {}", found.end());
            self.found("I24", Some(job.id()), what);
        }
        Ok(())
    }

    /// A lock file without a job, or of a settled one whose keeper is gone, blocks nobody but should not be.
    fn open_entries(&mut self, home: &Home, all: &[JobId]) -> io::Result<()> {
        for entry in files::names(home.open_dir())? {
            let id: Option<JobId> = entry.parse().ok();
            if id.is_none_or(|id| !all.contains(&id))
                && crate::job::liveness(home.open_dir(), &entry)? != Liveness::Alive
            {
                // Admitted or removed since the listing.
                let gone = id.is_none_or(|id| !matches!(home.job(id), Ok(Some(_))));
                if gone {
                    self.found("I10", id, format!("a lock file {entry} is left of no job"));
                }
            }
        }
        let tombstones = files::open_subdir(home.dir(), "tombstones")?;
        for name in files::names(tombstones.as_fd())? {
            if name.ends_with(".json")
                && read_json::<crate::gc::Tombstone>(tombstones.as_fd(), &name).is_err()
            {
                self.found("I13", None, format!("tombstone {name} cannot be read"));
            }
        }
        Ok(())
    }
}
