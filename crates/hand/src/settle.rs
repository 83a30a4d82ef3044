//! What is done about a job that has no keeper: settle it as far as proof goes.
//!
//! A settler is not the parent of anything in the tree. It can end what is left, it can read what was written down, and
//! it can prove a death only by what [`outlast_core::evidence`] lets a settler say. Where that is not enough the job
//! stays unknown, as it must; a person may then attest its death.
//!
//! One settler at a time: it holds the lock that the job's warden held.

use crate::contain;
use crate::home::Home;
use crate::job::{self, Job, name};
use crate::keeper::variable;
use crate::start::never_started;
use crate::{clock, files, log, marks};
use outlast_bytelog::DirDisk;
use outlast_core::evidence::{self, DeathProof, InitLook, NotProven};
use outlast_core::exit::{Cause, Exit, NotStarted};
use outlast_core::id::Cursor;
use outlast_core::ledger::{KeeperMark, LeafMark, StartMark, Straggler};
use outlast_core::pipeline::Stages;
use outlast_core::receipt::{
    Attestation, Authority, Drain, Facts, Output, OutputHash, Receipt, TerminalMutation,
};
use outlast_core::spec::Boundary;
use outlast_core::status::{JobFacts, Liveness, Settling, settling};
use outlast_core::time::Mono;
use outlast_sys::cgroup::Leaf;
use outlast_sys::proc_tree::{Marked, scan_environ_mark};
use outlast_sys::{Errno, Pid, Signal, pidfd};
use rustix::fs::{AtFlags, FlockOperation};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How far a settler may go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settle {
    /// Prove what can be proved, and end nothing: never waits for a process.
    Prove,
    /// Prove what can be proved; end the tree only where its deadline has passed.
    IfDue,
    /// End the tree and settle with what is known.
    Asked,
    /// Record this person's word that the job is dead, where nothing proves it.
    Attest {
        /// Who says so.
        name: String,
    },
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// There is a receipt, old or new.
    Settled(Box<Receipt>),
    /// Its keeper lives, or has yet to come: nothing was done.
    KeeperLives,
    /// Another settler is at it.
    Busy,
    /// Nothing proves its death.
    StillUnknown {
        /// Why not, in one sentence.
        why: String,
    },
    /// A person's word was recorded.
    Attested(Box<Attestation>),
}

/// How long a settler waits for a killed tree to be gone, beyond its grace.
const KILLED_WITHIN: Duration = Duration::from_secs(5);
/// How often it looks.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Settles a job, as far as proof and `how` go. Does nothing where a keeper lives.
///
/// # Errors
/// What the system says; nothing was settled then.
pub fn settle(home: &Home, job: &Job, how: &Settle) -> io::Result<Outcome> {
    let facts = job.look()?;
    if let Some(receipt) = facts.receipt {
        tidy(home, job, false);
        return Ok(Outcome::Settled(Box::new(receipt)));
    }
    match settling(&facts) {
        Settling::NotNeeded => Ok(Outcome::KeeperLives),
        Settling::ClaimStart => {
            if never_started(home.dir(), job.dir(), job.spec(), NotStarted::NoKeeper, SETTLER)?.is_some() {
                contain::remove_left(home.path(), job.spec());
            }
            Ok(match job.receipt()? {
                Some(receipt) => Outcome::Settled(Box::new(receipt)),
                None => Outcome::KeeperLives,
            })
        }
        Settling::ByBootChange | Settling::KeeperLost => {
            let Some(_lock) = elect(home, job)? else { return Ok(Outcome::Busy) };
            // Everything is read again under the lock: another settler may have been first.
            let facts = job.look_under_lock()?;
            if let Some(receipt) = facts.receipt {
                tidy(home, job, true);
                return Ok(Outcome::Settled(Box::new(receipt)));
            }
            settle_lost(home, job, &facts, how)
        }
    }
}

/// Stops a job that no keeper has started yet, by taking its start mark: `true` where nothing was started under it and
/// nothing will be. `false` where a keeper has it; that one listens, and can be asked.
///
/// # Errors
/// What the system says.
pub fn cancel_unstarted(home: &Home, job: &Job) -> io::Result<bool> {
    let cancelled =
        never_started(home.dir(), job.dir(), job.spec(), NotStarted::Cancelled, "a stop")?.is_some();
    if cancelled {
        contain::remove_left(home.path(), job.spec());
    }
    Ok(cancelled)
}

/// How a receipt names who settled it.
const SETTLER: &str = "a settler";

/// Takes the turn of settling, and the lock of the warden that is gone, so that no late one gets it; `None` where
/// somebody else has either.
fn elect(home: &Home, job: &Job) -> io::Result<Option<[OwnedFd; 2]>> {
    let turn = files::open_lock_file(job.dir(), name::SETTLER_LOCK)?;
    if !files::try_lock(&turn, FlockOperation::NonBlockingLockExclusive)? {
        return Ok(None);
    }
    let id = job.id().to_string();
    let lock = files::open_lock_file(home.open_dir(), &id)?;
    // Shared, so that to those who look meanwhile the warden is as gone as it is.
    let free = files::try_lock(&lock, FlockOperation::NonBlockingLockShared)?;
    Ok((free && files::still_named(home.open_dir(), &id, &lock)).then_some([turn, lock]))
}

fn settle_lost(home: &Home, job: &Job, facts: &JobFacts, how: &Settle) -> io::Result<Outcome> {
    let why = match prove(job, facts, how) {
        Ok(proof) => {
            return finish(home, job, facts, proof).map(|receipt| Outcome::Settled(Box::new(receipt)));
        }
        Err(why) => why,
    };
    match how {
        Settle::Prove | Settle::IfDue | Settle::Asked => {
            if facts.attestation.is_some() {
                // A person's word freed its workspace. It keeps no lock, and no group that is empty by now.
                tidy(home, job, true);
            }
            Ok(Outcome::StillUnknown { why: explain(&why) })
        }
        Settle::Attest { name } => {
            let attestation = Attestation {
                job_id: job.id(),
                name: name.clone(),
                at: clock::unix_now(),
                seen: marked(job)?.0,
                final_cursor: log_output(job, &Drain::Lost { why: "its keeper was lost".to_owned() })?
                    .final_cursor,
            };
            files::write_durably(job.dir(), name::ATTESTED, &serde_json::to_vec(&attestation)?)?;
            tidy(home, job, true);
            contain::remove_left(home.path(), job.spec());
            Ok(Outcome::Attested(Box::new(attestation)))
        }
    }
}

fn explain(why: &NotProven) -> String {
    match why {
        NotProven::CouldHaveLeft => {
            "a command of the keeper's own uid could have left its cgroup, and only its lost keeper could have seen that".to_owned()
        }
        NotProven::DescendantsLeft => {
            "it ran under a subreaper alone, and only its lost keeper could have seen the last of its descendants end".to_owned()
        }
        other => other.to_string(),
    }
}

/// Ends the tree where that is due, and proves what a settler can.
fn prove(job: &Job, facts: &JobFacts, how: &Settle) -> Result<DeathProof, NotProven> {
    if let Ok(proof) = evidence::boot_changed(&facts.spec.boot_id, &facts.boot_id) {
        return Ok(proof);
    }
    let Some(StartMark::Keeper(mark)) = &facts.start else { return Err(NotProven::DescendantsLeft) };
    if mark.pid_namespace != job::pid_namespace() {
        return Err(NotProven::OtherNamespace);
    }
    let due = *how == Settle::Asked || (*how != Settle::Prove && past_deadline(facts, mark));
    if due {
        end_tree(job, facts, mark);
    }
    let at = clock::unix_now();
    match mark.boundary {
        Boundary::PidNamespace => {
            let Some((_, init_pid, start_time, _)) = facts.ledger.started else {
                return Err(NotProven::InitLives);
            };
            let looked = pid(init_pid).ok_or(Errno::INVAL).and_then(contain::process_now);
            let Ok(now) = looked else { return Err(NotProven::InitLives) };
            evidence::pid_namespace_init_gone(InitLook { init_pid, start_time, now }, at)
        }
        Boundary::Cgroup2Subreaper => {
            let leaf = mark.leaf.as_ref().and_then(reopen);
            let Some(leaf) = leaf else {
                return Err(NotProven::LeafNotSettled { doing: "opened", why: "it is gone".to_owned() });
            };
            let state = contain::leaf_state(&leaf);
            // An open leaf is left for its processes' sake unless it can be proof.
            if mark.isolation == outlast_core::evidence::Isolation::SameUid {
                return Err(NotProven::CouldHaveLeft);
            }
            let removal = contain::remove_if_empty(&leaf);
            evidence::closed_cgroup_emptied(
                leaf.path().to_string_lossy().into_owned(),
                mark.isolation,
                &state,
                &removal,
                at,
            )
        }
        Boundary::Subreaper => Err(NotProven::DescendantsLeft),
    }
}

fn past_deadline(facts: &JobFacts, mark: &KeeperMark) -> bool {
    let Some(deadline) = facts.spec.work.limits.deadline.filter(|deadline| deadline.0 > 0) else {
        return false;
    };
    clock::mono_now() >= mark.mono.plus(deadline)
}

fn pid(raw: u32) -> Option<Pid> {
    i32::try_from(raw).ok().and_then(Pid::from_raw)
}

fn reopen(mark: &LeafMark) -> Option<Leaf> {
    Leaf::reopen(&place(mark), OsStr::new(&mark.name), mark.id).ok()
}

fn place(mark: &LeafMark) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(&mark.place.0))
}

/// TERM, the grace, KILL: to what the boundary still holds, and to what carries the job's mark.
fn end_tree(job: &Job, facts: &JobFacts, mark: &KeeperMark) {
    let init = match mark.boundary {
        Boundary::PidNamespace => facts.ledger.started.and_then(|(_, raw, start_time, _)| {
            let pid = pid(raw)?;
            let fd = pidfd::open(pid).ok()?;
            (pidfd::start_time(pid) == Some(start_time)).then_some(fd)
        }),
        _ => None,
    };
    let leaf = mark.leaf.as_ref().and_then(reopen);
    let environ_mark = format!("{}={}", variable::JOB_ID, facts.spec.job_id);
    let signal_all = |signal| {
        let in_leaf = leaf.as_ref().and_then(|leaf| leaf.procs().ok()).unwrap_or_default();
        let carry_mark =
            scan_environ_mark(environ_mark.as_bytes()).map(|marked| marked.found).unwrap_or_default();
        for process in &carry_mark {
            if let Ok(fd) = pidfd::open(process.pid)
                && pidfd::start_time(process.pid) == Some(process.start_time)
            {
                let _ = pidfd::send_signal(fd.as_fd(), signal);
            }
        }
        for process in in_leaf {
            if let Ok(fd) = pidfd::open(process)
                && leaf.as_ref().is_some_and(|leaf| leaf.procs().is_ok_and(|procs| procs.contains(&process)))
            {
                let _ = pidfd::send_signal(fd.as_fd(), signal);
            }
        }
    };
    let over = || {
        init.as_ref().is_none_or(|init| pidfd::is_readable(init.as_fd()).unwrap_or(true))
            && leaf.as_ref().is_none_or(|leaf| !leaf.populated().unwrap_or(false))
            && scan_environ_mark(environ_mark.as_bytes())
                .is_ok_and(|marked| marked.found.iter().all(|p| p.is_zombie()))
    };
    signal_all(Signal::TERM);
    signal_all(Signal::CONT);
    // The grace counts from the first settler's TERM: callers with less time than that come again and again.
    let since_first = clock::mono_now().since(first_term(job, mark));
    let grace = facts.spec.manner.grace.0.saturating_sub(since_first.0);
    if wait_until(Duration::from_millis(grace), over) {
        return;
    }
    if let Some(init) = &init {
        let _ = pidfd::send_signal(init.as_fd(), Signal::KILL);
    }
    if let Some(leaf) = &leaf {
        let _ = leaf.kill();
    }
    signal_all(Signal::KILL);
    wait_until(KILLED_WITHIN, over);
}

/// When a settler first sent TERM to this job, in this boot: noted by the first, read by those after it.
fn first_term(job: &Job, mark: &KeeperMark) -> Mono {
    let now = clock::mono_now();
    if files::create_new(job.dir(), name::ENDING, now.0.to_string().as_bytes()).is_ok() {
        return now;
    }
    let noted = files::read_small(job.dir(), name::ENDING).ok().flatten();
    let noted = noted.and_then(|text| String::from_utf8(text).ok()?.parse().ok()).map(Mono);
    // Not before the keeper's own start: whatever stands there then is none of ours.
    noted.filter(|noted| *noted >= mark.mono && *noted <= now).unwrap_or(now)
}

/// Looks until `done`, for `at_most`.
fn wait_until(at_most: Duration, done: impl Fn() -> bool) -> bool {
    let until = Instant::now() + at_most;
    loop {
        if done() {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Joins what is known over the proof, and writes the receipt.
fn finish(home: &Home, job: &Job, facts: &JobFacts, proof: DeathProof) -> io::Result<Receipt> {
    // With the tree dead, a scribe that lives is about to see the end of output: it knows more than the log tells.
    let scribe_gone = || !matches!(job::liveness(job.dir(), name::SCRIBE_LOCK), Ok(Liveness::Alive));
    wait_until(Duration::from_millis(facts.spec.manner.drain.0) + Duration::from_secs(2), scribe_gone);
    let ledger = job.look_under_lock()?.ledger;
    let rebooted = facts.boot_id != facts.spec.boot_id;
    let output = match ledger.drained {
        Some(output) if !rebooted => output,
        _ => log_output(job, &Drain::Lost { why: "its keeper was lost".to_owned() })?,
    };
    let exit = match ledger.exited {
        Some((_, exit)) => exit,
        None if rebooted => Exit::Unknown { why: "the machine was restarted while it ran".to_owned() },
        None => Exit::Unknown { why: "its keeper was lost before the command's end was seen".to_owned() },
    };
    let cause = match (&ledger.ending, rebooted) {
        (Some(cause), _) => cause.clone(),
        (None, true) => Cause::Reboot,
        (None, false) => Cause::KeeperLost,
    };
    let terminal_mutation =
        match marks::take(home.dir(), job.id()).and_then(|mark| marks::sync(home.dir()).map(|()| mark)) {
            Ok(mark) => TerminalMutation::Marked { mark },
            Err(error) => TerminalMutation::Unknown { why: error.to_string() },
        };
    let (boundary, isolation) = match &facts.start {
        Some(StartMark::Keeper(mark)) => (Some(mark.boundary), Some(mark.isolation)),
        _ => (None, None),
    };
    let now = clock::unix_now();
    let receipt = Receipt::assemble(
        job.spec(),
        proof,
        Facts {
            authority: Authority::Settler { name: SETTLER.to_owned() },
            exit,
            cause,
            stages: Stages::NotCaptured { why: "its keeper was lost".to_owned() },
            output,
            terminal_mutation,
            stragglers: ledger.stragglers,
            resources: None,
            started: ledger.started.map(|(at, ..)| at),
            exited: None,
            dead: now,
            settled: now,
            boundary,
            isolation,
            stops: ledger.stops.into_iter().map(|stop| stop.id).collect(),
        },
    );
    let ours = files::write_once(job.dir(), name::RECEIPT, &serde_json::to_vec(&receipt)?, || Ok(()))?;
    tidy(home, job, true);
    if ours { Ok(receipt) } else { job.receipt()?.ok_or_else(|| io::ErrorKind::NotFound.into()) }
}

/// What the log of a lost job holds, its torn tail cut. Its hash is known where nothing of it is missing.
fn log_output(job: &Job, drain: &Drain) -> io::Result<Output> {
    let lock = files::open_lock_file(job.dir(), name::SCRIBE_LOCK)?;
    let disk = DirDisk::open(job.path())?;
    let recovered = if files::try_lock(&lock, FlockOperation::NonBlockingLockExclusive)? {
        outlast_bytelog::recover(&disk, log::log_id(job.id()))
    } else {
        // Somebody still writes it: only look.
        outlast_bytelog::inspect(&disk, log::log_id(job.id()))
    };
    let recovered = recovered.map_err(io::Error::other)?;
    let reread = log::reread(job.path()).map_err(io::Error::other)?;
    let mut gaps: Vec<_> = recovered.gaps().iter().map(log::gap_for_receipt).collect();
    gaps.extend(recovered.damage().as_ref().map(log::gap_for_receipt));
    // What was in the pipe, or read and not written, went with the keeper.
    let hash = OutputHash::Unknown { why: "its keeper was lost before the end of its output".to_owned() };
    Ok(Output {
        final_cursor: Cursor(recovered.end()),
        hash,
        drain: drain.clone(),
        gaps,
        stdout_bytes: Some(reread.stdout_bytes),
        stderr_bytes: Some(reread.stderr_bytes),
    })
}

/// Removes what a keeper would have removed at its end.
fn tidy(home: &Home, job: &Job, lock_is_ours: bool) {
    let id = job.id().to_string();
    let _ = rustix::fs::unlinkat(job.dir(), name::CONTROL, AtFlags::empty());
    if lock_is_ours
        || matches!(job::liveness(home.open_dir(), &id), Ok(Liveness::Gone))
        || elect(home, job).ok().flatten().is_some()
    {
        let _ = rustix::fs::unlinkat(home.open_dir(), id.as_str(), AtFlags::empty());
    }
    let mark = match job.start_mark() {
        Ok(Some(StartMark::Keeper(mark))) => mark,
        // A keeper that was born and started nothing was still in its group when the mark was taken.
        Ok(Some(StartMark::Settler { .. })) => return contain::remove_left(home.path(), job.spec()),
        _ => return,
    };
    for group in &mark.limit_groups {
        let _ = rustix::fs::rmdir(Path::new(OsStr::from_bytes(&group.0)));
    }
    if let Some(leaf) = &mark.leaf {
        if let Some(leaf) = reopen(leaf) {
            let _ = leaf.remove_tree();
        }
        let place = place(leaf);
        let _ = rustix::fs::rmdir(place.join(&id));
        let _ = rustix::fs::rmdir(&place);
    }
}

/// The processes that carry a job's mark in their environment, and how many could not be looked into. What a person is
/// shown before attesting: no proof, since a process may change its environment.
///
/// # Errors
/// Where `/proc` cannot be read.
pub fn marked(job: &Job) -> io::Result<(Vec<Straggler>, usize)> {
    let mark = format!("{}={}", variable::JOB_ID, job.id());
    let Marked { found, unreadable } = scan_environ_mark(mark.as_bytes())?;
    let living = found.iter().filter(|process| !process.is_zombie());
    Ok((living.map(contain::named).collect(), unreadable))
}
