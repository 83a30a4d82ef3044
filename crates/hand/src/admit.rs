//! Admission: a command becomes a job, once, however often it is asked for.
//!
//! No daemon arbitrates. The folder, named by scope, key and attempt, is prepared and synced aside and published by
//! a rename that refuses to replace; who loses that race reads the winner's. While a job of the same workspace is
//! unknown, nothing new is admitted there.

use crate::files;
use crate::gc::Tombstone;
use crate::home::{Home, fill_random};
use crate::job::{self, Job, name};
use crate::settle::{self, Settle};
use outlast_core::bytes::hex;
use outlast_core::evidence::Evidence;
use outlast_core::exit::Cause;
use outlast_core::fence::{ClosedGeneration, check_admission, may_admit_attempt};
use outlast_core::id::{Attempt, CallHash, Generation, JobId, Key, Scope};
use outlast_core::spec::{Manner, SCHEMA, Spec, Warning, Work, workspaces_overlap};
use outlast_core::status::{Liveness, PAUSE_PREFIX, State, project};
use outlast_core::verdict::judge;
use rustix::fs::{AtFlags, FlockOperation};
use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, OwnedFd};
use thiserror::Error;

/// The largest spec that is admitted, as JSON.
pub const SPEC_LIMIT: usize = 8 << 20;

/// What a caller wants to run.
#[derive(Debug, Clone)]
pub struct Request {
    /// The circle of callers that may find it.
    pub scope: Scope,
    /// Its identity, where the caller chose one.
    pub key: Option<Key>,
    /// The command.
    pub work: Work,
    /// How a keeper is to run it.
    pub manner: Manner,
    /// The file below the home's `tmp` that standard input was spooled and synced into.
    pub stdin: Option<String>,
    /// The generation of the caller.
    pub generation: Generation,
    /// Which job will do.
    pub find: Find,
    /// The version of the program that asks.
    pub tool_version: String,
}

/// Which job answers a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Find {
    /// The identical one if it runs or its result was not handed over; else a new one.
    Identical,
    /// A new one in any case (a key still names one job only).
    New,
    /// The attempt after this one.
    NextAttempt(JobId),
}

/// The job that answers a request.
#[derive(Debug)]
pub enum Admitted {
    /// It was admitted just now: launch a keeper.
    New(Job),
    /// It was there.
    Existing(Job),
    /// It was there, has been removed since, and left its receipt.
    Removed(Box<Tombstone>),
}

/// Why nothing was admitted.
#[derive(Debug, Error)]
pub enum Refusal {
    /// The key names another command.
    #[error("the idempotency key belongs to job {job_id}, whose command differs in: {}", .differs.join(", "))]
    Conflict {
        /// The job that has the key.
        job_id: JobId,
        /// What differs.
        differs: Vec<&'static str>,
    },
    /// A job of the same workspace is unknown.
    #[error(
        "job {job_id} in the same workspace is unknown: its keeper was lost, and it may still be writing"
    )]
    WorkspaceUnknown {
        /// That job.
        job_id: JobId,
    },
    /// The caller's generation was closed.
    #[error(transparent)]
    ClosedGeneration(#[from] ClosedGeneration),
    /// The attempt before is not proved dead.
    #[error("job {job_id} is not proved dead, so no later attempt may start")]
    NotProvedDead {
        /// That job.
        job_id: JobId,
    },
    /// The attempt asked for is not the next one.
    #[error("job {job_id} is not the latest attempt: {latest} is")]
    NotTheLatest {
        /// The attempt that was named.
        job_id: JobId,
        /// The latest.
        latest: JobId,
    },
    /// There is no such job.
    #[error("there is no job {0} here")]
    NoSuchJob(JobId),
    /// Something is larger than allowed.
    #[error("{what} is larger than the limit of {limit} bytes")]
    TooLarge {
        /// What.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// The home cannot be read or written.
    #[error("the home for jobs cannot be used")]
    Storage(#[from] io::Error),
}

/// Admits a command, or finds the job that it already is.
///
/// When this returns [`Admitted::New`], the admission is durable and nothing has been started.
///
/// # Errors
/// [`Refusal`]; nothing was admitted then.
pub fn admit(home: &Home, request: &Request) -> Result<Admitted, Refusal> {
    let _fence = pass_fence(home, &request.scope, request.generation)?;
    let call = match (&request.find, &request.key) {
        (Find::NextAttempt(job_id), _) => job_id.call,
        (_, Some(key)) => home.call_hash_of_key(&request.scope, key.as_str()),
        (_, None) => home.call_hash_of_call(&request.work.call_identity(&request.scope)),
    };
    // Each turn of the loop has lost a race against an admission that is now visible.
    loop {
        let plan = plan(home, request, call)?;
        let (id, discarded) = match plan {
            Plan::Existing(job) => return Ok(Admitted::Existing(job)),
            Plan::Removed(tombstone) => return Ok(Admitted::Removed(tombstone)),
            Plan::New(id) => (id, None),
            Plan::Afresh { id, discarded } => (id, Some(discarded)),
        };
        workspace_is_known(home, &request.manner.workspace.0)?;
        if id.attempt == Attempt::FIRST || discarded.is_some() {
            remove_checkpoint(home, id)?;
        }
        match publish(home, request, id, discarded) {
            Ok(job) => return Ok(Admitted::New(job)),
            Err(Refusal::Storage(error)) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(refusal) => return Err(refusal),
        }
    }
}

#[expect(clippy::large_enum_variant, reason = "one of it exists, for a moment")]
enum Plan {
    New(JobId),
    /// New, and what the earlier attempt saved does not fit it.
    Afresh {
        id: JobId,
        discarded: JobId,
    },
    Existing(Job),
    Removed(Box<Tombstone>),
}

fn plan(home: &Home, request: &Request, call: CallHash) -> Result<Plan, Refusal> {
    let jobs = home.jobs_of_call(call)?;
    if let Find::NextAttempt(named) = request.find {
        return next_attempt(home, &jobs, named);
    }
    let Some(latest) = jobs.last().copied() else {
        if request.key.is_some()
            && let Some(tombstone) = Tombstone::find(home, call)?
        {
            check_same(tombstone.receipt.job_id, &tombstone.work, &request.work)?;
            return Ok(Plan::Removed(Box::new(tombstone)));
        }
        let number = match request.key {
            Some(_) => NonZeroU32::MIN,
            None => {
                crate::gc::last_number(home, call)?.map_or(NonZeroU32::MIN, |last| last.saturating_add(1))
            }
        };
        return Ok(Plan::New(JobId { call, number, attempt: Attempt::FIRST }));
    };
    // Removed between the listing and the opening: the next turn sees it gone.
    let Some(job) = home.job(latest)? else { return plan_after_removal(home, request, call) };
    if request.key.is_some() {
        check_same(latest, &job.spec().work, &request.work)?;
        return Ok(if continues(&job)? { continuation(&job, request) } else { Plan::Existing(job) });
    }
    let next_call = JobId { call, number: latest.number.saturating_add(1), attempt: Attempt::FIRST };
    if request.find == Find::New {
        return Ok(Plan::New(next_call));
    }
    Ok(match answer_of(&job)? {
        Answer::StillOwed => Plan::Existing(job),
        Answer::ContinuesFromSave => continuation(&job, request),
        Answer::Given => Plan::New(next_call),
    })
}

fn plan_after_removal(home: &Home, request: &Request, call: CallHash) -> Result<Plan, Refusal> {
    let jobs = home.jobs_of_call(call)?;
    match jobs.last() {
        Some(latest) if home.job(*latest)?.is_some() => plan(home, request, call),
        Some(latest) => Ok(Plan::New(JobId {
            number: latest.number.saturating_add(1),
            attempt: Attempt::FIRST,
            ..*latest
        })),
        None => plan(home, request, call),
    }
}

/// The attempt that goes on from what this one saved, if it is the same program that saved it.
fn continuation(job: &Job, request: &Request) -> Plan {
    let id = job.id().next_attempt();
    let same = job.spec().manner.program == request.manner.program
        && job.spec().tool_version == request.tool_version;
    if same { Plan::New(id) } else { Plan::Afresh { id, discarded: job.id() } }
}

/// Gives up what a resumable command has saved: no attempt continues from it, and the identical call begins anew.
///
/// # Errors
/// What the system says.
pub fn discard_save(home: &Home, job: &Job) -> io::Result<()> {
    match files::create_new(job.dir(), name::DISCARDED, b"") {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    rustix::fs::fsync(job.dir())?;
    let checkpoints = files::open_subdir(home.dir(), "checkpoints")?;
    crate::gc::remove_tree(checkpoints.as_fd(), &job.id().call_name());
    Ok(())
}

fn check_same(job_id: JobId, there: &Work, asked: &Work) -> Result<(), Refusal> {
    match there.differences(asked) {
        differs if differs.is_empty() => Ok(()),
        differs => Err(Refusal::Conflict { job_id, differs }),
    }
}

/// Whether the identical call is still owed this job's result.
enum Answer {
    /// It runs, is unknown, or has a result that was never handed over.
    StillOwed,
    /// It saved its work and ended before it was done: the identical call goes on from there.
    ContinuesFromSave,
    /// It was answered, or cancelled.
    Given,
}

fn answer_of(job: &Job) -> Result<Answer, Refusal> {
    if continues(job)? {
        return Ok(Answer::ContinuesFromSave);
    }
    let Some(receipt) = job.receipt()? else {
        return Ok(if job.attestation()?.is_some() { Answer::Given } else { Answer::StillOwed });
    };
    if job.save_is_discarded() {
        return Ok(Answer::Given);
    }
    if let Cause::Stop { id } = &receipt.cause
        && !id.starts_with(PAUSE_PREFIX)
    {
        return Ok(Answer::Given);
    }
    Ok(if job.is_handed_over() { Answer::Given } else { Answer::StillOwed })
}

/// Whether the identical call is the next attempt of this job: it is resumable, proved dead, and ended neither done
/// nor by somebody's stop.
fn continues(job: &Job) -> Result<bool, Refusal> {
    if !job.spec().work.resume || job.save_is_discarded() {
        return Ok(false);
    }
    let Some(receipt) = job.receipt()? else {
        // A person's word frees the key: the next attempt goes on from the save.
        return Ok(job.attestation()?.is_some());
    };
    let stopped = matches!(&receipt.cause, Cause::Stop { id } if !id.starts_with(PAUSE_PREFIX));
    let saved_nothing = matches!(receipt.death, Evidence::NeverExecuted { .. });
    Ok(!stopped && !saved_nothing && judge(&receipt).exit_code != 0)
}

fn next_attempt(home: &Home, jobs: &[JobId], named: JobId) -> Result<Plan, Refusal> {
    let latest = jobs.iter().filter(|id| id.number == named.number).max().copied();
    let Some(latest) = latest else { return Err(Refusal::NoSuchJob(named)) };
    if latest != named {
        return Err(Refusal::NotTheLatest { job_id: named, latest });
    }
    let job = home.job(latest)?.ok_or(Refusal::NoSuchJob(named))?;
    let proved = job.receipt()?.is_some() || job.attestation()?.is_some();
    let next = latest.next_attempt();
    match may_admit_attempt(next.attempt, Some(latest.attempt), proved) {
        true => Ok(Plan::New(next)),
        false => Err(Refusal::NotProvedDead { job_id: latest }),
    }
}

/// Refuses while a job in the same workspace is unknown. Every job with a keeper has a lock file in one folder, so
/// this costs an open and a lock each, and more only for those whose lock is free.
fn workspace_is_known(home: &Home, workspace: &[u8]) -> Result<(), Refusal> {
    for entry in files::names(home.open_dir())? {
        let Ok(id) = entry.parse::<JobId>() else { continue };
        if job::liveness(home.open_dir(), &entry)? != Liveness::Gone {
            continue;
        }
        let Some(job) = home.job(id)? else {
            let _ = rustix::fs::unlinkat(home.open_dir(), &entry, AtFlags::empty());
            continue;
        };
        if !workspaces_overlap(&job.spec().manner.workspace.0, workspace) {
            continue;
        }
        settle::settle(home, &job, &Settle::Prove)?;
        let facts = job.look()?;
        if project(&facts).state == State::Unknown && facts.attestation.is_none() {
            return Err(Refusal::WorkspaceUnknown { job_id: id });
        }
    }
    Ok(())
}

fn publish(home: &Home, request: &Request, id: JobId, discarded: Option<JobId>) -> Result<Job, Refusal> {
    let mut manner = request.manner.clone();
    if let Some(job_id) = discarded {
        manner.warnings.push(Warning {
            code: "CHECKPOINT_DISCARDED".to_owned(),
            message: format!(
                "what attempt {} saved is another version's; the work begins anew",
                job_id.attempt
            ),
            context: Some(serde_json::json!({ "job_id": job_id })),
        });
    }
    let spec = Spec {
        schema: SCHEMA,
        tool_version: request.tool_version.clone(),
        job_id: id,
        scope: request.scope.clone(),
        key: request.key.clone(),
        digest: request.work.digest(),
        generation: request.generation,
        sandbox_generation: home.sandbox_generation(),
        admitted_at: crate::clock::unix_now(),
        boot_id: job::boot_id()?,
        work: request.work.clone(),
        manner,
    };
    let text = serde_json::to_vec(&spec).map_err(io::Error::from)?;
    if text.len() > SPEC_LIMIT {
        return Err(Refusal::TooLarge { what: "the command with its environment", limit: SPEC_LIMIT });
    }
    let mut random = [0; 12];
    fill_random(&mut random)?;
    let aside = hex(&random);
    let tmp = files::open_subdir(home.dir(), "tmp")?;
    files::ensure_dir(tmp.as_fd(), &aside)?;
    let published = prepare(&tmp, &aside, &text, request.stdin.as_deref())
        .and_then(|()| files::rename_new(tmp.as_fd(), &aside, home.jobs_dir(), &id.to_string()));
    if let Err(error) = published {
        if let (Some(spooled), Ok(dir)) = (&request.stdin, files::open_subdir(tmp.as_fd(), &aside)) {
            // The loser of a race may try again and needs it where it was.
            let _ = rustix::fs::renameat(&dir, name::STDIN, &tmp, spooled.as_str());
        }
        crate::gc::remove_tree(tmp.as_fd(), &aside);
        return Err(error.into());
    }
    rustix::fs::fsync(home.jobs_dir()).map_err(io::Error::from)?;
    home.job(id)?.ok_or(Refusal::NoSuchJob(id))
}

fn prepare(tmp: &OwnedFd, aside: &str, spec: &[u8], spooled: Option<&str>) -> io::Result<()> {
    let dir = files::open_subdir(tmp.as_fd(), aside)?;
    files::create_new(dir.as_fd(), name::SPEC, spec)?.sync_all()?;
    if let Some(spooled) = spooled {
        rustix::fs::renameat(tmp, spooled, &dir, name::STDIN)?;
    }
    Ok(rustix::fs::fsync(&dir)?)
}

/// A first attempt begins without what an earlier call of the same number may have left.
fn remove_checkpoint(home: &Home, id: JobId) -> Result<(), Refusal> {
    let checkpoints = files::open_subdir(home.dir(), "checkpoints")?;
    crate::gc::remove_tree(checkpoints.as_fd(), &id.call_name());
    Ok(())
}

/// Takes the admission side of the fence, to be held until the job is published, and raises the highest generation
/// where the caller brings a higher one.
fn pass_fence(home: &Home, scope: &Scope, generation: Generation) -> Result<OwnedFd, Refusal> {
    let lock = files::open_lock_file(home.dir(), "fence.lock")?;
    let read = || -> io::Result<BTreeMap<String, Generation>> {
        Ok(job::read_json(home.dir(), "fence.json")?.unwrap_or_default())
    };
    rustix::fs::flock(&lock, FlockOperation::LockShared).map_err(io::Error::from)?;
    let highest = read()?.get(scope.as_str()).copied().unwrap_or_default();
    if check_admission(generation, highest)? > highest {
        // A lock cannot be raised in one step, so all is read again under the exclusive one.
        rustix::fs::flock(&lock, FlockOperation::LockExclusive).map_err(io::Error::from)?;
        let mut all = read()?;
        let highest = all.get(scope.as_str()).copied().unwrap_or_default();
        all.insert(scope.as_str().to_owned(), check_admission(generation, highest)?);
        files::write_durably(home.dir(), "fence.json", &serde_json::to_vec(&all).map_err(io::Error::from)?)?;
    }
    Ok(lock)
}
