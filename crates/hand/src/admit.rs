//! Admission: a command becomes a job, once, however often it is asked for.
//!
//! No daemon arbitrates. The folder, named by scope, key and attempt, is prepared and synced aside and published by
//! a rename that refuses to replace; who loses that race reads the winner's. While a job of the same workspace is
//! unknown, nothing new is admitted there.

use crate::fence::{self, FenceError};
use crate::gc::Tombstone;
use crate::home::{Home, fill_random};
use crate::job::{self, Job, name};
use crate::settle::{self, Settle};
use crate::{brains, files};
use outlast_core::bytes::hex;
use outlast_core::evidence::Evidence;
use outlast_core::exit::Cause;
use outlast_core::fence::{AttemptAnswer, Attempts, ClosedGeneration, answer_attempt, may_admit_attempt};
use outlast_core::id::{Attempt, BrainId, CallHash, Generation, JobId, Key, RunId, Scope};
use outlast_core::spec::{Manner, SCHEMA, Spec, Warning, Work, workspaces_overlap};
use outlast_core::status::{Liveness, PAUSE_PREFIX, State, project};
use outlast_core::verdict::judge;
use rustix::fs::{AtFlags, Mode};
use std::io;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use thiserror::Error;

/// The largest spec that is admitted, as JSON.
pub const SPEC_LIMIT: usize = 8 << 20;

/// A job that was found may have been removed before it was looked at; so many times in a row, it is damaged.
const VANISHED_AT_MOST: u32 = 100;

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
    /// The run it belongs to, where a brain asks for one.
    pub run: Option<RunId>,
    /// The brain that asks. The job is kept until it has acknowledged receipt and final cursor.
    pub brain: Option<BrainId>,
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
    /// Exactly this attempt of the command under the request's key: found, or admitted where it is the next one and the
    /// one before is proved dead (or attested). Without a key it is an error of the kind `InvalidInput`.
    Attempt(Attempt),
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
    /// The caller's run was sealed.
    #[error("run {run} is sealed: nothing more is admitted under it")]
    SealedRun {
        /// The run.
        run: RunId,
    },
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
    admit_with(home, request, &|_| false, &mut |_| {})
}

/// [`admit`] for a caller that watches keepers: `lives` says of a job whether the caller holds a watch on its keeper that
/// has not closed, so that its lock need not be tried. It must never say so of a keeper that may be gone.
///
/// `published` is called with a new job once it has its name, which is durable when this returns: what is to be ready by
/// then can begin. Nothing that is done about the job may be beyond recall while this has not returned it.
///
/// # Errors
/// As [`admit`].
pub fn admit_with(
    home: &Home,
    request: &Request,
    lives: &dyn Fn(JobId) -> bool,
    published: &mut dyn FnMut(&Job),
) -> Result<Admitted, Refusal> {
    // Held until the job is published: who seals or raises waits for it, or is seen here.
    let pass = fence::pass(home, &request.scope, request.generation, request.run.as_ref())?;
    let call = match (&request.find, &request.key) {
        (Find::NextAttempt(job_id), _) => job_id.call,
        (_, Some(key)) => home.call_hash_of_key(&request.scope, key.as_str()),
        (_, None) => home.call_hash_of_call(&request.work.call_identity(&request.scope)),
    };
    // Each turn of the loop has lost a race, against an admission or a removal that is now visible.
    let mut vanished = 0;
    loop {
        if vanished > VANISHED_AT_MOST {
            let why = format!("a job of call {call} has a folder and no spec; it is kept as it is");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why).into());
        }
        let planned = plan(home, request, call, pass.sealed);
        if pass.sealed
            && let Some(run) = &request.run
            && planned.as_ref().map_or_else(Refusal::is_of_order, Plan::admits)
        {
            return Err(Refusal::SealedRun { run: run.clone() });
        }
        let (id, discarded) = match planned? {
            Plan::Existing(job) => match &request.brain {
                Some(brain) if !brains::claim(home, &job, brain)? => {
                    vanished += 1;
                    continue;
                }
                _ => return Ok(Admitted::Existing(job)),
            },
            Plan::Removed(tombstone) => return Ok(Admitted::Removed(tombstone)),
            Plan::New(id) => (id, None),
            Plan::Afresh { id, discarded } => (id, Some(discarded)),
            Plan::Again => {
                vanished += 1;
                continue;
            }
        };
        workspace_is_known(home, &request.manner.workspace.0, lives)?;
        if id.attempt == Attempt::FIRST || discarded.is_some() {
            remove_checkpoint(home, id)?;
        }
        match publish(home, request, id, discarded, published) {
            Ok(job) => return Ok(Admitted::New(job)),
            Err(Refusal::Storage(error)) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(refusal) => return Err(refusal),
        }
    }
}

impl Refusal {
    /// Whether it is about the order of attempts: under a sealed run no order of them is admitted.
    fn is_of_order(&self) -> bool {
        matches!(self, Refusal::NotProvedDead { .. } | Refusal::NotTheLatest { .. } | Refusal::NoSuchJob(_))
    }
}

impl From<FenceError> for Refusal {
    fn from(error: FenceError) -> Refusal {
        match error {
            FenceError::Closed(closed) => Refusal::ClosedGeneration(closed),
            FenceError::Storage(error) => Refusal::Storage(error),
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
    /// What was found has been removed since: look again.
    Again,
}

impl Plan {
    fn admits(&self) -> bool {
        matches!(self, Plan::New(_) | Plan::Afresh { .. })
    }
}

/// `sealed`: nothing may be admitted, so a job that would be continued answers as it is.
fn plan(home: &Home, request: &Request, call: CallHash, sealed: bool) -> Result<Plan, Refusal> {
    match (request.find, request.key.is_some()) {
        (Find::NextAttempt(named), keyed) => next_attempt(home, named, keyed),
        (Find::Attempt(attempt), true) => exact_attempt(home, request, call, attempt),
        (Find::Attempt(_), false) => {
            let why = "an attempt is named under an idempotency key alone";
            Err(io::Error::new(io::ErrorKind::InvalidInput, why).into())
        }
        (Find::Identical | Find::New, true) => plan_keyed(home, request, call, sealed),
        (Find::Identical | Find::New, false) => plan_by_call(home, request, call, sealed),
    }
}

/// What there is under one key, found without listing: attempts follow each other, and where one is removed, a later one
/// has a tombstone or is there.
struct Known {
    /// The latest job that is here.
    kept: Option<JobId>,
    /// What is kept of the latest that was removed.
    tombstone: Option<Tombstone>,
}

impl Known {
    fn of(home: &Home, call: CallHash, number: NonZeroU32) -> io::Result<Known> {
        let first = JobId { call, number, attempt: Attempt::FIRST };
        let mut kept = home.latest_attempt(first)?;
        // After the jobs: a tombstone is written before its job goes, so one of the two is seen.
        let tombstone = Tombstone::find(home, call)?;
        if let Some(removed) = tombstone.as_ref().map(|tombstone| tombstone.receipt.job_id)
            && kept.is_none_or(|kept| kept < removed)
        {
            // An attempt that was admitted while the one before it was being removed.
            kept = home.latest_attempt(removed.next_attempt())?.or(kept);
        }
        Ok(Known { kept, tombstone })
    }

    /// The tombstone, where no later job is here.
    fn removed_latest(&mut self) -> Option<Tombstone> {
        self.tombstone.take_if(|tombstone| self.kept.is_none_or(|kept| kept < tombstone.receipt.job_id))
    }
}

fn plan_keyed(home: &Home, request: &Request, call: CallHash, sealed: bool) -> Result<Plan, Refusal> {
    let mut known = Known::of(home, call, NonZeroU32::MIN)?;
    if let Some(tombstone) = known.removed_latest() {
        return removed(request, tombstone);
    }
    let Some(latest) = known.kept else {
        return Ok(Plan::New(JobId { call, number: NonZeroU32::MIN, attempt: Attempt::FIRST }));
    };
    let Some(job) = home.job(latest)? else { return Ok(Plan::Again) };
    check_same(latest, &job.spec().work, &request.work)?;
    Ok(if !sealed && continues(&job)? { continuation(&job, request) } else { Plan::Existing(job) })
}

fn exact_attempt(home: &Home, request: &Request, call: CallHash, attempt: Attempt) -> Result<Plan, Refusal> {
    let asked = JobId { call, number: NonZeroU32::MIN, attempt };
    let known = Known::of(home, call, NonZeroU32::MIN)?;
    if let Some(job) = home.job(asked)? {
        check_same(asked, &job.spec().work, &request.work)?;
        return Ok(Plan::Existing(job));
    }
    let latest = match known.kept.map(|kept| home.job(kept)).transpose()? {
        None => None,
        Some(Some(job)) => Some(job),
        Some(None) => return Ok(Plan::Again),
    };
    if let Some(job) = &latest {
        check_same(job.id(), &job.spec().work, &request.work)?;
    }
    let facts = Attempts {
        kept: latest.as_ref().map(|job| job.id().attempt),
        kept_is_over: latest.as_ref().map(is_over).transpose()?.unwrap_or(false),
        asked_is_kept: false,
        removed: known.tombstone.as_ref().map(|tombstone| tombstone.receipt.job_id.attempt),
    };
    let named = |attempt| JobId { attempt, ..asked };
    match (answer_attempt(attempt, facts), known.tombstone) {
        (AttemptAnswer::Removed, Some(tombstone)) => removed(request, tombstone),
        (AttemptAnswer::Admit, tombstone) => {
            if let Some(tombstone) = tombstone {
                check_same(tombstone.receipt.job_id, &tombstone.work, &request.work)?;
            }
            Ok(match latest {
                Some(job) if request.work.resume && job.id().next_attempt() == asked => {
                    continuation(&job, request)
                }
                _ => Plan::New(asked),
            })
        }
        (AttemptAnswer::NotProvedDead(latest), _) => Err(Refusal::NotProvedDead { job_id: named(latest) }),
        (AttemptAnswer::NotTheLatest(latest), _) => {
            Err(Refusal::NotTheLatest { job_id: asked, latest: named(latest) })
        }
        // Nothing of this key is here, so a later attempt follows none.
        (AttemptAnswer::FollowsNothing, _) => Err(Refusal::NoSuchJob(named(Attempt::FIRST))),
        // Neither was there a moment ago.
        (AttemptAnswer::Existing | AttemptAnswer::Removed, _) => Ok(Plan::Again),
    }
}

fn removed(request: &Request, tombstone: Tombstone) -> Result<Plan, Refusal> {
    check_same(tombstone.receipt.job_id, &tombstone.work, &request.work)?;
    Ok(Plan::Removed(Box::new(tombstone)))
}

/// A call that is its own identity. Its numbers have gaps, so they are listed.
fn plan_by_call(home: &Home, request: &Request, call: CallHash, sealed: bool) -> Result<Plan, Refusal> {
    let next_call = |number: NonZeroU32| {
        Plan::New(JobId { call, number: number.saturating_add(1), attempt: Attempt::FIRST })
    };
    let Some(latest) = home.jobs_of_call(call)?.last().copied() else {
        let first = Plan::New(JobId { call, number: NonZeroU32::MIN, attempt: Attempt::FIRST });
        return Ok(crate::gc::last_number(home, call)?.map_or(first, next_call));
    };
    let Some(job) = home.job(latest)? else {
        // A folder that has lost its spec keeps its number; one that was removed has left a note of it.
        return Ok(if home.has_job(latest)? { next_call(latest.number) } else { Plan::Again });
    };
    if request.find == Find::New {
        return Ok(next_call(latest.number));
    }
    Ok(match answer_of(&job)? {
        Answer::StillOwed => Plan::Existing(job),
        Answer::ContinuesFromSave if sealed => Plan::Existing(job),
        Answer::ContinuesFromSave => continuation(&job, request),
        Answer::Given => next_call(latest.number),
    })
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

fn next_attempt(home: &Home, named: JobId, keyed: bool) -> Result<Plan, Refusal> {
    let latest = if keyed {
        let mut known = Known::of(home, named.call, named.number)?;
        known.removed_latest().map(|tombstone| tombstone.receipt.job_id).or(known.kept)
    } else {
        home.jobs_of_call(named.call)?.into_iter().filter(|id| id.number == named.number).max()
    };
    let Some(latest) = latest else { return Err(Refusal::NoSuchJob(named)) };
    if latest != named {
        return Err(Refusal::NotTheLatest { job_id: named, latest });
    }
    let job = home.job(latest)?.ok_or(Refusal::NoSuchJob(named))?;
    let next = latest.next_attempt();
    match may_admit_attempt(next.attempt, Some(latest.attempt), is_over(&job)?) {
        true => Ok(Plan::New(next)),
        false => Err(Refusal::NotProvedDead { job_id: latest }),
    }
}

/// Whether a job is proved dead, or a person gave their word for it.
fn is_over(job: &Job) -> io::Result<bool> {
    Ok(job.receipt()?.is_some() || job.attestation()?.is_some())
}

/// Refuses while a job in the same workspace is unknown. Every job with a keeper has a lock file in one folder, so
/// this costs an open and a lock each, and more only for those whose lock is free.
fn workspace_is_known(home: &Home, workspace: &[u8], lives: &dyn Fn(JobId) -> bool) -> Result<(), Refusal> {
    for entry in files::names(home.open_dir())? {
        let Ok(id) = entry.parse::<JobId>() else { continue };
        if lives(id) || job::liveness(home.open_dir(), &entry)? != Liveness::Gone {
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

fn publish(
    home: &Home,
    request: &Request,
    id: JobId,
    discarded: Option<JobId>,
    published: &mut dyn FnMut(&Job),
) -> Result<Job, Refusal> {
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
        run: request.run.clone(),
        brain: request.brain.clone(),
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
    let tmp = home.tmp_dir()?;
    rustix::fs::mkdirat(tmp, aside.as_str(), Mode::RWXU).map_err(io::Error::from)?;
    let prepared = prepare(tmp, &aside, &text, request.stdin.as_deref()).and_then(|dir| {
        files::rename_new(tmp, &aside, home.jobs_dir(), &id.to_string())?;
        Ok(dir)
    });
    let dir = match prepared {
        Ok(dir) => dir,
        Err(error) => {
            if let (Some(spooled), Ok(dir)) = (&request.stdin, files::open_subdir(tmp, &aside)) {
                // The loser of a race may try again and needs it where it was.
                let _ = rustix::fs::renameat(&dir, name::STDIN, tmp, spooled.as_str());
            }
            crate::gc::remove_tree(tmp, &aside);
            return Err(error.into());
        }
    };
    let job = Job::published(home, spec, dir)?;
    published(&job);
    rustix::fs::fsync(home.jobs_dir()).map_err(io::Error::from)?;
    Ok(job)
}

/// Writes the folder of a job, durable but for its name, and gives it open. The claim of the brain that admits it is in
/// its spec.
fn prepare(tmp: BorrowedFd<'_>, aside: &str, spec: &[u8], spooled: Option<&str>) -> io::Result<OwnedFd> {
    let dir = files::open_subdir(tmp, aside)?;
    files::create_new(dir.as_fd(), name::SPEC, spec)?.sync_all()?;
    if let Some(spooled) = spooled {
        rustix::fs::renameat(tmp, spooled, &dir, name::STDIN)?;
    }
    rustix::fs::fsync(&dir)?;
    Ok(dir)
}

/// A first attempt begins without what an earlier call of the same number may have left.
fn remove_checkpoint(home: &Home, id: JobId) -> Result<(), Refusal> {
    let place = format!("checkpoints/{}", id.call_name());
    let there = rustix::fs::statat(home.dir(), place.as_str(), AtFlags::SYMLINK_NOFOLLOW);
    if matches!(there, Err(rustix::io::Errno::NOENT)) {
        return Ok(());
    }
    let checkpoints = files::open_subdir(home.dir(), "checkpoints")?;
    crate::gc::remove_tree(checkpoints.as_fd(), &id.call_name());
    Ok(())
}
