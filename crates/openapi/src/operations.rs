//! Every operation: what it is for, what it carries, what it answers.

use crate::samples::{self, json};
use outlast_wire::limits;
use serde_json::Value;

/// What a request's body is.
pub(crate) enum Body {
    /// None.
    Nothing,
    /// JSON of a type, with examples by name.
    Json(&'static str, Vec<(&'static str, Value)>),
    /// Bytes as they are, and how many at most.
    Bytes(u64, &'static str),
}

/// What the answer's body is.
pub(crate) enum Answer {
    /// JSON of a type, with examples by name.
    Json(&'static str, Vec<(&'static str, Value)>),
    /// An empty object.
    Done,
    /// Output.
    Output,
}

/// One operation.
pub(crate) struct Operation {
    pub(crate) id: &'static str,
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    pub(crate) tag: &'static str,
    pub(crate) summary: &'static str,
    pub(crate) says: &'static str,
    pub(crate) query: &'static [&'static str],
    pub(crate) changes: bool,
    pub(crate) body: Body,
    pub(crate) answer: Answer,
    pub(crate) answers: &'static str,
    /// Codes beside those that follow from the rest.
    pub(crate) codes: &'static [&'static str],
}

/// What any call may meet.
const ANY: &[&str] = &[
    "BAD_PARAMETER",
    "UNAUTHENTICATED",
    "LATER_VERSION",
    "DAMAGED",
    "INTERNAL",
    "STORAGE_FAILED",
    "BUSY",
    "OUT_OF_RESOURCES",
    "STORAGE_FULL",
];
/// What any call in a scope may meet.
const IN_SCOPE: &[&str] = &["BAD_HEADER", "NO_SUCH_SCOPE"];
/// What a body may meet.
const WITH_BODY: &[&str] = &["BODY_BROKEN", "BODY_TIMEOUT", "TOO_LARGE"];
/// What a body of JSON may meet.
const WITH_JSON: &[&str] = &["NOT_JSON", "BAD_BODY"];

impl Operation {
    /// Whether it is about one job.
    pub(crate) fn of_job(&self) -> bool {
        self.path.contains("{job_id}")
    }

    /// Whether it happens in a scope.
    pub(crate) fn in_scope(&self) -> bool {
        self.path != "/hello"
    }

    /// All codes it may answer with.
    pub(crate) fn all_codes(&self) -> Vec<&'static str> {
        let mut codes = ANY.to_vec();
        let mut more = |when: bool, these: &[&'static str]| {
            if when {
                codes.extend_from_slice(these);
            }
        };
        more(self.in_scope(), IN_SCOPE);
        more(self.of_job(), &["NO_SUCH_JOB"]);
        more(self.changes, &["STALE"]);
        // What is spooled is never the same request twice: each has a name of its own.
        more(self.changes && self.path != "/v1/spool", &["REQUEST_ID_REUSED"]);
        more(!matches!(self.body, Body::Nothing), WITH_BODY);
        more(matches!(self.body, Body::Json(..)), WITH_JSON);
        more(true, self.codes);
        codes.sort_unstable();
        codes.dedup();
        codes
    }
}

fn named<T: serde::Serialize>(samples: Vec<(&'static str, T)>) -> Vec<(&'static str, Value)> {
    samples.into_iter().map(|(name, value)| (name, json(&value))).collect()
}

/// Every operation, in the order in which a reader meets them.
#[expect(clippy::too_many_lines, reason = "a table")]
pub(crate) fn operations() -> Vec<Operation> {
    vec![
        Operation {
            id: "hello",
            method: "post",
            path: "/hello",
            tag: "connection",
            summary: "Say hello: agree on a version, learn who is there",
            says: "The first call on a connection. The client offers the versions it speaks; the runner takes the highest in \
                   common and repeats the offer as it saw it. A client checks that this is what it offered and that the \
                   choice is the highest both know, else somebody in between talked it down. The answer holds what later \
                   calls must carry: sandbox, sandbox generation, and the hand's clock, by which expiries are judged.",
            query: &[],
            changes: false,
            body: Body::Json("HelloRequest", vec![("hello", json(&samples::hello_request()))]),
            answer: Answer::Json("Hello", vec![("hello", json(&samples::hello()))]),
            answers: "Who is there, and what is spoken.",
            codes: &["BAD_HELLO", "NO_COMMON_VERSION"],
        },
        Operation {
            id: "admitJob",
            method: "post",
            path: "/v1/jobs",
            tag: "jobs",
            summary: "Admit a command",
            says: "A command becomes a job, once, however often it is asked for: `key` and `attempt` are its identity within \
                   the scope. Where that job is here, it is the answer (`arrival` is `existing`, or `removed` where only its \
                   receipt is left). The same key with another command is `KEY_CONFLICT`. The admission is durable before \
                   anything is started. With `until` and `wait_ms` the answer waits for the job to come that far.",
            query: &["until", "wait_ms"],
            changes: true,
            body: Body::Json(
                "Admission",
                vec![
                    ("a program", json(&samples::admission())),
                    ("a script that reads", json(&samples::script())),
                ],
            ),
            answer: Answer::Json("JobView", vec![("it runs", json(&samples::running()))]),
            answers: "The job, new or found.",
            codes: &[
                "BAD_COMMAND",
                "BAD_LIMIT",
                "BAD_VARIABLE",
                "BUSY_WAIT_REFUSED",
                "CWD_NOT_FOUND",
                "DETACH_REFUSED",
                "KEY_CONFLICT",
                "NOT_PROVED_DEAD",
                "NO_SUCH_JOB",
                "NO_SUCH_SPOOL",
                "RUN_SEALED",
                "SECRET_IN_COMMAND",
                "SECRET_NOT_MASKABLE",
                "TOO_MANY_JOBS",
                "WORKSPACE_UNKNOWN",
            ],
        },
        Operation {
            id: "listJobs",
            method: "get",
            path: "/v1/jobs",
            tag: "jobs",
            summary: "List the jobs of the scope",
            says: "In order of id. Where `next_after` is in the answer, there is more: ask with `after`.",
            query: &["after", "limit"],
            changes: false,
            body: Body::Nothing,
            answer: Answer::Json("JobList", vec![("one job", json(&samples::list()))]),
            answers: "A page of jobs.",
            codes: &[],
        },
        Operation {
            id: "getJob",
            method: "get",
            path: "/v1/jobs/{job_id}",
            tag: "jobs",
            summary: "Look at a job",
            says: "Its state, why that state, what is still owed, and its receipt once there is one. With `until` and \
                   `wait_ms` the answer waits for the job to come that far; an answer that comes before that means no more \
                   than that the time is over.",
            query: &["until", "wait_ms"],
            changes: false,
            body: Body::Nothing,
            answer: Answer::Json(
                "JobView",
                vec![
                    ("it runs", json(&outlast_wire::view::JobView { arrival: None, ..samples::running() })),
                    ("it is settled", json(&samples::settled())),
                ],
            ),
            answers: "The job.",
            codes: &[],
        },
        Operation {
            id: "readOutput",
            method: "get",
            path: "/v1/jobs/{job_id}/output",
            tag: "output",
            summary: "Read output from a cursor",
            says: "Bytes from `from` on, both streams in the order in which they were drained. An answer ends where `max` is \
                   reached, where nothing more is there, or earlier; always go on at `outlast-next-cursor`, never at `from` \
                   plus what was received, since gaps and other streams count, too. Where nothing new is there, the answer \
                   waits for `wait_ms`. Which form is given is for `accept` to say: bytes as they are (the default), or \
                   records with streams, times and gaps.",
            query: &["from", "max", "wait_ms", "stream", "committed"],
            changes: false,
            body: Body::Nothing,
            answer: Answer::Output,
            answers: "What there is of the output from that cursor on.",
            codes: &["NOT_ACCEPTABLE", "CURSOR_BEYOND_END"],
        },
        Operation {
            id: "writeStdin",
            method: "put",
            path: "/v1/jobs/{job_id}/stdin",
            tag: "input",
            summary: "Give bytes to open standard input",
            says: "The body is what follows `offset`. Bytes are taken in order, each once: a call that is repeated overlaps \
                   what was taken before and is answered with how far that is. `taken` may be less than was sent where the \
                   command does not read; send the rest from there. With `close=true` the input ends after the last byte.",
            query: &["offset", "close", "wait_ms"],
            changes: true,
            body: Body::Bytes(limits::STDIN_BODY, "The bytes that follow `offset`; none, to close only."),
            answer: Answer::Json("StdinTaken", vec![("taken", json(&samples::stdin_taken()))]),
            answers: "How far input was taken.",
            codes: &["NO_OPEN_STDIN", "BAD_OFFSET"],
        },
        Operation {
            id: "spoolStdin",
            method: "post",
            path: "/v1/spool",
            tag: "input",
            summary: "Spool standard input for an admission",
            says: "What a command is to read whole, before it is admitted with `\"stdin\": {\"kind\": \"spooled\", …}`. It is \
                   kept for an hour, and one admission takes it. Repeating the call spools again, under another name.",
            query: &[],
            changes: true,
            body: Body::Bytes(limits::SPOOL_BODY, "The bytes."),
            answer: Answer::Json("Spooled", vec![("nothing at all", json(&samples::spooled()))]),
            answers: "The name to admit with.",
            codes: &[],
        },
        Operation {
            id: "resizeTerminal",
            method: "post",
            path: "/v1/jobs/{job_id}/resize",
            tag: "input",
            summary: "Set the size of a job's terminal",
            says: "For a job that was admitted with `tty`.",
            query: &[],
            changes: true,
            body: Body::Json("Resize", vec![("size", json(&samples::resize()))]),
            answer: Answer::Done,
            answers: "The terminal has that size.",
            codes: &["NO_TERMINAL"],
        },
        Operation {
            id: "stopJob",
            method: "post",
            path: "/v1/jobs/{job_id}/stop",
            tag: "jobs",
            summary: "Stop a job",
            says: "The job's whole tree is ended: TERM, the grace time, KILL. `outlast-generation` must be the job's own. The \
                   stop's `id` makes a repeated call the same stop, and the receipt names it. An accepted stop is not done \
                   yet; the receipt is the proof that it is.",
            query: &[],
            changes: true,
            body: Body::Json("Stop", vec![("stop", json(&samples::stop()))]),
            answer: Answer::Json("Stopped", named(samples::stopped())),
            answers: "What became of the stop. One that is stale is an answer here and not a problem, because the job is \
                      known.",
            codes: &["BAD_STOP", "KEEPER_SILENT"],
        },
        Operation {
            id: "settleJob",
            method: "post",
            path: "/v1/jobs/{job_id}/settle",
            tag: "jobs",
            summary: "Settle a job that lost its keeper",
            says: "Proves what can be proved of a job whose state is `unknown`, or records a person's word that it is dead. \
                   A runner does the first by itself when it sees that a keeper is lost.",
            query: &[],
            changes: true,
            body: Body::Json("Settle", named(samples::settle())),
            answer: Answer::Json("Settled", named(samples::settled_so())),
            answers: "What came of it.",
            codes: &["BAD_NAME"],
        },
        Operation {
            id: "acknowledgeJob",
            method: "post",
            path: "/v1/jobs/{job_id}/acknowledge",
            tag: "jobs",
            summary: "Say that a brain has the receipt and all output",
            says: "A job that was admitted with `brain` is kept until that brain has said so.",
            query: &[],
            changes: true,
            body: Body::Json("Acknowledge", vec![("acknowledge", json(&samples::acknowledge()))]),
            answer: Answer::Json("Acknowledged", named(samples::acknowledged().unwrap_or_default())),
            answers: "Whether the job may go, as far as this brain goes.",
            codes: &[],
        },
        Operation {
            id: "lookAtFence",
            method: "get",
            path: "/v1/fence",
            tag: "fences",
            summary: "What the hand has seen of the scope",
            says: "The highest generation, and the runs that are sealed.",
            query: &[],
            changes: false,
            body: Body::Nothing,
            answer: Answer::Json("FenceView", vec![("fence", json(&samples::fence_view()))]),
            answers: "The fence of the scope.",
            codes: &[],
        },
        Operation {
            id: "raiseFence",
            method: "post",
            path: "/v1/fence",
            tag: "fences",
            summary: "Raise the generation of the scope",
            says: "From now on nothing is admitted under a generation lower than the call's `outlast-generation`. Jobs that \
                   run are not touched: stop them. A call with a lower generation than was seen is `STALE`.",
            query: &[],
            changes: true,
            body: Body::Json("Fence", vec![("fence", json(&samples::fence()))]),
            answer: Answer::Json("FenceView", vec![("fence", json(&samples::fence_view()))]),
            answers: "The fence of the scope, raised.",
            codes: &[],
        },
        Operation {
            id: "sealRun",
            method: "post",
            path: "/v1/seal",
            tag: "fences",
            summary: "Seal a run",
            says: "Nothing is admitted under this run any more. What it had admitted is listed.",
            query: &[],
            changes: true,
            body: Body::Json("Seal", vec![("seal", json(&samples::seal()))]),
            answer: Answer::Json("Sealed", vec![("sealed", json(&samples::sealed()))]),
            answers: "The run is sealed.",
            codes: &[],
        },
    ]
}
