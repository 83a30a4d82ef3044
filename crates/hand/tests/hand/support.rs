//! Ground for tests without keepers: a home of its own, and jobs that are settled as never started.

use outlast_core::bytes::Bytes;
use outlast_core::id::{Attempt, BrainId, Generation, JobId, Key, RunId, Scope};
use outlast_core::receipt::Attestation;
use outlast_core::spec::{Capture, Command, JobKind, Limits, Manner, Stdin, Work};
use outlast_core::time::{Millis, UnixMicros};
use outlast_hand::admit::{Admitted, Find, Refusal, Request, admit};
use outlast_hand::home::Home;
use outlast_hand::job::Job;
use outlast_hand::{clock, settle};
use std::num::NonZeroU32;

pub(crate) struct Ground {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) home: Home,
}

impl Ground {
    pub(crate) fn new() -> Ground {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::open(&folder.path().join("home")).unwrap();
        Ground { folder, home }
    }

    pub(crate) fn ask(&self, key: Option<&str>) -> Request {
        let cwd = Bytes::from("/");
        Request {
            scope: scope("s"),
            key: key.map(|key| Key::new(key).unwrap()),
            work: Work {
                command: Command::Argv(vec![Bytes::from("true")]),
                cwd: cwd.clone(),
                env: Default::default(),
                secrets: Default::default(),
                stdin: Stdin::Null,
                limits: Limits {
                    deadline: None,
                    idle: None,
                    log_bytes: None,
                    pids: None,
                    memory_bytes: None,
                },
                kind: JobKind::Command,
                merge: false,
                tty: false,
                resume: false,
                containment: None,
                user: None,
            },
            manner: Manner {
                workspace: cwd,
                grace: Millis(500),
                linger: Millis(200),
                drain: Millis(500),
                capture: Capture::NotAPipeline,
                program: None,
                window: None,
                warnings: Vec::new(),
            },
            stdin: None,
            generation: Generation(0),
            find: Find::Identical,
            tool_version: "test".to_owned(),
            run: None,
            brain: None,
        }
    }

    /// Asks for one attempt by its number.
    pub(crate) fn attempt(&self, key: &str, number: u32) -> Request {
        Request { find: Find::Attempt(attempt(number)), ..self.ask(Some(key)) }
    }

    #[track_caller]
    pub(crate) fn new_job(&self, request: &Request) -> Job {
        match admit(&self.home, request).unwrap() {
            Admitted::New(job) => job,
            other => panic!("not new: {other:?}"),
        }
    }

    /// Proves a job dead: nothing was started under it.
    #[track_caller]
    pub(crate) fn settle(&self, job: &Job) {
        assert!(settle::cancel_unstarted(&self.home, job).unwrap());
    }

    /// A person's word, as a settler writes it down.
    pub(crate) fn attest(&self, job: &Job) {
        let attestation = Attestation {
            job_id: job.id(),
            name: "somebody".to_owned(),
            at: clock::unix_now(),
            seen: Vec::new(),
            final_cursor: Default::default(),
        };
        std::fs::write(job.path().join("attested.json"), serde_json::to_vec(&attestation).unwrap()).unwrap();
    }

    /// What an answer is, in few words.
    pub(crate) fn answer(&self, request: &Request) -> String {
        say(&admit(&self.home, request))
    }
}

pub(crate) fn say(answer: &Result<Admitted, Refusal>) -> String {
    let number = |id: &JobId| id.attempt;
    match answer {
        Ok(Admitted::New(job)) => format!("new {}", number(&job.id())),
        Ok(Admitted::Existing(job)) => format!("existing {}", number(&job.id())),
        Ok(Admitted::Removed(tombstone)) => format!("removed {}", number(&tombstone.receipt.job_id)),
        Err(Refusal::NotProvedDead { job_id }) => format!("not proved dead {}", number(job_id)),
        Err(Refusal::NotTheLatest { latest, .. }) => format!("latest is {}", number(latest)),
        Err(Refusal::Conflict { job_id, .. }) => format!("conflict {}", number(job_id)),
        Err(Refusal::NoSuchJob(_)) => "no such job".to_owned(),
        Err(Refusal::SealedRun { run }) => format!("sealed {run}"),
        Err(Refusal::ClosedGeneration(closed)) => format!("closed by {}", closed.highest),
        Err(other) => format!("{other:?}"),
    }
}

pub(crate) fn attempt(number: u32) -> Attempt {
    Attempt(NonZeroU32::new(number).unwrap())
}

pub(crate) fn scope(name: &str) -> Scope {
    Scope::new(name).unwrap()
}

pub(crate) fn run(name: &str) -> RunId {
    RunId::new(name).unwrap()
}

pub(crate) fn brain(name: &str) -> BrainId {
    BrainId::new(name).unwrap()
}

/// So many hours from now.
pub(crate) fn in_hours(hours: u64) -> UnixMicros {
    UnixMicros(clock::unix_now().0 + hours * 3_600_000_000)
}
