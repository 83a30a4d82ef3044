//! Examples, made from the types themselves.

use outlast_core::bytes::Bytes;
use outlast_core::evidence::{Isolation, Reaping, all_reaped};
use outlast_core::exit::{Cause, Exit};
use outlast_core::fence::{Stale, StopReason};
use outlast_core::id::{
    Attempt, BootId, BrainId, CallHash, Cursor, Generation, JobId, Key, MutationMark, RunId,
    SandboxGeneration, Scope,
};
use outlast_core::pipeline::Stages;
use outlast_core::receipt::{
    Authority, Drain, Facts, Output, OutputHash, Receipt, Resources, TerminalMutation,
};
use outlast_core::spec::{Boundary, Capture, Command, JobKind, Limits, Manner, Spec, Stdin, Work};
use outlast_core::status::{Obligation, Party, State};
use outlast_core::time::{Millis, UnixMicros};
use outlast_core::verdict::judge;
use outlast_wire::admission::{Admission, LimitsAsked, StdinFrom};
use outlast_wire::hello::{self, Hello, HelloRequest, Offer};
use outlast_wire::verbs::{
    Acknowledge, Fence, Resize, Seal, Sealed, Settle, Settled, Spooled, StdinTaken, Stop, Stopped,
};
use outlast_wire::view::{Acknowledged, Arrival, FenceView, JobList, JobSummary, JobView, VerdictView};
use outlast_wire::{limits, version};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::num::NonZeroU32;

/// A moment.
const NOW: UnixMicros = UnixMicros(1_767_225_600_000_000);

/// A value as it travels.
pub(crate) fn json(value: &impl Serialize) -> Value {
    // What is sampled here has text for keys and no numbers that JSON lacks: it can always be written.
    serde_json::to_value(value).unwrap_or_default()
}

fn later(milliseconds: u64) -> UnixMicros {
    UnixMicros(NOW.0 + milliseconds * 1000)
}

fn name<T: TryFrom<String>>(text: &str) -> Option<T> {
    T::try_from(text.to_owned()).ok()
}

/// The job of all examples.
#[must_use]
pub fn job_id() -> JobId {
    JobId {
        call: CallHash([0x3c, 0x54, 0x9a, 0x76, 0xbc, 0x81, 0x43, 0x1f, 0x17, 0xac]),
        number: NonZeroU32::MIN,
        attempt: Attempt::FIRST,
    }
}

pub(crate) fn hello_request() -> HelloRequest {
    HelloRequest { versions: version::SUPPORTED.to_vec(), client: "my-brain 1.4".to_owned() }
}

/// A runner that says hello.
#[must_use]
pub fn hello() -> Option<Hello> {
    let offer = |name: &str, available, detail: &str| Offer {
        name: name.to_owned(),
        available,
        detail: detail.to_owned(),
    };
    let milliseconds = |length: std::time::Duration| u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
    Some(Hello {
        protocol: 1,
        supported: version::SUPPORTED.to_vec(),
        offered: version::SUPPORTED.to_vec(),
        runner_version: "0.1.0".to_owned(),
        runner_pid: 4711,
        runner_epoch: 3,
        sandbox: "hand-5f1c".to_owned(),
        sandbox_generation: SandboxGeneration(1),
        boot_id: boot()?,
        now_ms: NOW.0 / 1000,
        mutation_mark: 1536,
        uid: 1000,
        containment: vec![
            offer("cgroup2+subreaper", true, "/sys/fs/cgroup/user.slice"),
            offer("subreaper", true, "always"),
            offer("pid_namespace", false, "user namespaces are disabled"),
        ],
        job_limits: vec![offer("processes", true, "pids.max"), offer("memory", true, "memory.max")],
        other_user: false,
        file_system: "ext4".to_owned(),
        durable: true,
        kernel: "6.12.0".to_owned(),
        limits: hello::Limits {
            json_body: limits::JSON_BODY,
            stdin_body: limits::STDIN_BODY,
            spool_body: limits::SPOOL_BODY,
            output: limits::OUTPUT_AT_MOST,
            list: limits::LIST_AT_MOST,
            wait_ms: milliseconds(limits::WAIT_AT_MOST),
            expiry_ms: milliseconds(limits::EXPIRY_AT_MOST),
            connections: 1024,
        },
    })
}

fn boot() -> Option<BootId> {
    name("6f0c6d4e-5d0a-4d5b-9b43-0d5f3f3c7d11")
}

fn key() -> Option<Key> {
    name("build-1842")
}

fn run() -> Option<RunId> {
    name("run-77")
}

fn brain() -> Option<BrainId> {
    name("brain-a")
}

fn command() -> Command {
    Command::Argv(["make", "test"].map(Bytes::from).to_vec())
}

pub(crate) fn admission() -> Option<Admission> {
    let env = [("CI".to_owned(), Bytes::from("1"))];
    Some(Admission {
        env: env.into_iter().collect(),
        limits: LimitsAsked { deadline: Some(Millis(600_000)), ..LimitsAsked::default() },
        run: run(),
        brain: brain(),
        ..Admission::new(key()?, command(), "/home/dev/project")
    })
}

pub(crate) fn script() -> Option<Admission> {
    let text = Bytes::from("set -e\ncargo test 2>&1 | tail -n 20\n");
    Some(Admission {
        stdin: StdinFrom::Open,
        secrets: [("API_TOKEN".to_owned(), Bytes::from("not-a-real-token"))].into_iter().collect(),
        ..Admission::new(key()?, Command::Script { shell: "bash".to_owned(), text }, "/home/dev/project")
    })
}

fn spec() -> Option<Spec> {
    let work = Work {
        command: command(),
        cwd: Bytes::from("/home/dev/project"),
        env: BTreeMap::new(),
        secrets: BTreeMap::new(),
        stdin: Stdin::Null,
        limits: Limits {
            deadline: Some(Millis(600_000)),
            idle: None,
            log_bytes: Some(1 << 30),
            pids: None,
            memory_bytes: None,
        },
        kind: JobKind::Command,
        merge: false,
        tty: false,
        resume: false,
        containment: None,
        user: None,
    };
    Some(Spec {
        schema: outlast_core::spec::SCHEMA,
        tool_version: "0.1.0".to_owned(),
        job_id: job_id(),
        scope: name::<Scope>("default")?,
        key: key(),
        digest: work.digest(),
        run: run(),
        brain: brain(),
        generation: Generation(3),
        sandbox_generation: SandboxGeneration(1),
        admitted_at: NOW,
        boot_id: boot()?,
        work,
        manner: Manner {
            workspace: Bytes::from("/home/dev/project"),
            grace: Millis(10_000),
            linger: Millis(5_000),
            drain: Millis(2_000),
            capture: Capture::NotAPipeline,
            program: None,
            window: None,
            warnings: Vec::new(),
        },
    })
}

/// What a receipt is made of, of a command that succeeded.
#[must_use]
pub fn facts() -> Facts {
    Facts {
        authority: Authority::Keeper,
        exit: Exit::Exited { code: 0 },
        cause: Cause::OwnEnd,
        stages: Stages::NotAPipeline,
        output: Output {
            final_cursor: Cursor(48_213),
            hash: OutputHash::Blake3 {
                value: "d74981efa70a0c880b8d8c1985d075dbcbf679b99a5f9914e5aaf96b831a9e24".to_owned(),
            },
            drain: Drain::Complete,
            gaps: Vec::new(),
            stdout_bytes: Some(48_000),
            stderr_bytes: Some(213),
        },
        terminal_mutation: TerminalMutation::Marked { mark: MutationMark(1568) },
        stragglers: Vec::new(),
        resources: Some(Resources {
            user_us: 4_100_000,
            system_us: 300_000,
            max_rss_kib: 210_432,
            processes: 41,
        }),
        started: Some(later(4)),
        exited: Some(later(5210)),
        dead: later(5211),
        settled: later(5214),
        boundary: Some(Boundary::Cgroup2Subreaper),
        isolation: Some(Isolation::SameUid),
        stops: Vec::new(),
    }
}

/// A receipt over these facts.
#[must_use]
pub fn receipt(facts: Facts) -> Option<Receipt> {
    let proof = all_reaped(Reaping::NoChildLeft { reaped: 41 }, later(5211)).ok()?;
    Some(Receipt::assemble(&spec()?, proof, facts))
}

fn verdict(receipt: &Receipt) -> VerdictView {
    let verdict = judge(receipt);
    VerdictView {
        exit_code: verdict.exit_code,
        code: verdict.code.map(str::to_owned),
        message: verdict.message,
    }
}

/// A job that runs, as the answer to its admission.
#[must_use]
pub fn running() -> JobView {
    let owe = |what: &str, owed_by, settled_by: Option<&str>| Obligation {
        what: what.to_owned(),
        owed_by,
        settled_by: settled_by.map(str::to_owned),
    };
    JobView {
        job_id: job_id(),
        key: key(),
        attempt: Attempt::FIRST,
        generation: Generation(3),
        run: run(),
        kind: JobKind::Command,
        admitted_at: NOW,
        arrival: Some(Arrival::Admitted),
        state: State::Running,
        because: "its keeper lives; the command is process 4733".to_owned(),
        obligations: vec![
            owe("start_mark", Party::Warden, Some("the keeper's warden, process 4730")),
            owe("exit", Party::Warden, None),
            owe("death_proof", Party::Warden, None),
            owe("final_cursor", Party::Scribe, None),
            owe("terminal_mutation", Party::Scribe, None),
            owe("receipt", Party::Scribe, None),
        ],
        exit: None,
        ending: None,
        receipt: None,
        verdict: None,
        attestation: None,
        committed: Cursor(0),
        progress: None,
        set_up_failed: None,
        warnings: Vec::new(),
        keeper_pid: Some(4730),
        removed: false,
    }
}

/// The same job with its receipt.
#[must_use]
pub fn settled() -> Option<JobView> {
    let receipt = receipt(facts())?;
    let owe = |what: &str, owed_by, settled_by: &str| Obligation {
        what: what.to_owned(),
        owed_by,
        settled_by: Some(settled_by.to_owned()),
    };
    Some(JobView {
        arrival: None,
        state: State::Settled,
        because: "its receipt says exit 0, death proved by all_reaped".to_owned(),
        obligations: vec![
            owe("start_mark", Party::Warden, "the keeper's warden, process 4730"),
            owe("exit", Party::Warden, "exit 0"),
            owe("death_proof", Party::Warden, "all 41 processes reaped by the warden"),
            owe("final_cursor", Party::Scribe, "cursor 48213"),
            owe("terminal_mutation", Party::Scribe, "mark 1568"),
            owe("receipt", Party::Scribe, "receipt.json, by its keeper"),
        ],
        exit: Some(receipt.exit.clone()),
        committed: receipt.output.final_cursor,
        verdict: Some(verdict(&receipt)),
        receipt: Some(Box::new(receipt)),
        keeper_pid: None,
        ..running()
    })
}

/// A listing of one job.
#[must_use]
pub fn list() -> JobList {
    let summary = JobSummary {
        job_id: job_id(),
        key: key(),
        generation: Generation(3),
        run: run(),
        kind: JobKind::Command,
        admitted_at: NOW,
        state: State::Running,
        exit: None,
        command: "make test".to_owned(),
    };
    JobList { jobs: vec![summary], unreadable: Vec::new(), next_after: Some(job_id()) }
}

pub(crate) fn stop() -> Stop {
    Stop { id: "stop-9".to_owned(), force: false, grace: Some(Millis(2_000)), reason: StopReason::Asked }
}

/// What may become of a stop.
#[must_use]
pub fn stopped() -> Vec<(&'static str, Stopped)> {
    let stale = Stale::OtherGeneration { carried: Generation(2), target: Generation(3) };
    vec![
        ("accepted", Stopped::Accepted),
        ("already settled", Stopped::AlreadySettled),
        ("never started", Stopped::NeverStarted),
        ("stale", Stopped::Stale { stale }),
        ("keeper lost", Stopped::KeeperLost),
    ]
}

pub(crate) fn settle() -> Vec<(&'static str, Settle)> {
    vec![("prove", Settle::Prove), ("attest", Settle::Attest { name: "R. Gray".to_owned() })]
}

/// What may come of settling.
#[must_use]
pub fn settled_so() -> Vec<(&'static str, Settled)> {
    let seen = vec![outlast_core::ledger::Straggler { pid: 4740, name: "sleep".to_owned() }];
    let why = "a command of the keeper's own uid could have left its cgroup".to_owned();
    vec![
        ("settled", Settled::Settled),
        ("keeper lives", Settled::KeeperLives),
        ("busy", Settled::Busy),
        ("still unknown", Settled::StillUnknown { why, seen, unreadable: 0 }),
        ("attested", Settled::Attested),
    ]
}

pub(crate) fn spooled() -> Spooled {
    let blake3 = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262".to_owned();
    Spooled { spool: format!("spool.0102030405060708090a0b0c.{blake3}.0"), blake3, bytes: 0 }
}

pub(crate) fn stdin_taken() -> StdinTaken {
    StdinTaken { taken: Cursor(4096), closed: false }
}

pub(crate) fn resize() -> Resize {
    Resize { rows: 50, cols: 160 }
}

pub(crate) fn acknowledge() -> Option<Acknowledge> {
    Some(Acknowledge { brain: brain()?, cursor: Cursor(48_213) })
}

/// What may come of an acknowledgement.
#[must_use]
pub fn acknowledged() -> Option<Vec<(&'static str, Acknowledged)>> {
    let answer = |released, because: Option<&str>| {
        Some(Acknowledged {
            job_id: job_id(),
            brain: brain()?,
            released,
            because: because.map(str::to_owned),
        })
    };
    Some(vec![
        ("released", answer(true, None)?),
        ("kept", answer(false, Some("the job has no receipt yet"))?),
    ])
}

pub(crate) fn fence() -> Fence {
    Fence {}
}

/// What a hand has seen of a scope.
#[must_use]
pub fn fence_view() -> FenceView {
    FenceView {
        generation: Generation(4),
        sealed: run().into_iter().collect(),
        mutation_mark: MutationMark(1568),
    }
}

pub(crate) fn seal() -> Option<Seal> {
    Some(Seal { run: run()? })
}

/// A run that is sealed.
#[must_use]
pub fn sealed() -> Option<Sealed> {
    Some(Sealed { run: run()?, jobs: vec![job_id()], unreadable: Vec::new(), already: false })
}
