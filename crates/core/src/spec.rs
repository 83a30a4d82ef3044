//! The immutable command a job was admitted with.

use crate::bytes::{Bytes, hex};
use crate::id::{BootId, BrainId, Generation, JobId, Key, RunId, SandboxGeneration, Scope};
use crate::time::{Millis, UnixMicros};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version of the job directory's files. A reader refuses a later one.
pub const SCHEMA: u32 = 1;

/// Everything about a job that its admission fixed, as `spec.json` holds it. The inherited environment and the
/// values of secrets are not in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// [`SCHEMA`] of the writer.
    pub schema: u32,
    /// The version of the program that admitted it.
    pub tool_version: String,
    /// The job's name.
    pub job_id: JobId,
    /// Who may find it.
    pub scope: Scope,
    /// The caller's key; absent where the call is its own identity.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub key: Option<Key>,
    /// [`Work::digest`] of `work`.
    pub digest: Digest,
    /// The run it belongs to, where a brain admitted it for one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub run: Option<RunId>,
    /// The brain that admitted it first; those that found it later have their claims in the job's folder alone.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub brain: Option<BrainId>,
    /// The generation it was admitted under.
    pub generation: Generation,
    /// The incarnation of this home.
    pub sandbox_generation: SandboxGeneration,
    /// When it was admitted, by the wall clock.
    pub admitted_at: UnixMicros,
    /// The boot it was admitted in.
    pub boot_id: BootId,
    /// What runs, and within what bounds.
    pub work: Work,
    /// How a keeper is to run it where that does not change what the command is.
    pub manner: Manner,
}

/// The identity of a command: what the [`Digest`] covers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// What to execute.
    pub command: Command,
    /// The folder it starts in, absolute.
    pub cwd: Bytes,
    /// Variables set for it beyond the inherited environment, by name.
    pub env: BTreeMap<String, Bytes>,
    /// Secrets it is given: name, and the value's hash keyed by the home's secret.
    pub secrets: BTreeMap<String, String>,
    /// What it reads.
    pub stdin: Stdin,
    /// Its bounds.
    pub limits: Limits,
    /// Whether it outlives its caller by intent.
    pub kind: JobKind,
    /// Whether both streams go through one pipe, in exact order.
    pub merge: bool,
    /// Whether it runs on a pseudo-terminal.
    pub tty: bool,
    /// Whether it saves its work in `OUTLAST_CHECKPOINT` and continues from there.
    pub resume: bool,
    /// What contains it, where the caller asked.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub containment: Option<Boundary>,
    /// The uid and gid it runs under, where they are not the keeper's.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub user: Option<RunAs>,
}

/// What to execute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// A program and its arguments; the first is looked up in the command's own `PATH`.
    Argv(Vec<Bytes>),
    /// A script, kept as bytes in a file of its own and given to a shell.
    Script {
        /// The shell: a name looked up in `PATH`, or a path.
        shell: String,
        /// The script.
        text: Bytes,
    },
}

impl Command {
    /// One line for people: the words, quoted where a shell would need it, cut to `most` characters.
    #[must_use]
    pub fn preview(&self, most: usize) -> String {
        let whole = match self {
            Command::Argv(words) => {
                words.iter().map(|word| quoted(&word.lossy())).collect::<Vec<_>>().join(" ")
            }
            Command::Script { text, .. } => text.lossy().trim().replace('\n', "; "),
        };
        let plain = |c: char| if c.is_control() { '\u{fffd}' } else { c };
        if whole.chars().count() <= most {
            return whole.chars().map(plain).collect();
        }
        whole.chars().take(most.saturating_sub(1)).map(plain).chain(['…']).collect()
    }
}

/// `word` as a POSIX shell would need it typed.
#[must_use]
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+^".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// What the command reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Stdin {
    /// Nothing: `/dev/null`.
    Null,
    /// A file spooled whole at admission.
    Spooled {
        /// BLAKE3 of the bytes, hexadecimal.
        blake3: String,
        /// How many bytes.
        bytes: u64,
    },
    /// A pipe that stays open until a caller closes it.
    Open,
}

/// The bounds a job runs within. Absent means unbounded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// The deadline of the whole work.
    pub deadline: Option<Millis>,
    /// The longest silence: no growth of progress, or of output where nothing else is reported.
    pub idle: Option<Millis>,
    /// Bytes of output kept.
    pub log_bytes: Option<u64>,
    /// Processes and threads at once.
    pub pids: Option<u64>,
    /// Bytes of memory.
    pub memory_bytes: Option<u64>,
}

/// Whether a job outlives its caller by intent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum JobKind {
    /// A command with an end of its own.
    Command,
    /// A server: lives until stopped, with no deadline of its own.
    Service,
}

/// The uid and gid a command runs under.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RunAs {
    /// User id.
    pub uid: u32,
    /// Group id; supplementary groups are cleared.
    pub gid: u32,
}

/// What owns a process tree well enough to prove it dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Boundary {
    /// A leaf cgroup of its own, and a warden that adopts every orphan.
    #[serde(rename = "cgroup2+subreaper")]
    Cgroup2Subreaper,
    /// A warden that adopts every orphan.
    #[serde(rename = "subreaper")]
    Subreaper,
    /// A PID namespace whose init is ours.
    #[serde(rename = "pid_namespace")]
    PidNamespace,
}

impl Boundary {
    /// The name that receipts and options use.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Boundary::Cgroup2Subreaper => "cgroup2+subreaper",
            Boundary::Subreaper => "subreaper",
            Boundary::PidNamespace => "pid_namespace",
        }
    }
}

/// How a keeper runs the work, where that is no part of the command's identity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manner {
    /// The folder whose files it may change: nothing new is admitted there while it is unknown.
    pub workspace: Bytes,
    /// Time between TERM and KILL.
    pub grace: Millis,
    /// Time that descendants are given after the leader's exit.
    pub linger: Millis,
    /// Time that output is drained after the tree is empty.
    pub drain: Millis,
    /// How the stages of the last pipeline are captured.
    pub capture: Capture,
    /// Which file the program of a resumable command is, as far as that tells one version of it from another: what it
    /// saved is for the same one only.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub program: Option<String>,
    /// Rows and columns of the pseudo-terminal.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub window: Option<(u16, u16)>,
    /// Warnings that admission gave, repeated with each answer.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub warnings: Vec<Warning>,
}

/// Something the caller should know that stopped nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Warning {
    /// `^[A-Z][A-Z0-9_]+$`.
    pub code: String,
    /// One sentence.
    pub message: String,
    /// Facts that belong to it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub context: Option<serde_json::Value>,
}

/// How the stages of the script's last pipeline are learnt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Capture {
    /// There is no pipeline to capture.
    NotAPipeline,
    /// There may be one, and it cannot be captured.
    NotCaptured {
        /// Why not.
        why: String,
    },
    /// bash reads a start file that notes the statuses when it exits.
    BashEnv {
        /// The stages' programs, in order.
        programs: Vec<Option<String>>,
        /// The start file's text.
        text: Bytes,
    },
    /// The script (or the argument of argv that holds it) is run in an instrumented form.
    Rewritten {
        /// The stages' programs, in order.
        programs: Vec<Option<String>>,
        /// The instrumented script.
        text: Bytes,
        /// Which word of argv it replaces; absent for a script.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        argument: Option<usize>,
    },
}

/// BLAKE3 of a command's canonical encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 32]);

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = crate::bytes::unhex(&text).and_then(|bytes| bytes.try_into().ok());
        bytes.map(Digest).ok_or_else(|| serde::de::Error::custom("a digest is 64 hexadecimal digits"))
    }
}

/// A stable encoding: every field named, every value with its length, so that no two different commands share it.
struct Canon(blake3::Hasher);

impl Canon {
    fn new(purpose: &str) -> Self {
        let mut canon = Canon(blake3::Hasher::new());
        canon.bytes("outlast", purpose.as_bytes());
        canon
    }

    fn bytes(&mut self, name: &str, value: &[u8]) {
        for part in [name.as_bytes(), value] {
            self.0.update(&(part.len() as u64).to_le_bytes());
            self.0.update(part);
        }
    }

    fn number(&mut self, name: &str, value: u64) {
        self.bytes(name, &value.to_le_bytes());
    }

    fn optional(&mut self, name: &str, value: Option<u64>) {
        match value {
            Some(value) => self.number(name, value),
            None => self.bytes(name, b"none"),
        }
    }

    fn digest(self) -> Digest {
        Digest(*self.0.finalize().as_bytes())
    }
}

impl Work {
    /// The digest that makes two admissions under one key the same command: all of it, with its limits.
    #[must_use]
    pub fn digest(&self) -> Digest {
        let mut canon = Canon::new("work 1");
        self.identity(&mut canon);
        for (name, value) in &self.env {
            canon.bytes("env name", name.as_bytes());
            canon.bytes("env value", &value.0);
        }
        for (name, hash) in &self.secrets {
            canon.bytes("secret name", name.as_bytes());
            canon.bytes("secret hash", hash.as_bytes());
        }
        let Limits { deadline, idle, log_bytes, pids, memory_bytes } = &self.limits;
        canon.optional("deadline", deadline.map(|length| length.0));
        canon.optional("idle", idle.map(|length| length.0));
        canon.optional("log bytes", *log_bytes);
        canon.optional("pids", *pids);
        canon.optional("memory", *memory_bytes);
        canon.number("service", u64::from(self.kind == JobKind::Service));
        canon.number("merge", u64::from(self.merge));
        canon.number("tty", u64::from(self.tty));
        canon.number("resume", u64::from(self.resume));
        canon.bytes("containment", self.containment.map_or("any", Boundary::name).as_bytes());
        canon.optional("uid", self.user.map(|user| u64::from(user.uid)));
        canon.optional("gid", self.user.map(|user| u64::from(user.gid)));
        canon.digest()
    }

    /// The identity of a call without an idempotency key: scope, command, arguments, cwd and stdin, and nothing
    /// that only says how long to wait for it.
    #[must_use]
    pub fn call_identity(&self, scope: &Scope) -> Digest {
        let mut canon = Canon::new("call 1");
        canon.bytes("scope", scope.as_str().as_bytes());
        self.identity(&mut canon);
        canon.digest()
    }

    fn identity(&self, canon: &mut Canon) {
        match &self.command {
            Command::Argv(words) => {
                canon.number("words", words.len() as u64);
                for word in words {
                    canon.bytes("word", &word.0);
                }
            }
            Command::Script { shell, text } => {
                canon.bytes("shell", shell.as_bytes());
                canon.bytes("script", &text.0);
            }
        }
        canon.bytes("cwd", &self.cwd.0);
        match &self.stdin {
            Stdin::Null => canon.bytes("stdin", b"null"),
            Stdin::Open => canon.bytes("stdin", b"open"),
            Stdin::Spooled { blake3, bytes } => {
                canon.bytes("stdin", blake3.as_bytes());
                canon.number("stdin bytes", *bytes);
            }
        }
    }

    /// The fields in which this command differs from `other`, by the names that options use.
    #[must_use]
    pub fn differences(&self, other: &Work) -> Vec<&'static str> {
        let mut names = Vec::new();
        let mut note = |differs: bool, name| {
            if differs {
                names.push(name);
            }
        };
        note(self.command != other.command, "command");
        note(self.cwd != other.cwd, "cwd");
        note(self.env != other.env, "env");
        note(self.secrets.keys().ne(other.secrets.keys()), "secret names");
        note(self.secrets.keys().eq(other.secrets.keys()) && self.secrets != other.secrets, "secret values");
        note(self.stdin != other.stdin, "stdin");
        note(self.limits.deadline != other.limits.deadline, "timeout");
        note(self.limits.idle != other.limits.idle, "idle-timeout");
        note(self.limits.log_bytes != other.limits.log_bytes, "log-limit");
        note(self.limits.pids != other.limits.pids, "pids-limit");
        note(self.limits.memory_bytes != other.limits.memory_bytes, "memory-limit");
        note(self.kind != other.kind, "service");
        note(self.merge != other.merge, "merge");
        note(self.tty != other.tty, "tty");
        note(self.resume != other.resume, "resume");
        note(self.containment != other.containment, "containment");
        note(self.user != other.user, "user");
        names
    }
}

/// Whether one workspace lies in the other, which counts as the same workspace. Both are absolute and free of
/// `.`, `..` and symbolic links.
#[must_use]
pub fn workspaces_overlap(a: &[u8], b: &[u8]) -> bool {
    let inside = |outer: &[u8], inner: &[u8]| {
        let outer = outer.strip_suffix(b"/").unwrap_or(outer);
        inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
    };
    inside(a, b) || inside(b, a)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) fn work(words: &[&str]) -> Work {
        Work {
            command: Command::Argv(words.iter().map(|word| Bytes::from(*word)).collect()),
            cwd: Bytes::from("/w"),
            env: BTreeMap::new(),
            secrets: BTreeMap::new(),
            stdin: Stdin::Null,
            limits: Limits {
                deadline: Some(Millis(3_600_000)),
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
        }
    }

    #[test]
    fn every_field_is_in_the_digest_and_named_when_it_differs() {
        let base = work(&["make", "test"]);
        type Change = fn(&mut Work);
        let changes: [(&str, Change); 17] = [
            ("command", |w| {
                w.command = Command::Script { shell: "sh".into(), text: Bytes::from("make test") }
            }),
            ("cwd", |w| w.cwd = Bytes::from("/v")),
            ("env", |w| drop(w.env.insert("A".into(), Bytes::from("1")))),
            ("secret names", |w| drop(w.secrets.insert("A".into(), "00".into()))),
            ("stdin", |w| w.stdin = Stdin::Open),
            ("stdin", |w| w.stdin = Stdin::Spooled { blake3: "00".into(), bytes: 0 }),
            ("timeout", |w| w.limits.deadline = None),
            ("idle-timeout", |w| w.limits.idle = Some(Millis(1))),
            ("log-limit", |w| w.limits.log_bytes = None),
            ("pids-limit", |w| w.limits.pids = Some(1)),
            ("memory-limit", |w| w.limits.memory_bytes = Some(1)),
            ("service", |w| w.kind = JobKind::Service),
            ("merge", |w| w.merge = true),
            ("tty", |w| w.tty = true),
            ("resume", |w| w.resume = true),
            ("containment", |w| w.containment = Some(Boundary::Subreaper)),
            ("user", |w| w.user = Some(RunAs { uid: 1, gid: 1 })),
        ];
        let mut seen = vec![base.digest()];
        for (name, change) in changes {
            let mut other = base.clone();
            change(&mut other);
            assert_eq!(base.differences(&other), [name]);
            assert!(!seen.contains(&other.digest()), "{name} is not in the digest");
            seen.push(other.digest());
        }
        assert_eq!(base.differences(&base), [""; 0]);
    }

    #[test]
    fn a_call_is_the_same_call_whatever_its_limits() {
        let scope = Scope::new("s").unwrap();
        let base = work(&["make"]);
        let mut longer = base.clone();
        longer.limits.deadline = None;
        assert_eq!(base.call_identity(&scope), longer.call_identity(&scope));
        assert_ne!(base.call_identity(&scope), work(&["make", "-k"]).call_identity(&scope));
        assert_ne!(base.call_identity(&scope), base.call_identity(&Scope::new("t").unwrap()));
    }

    proptest! {
        #[test]
        fn words_do_not_run_together(a: Vec<String>, b: Vec<String>) {
            let of = |words: &[String]| {
                let mut work = work(&[]);
                work.command = Command::Argv(words.iter().map(|w| Bytes::from(w.as_str())).collect());
                work.digest()
            };
            prop_assert_eq!(a == b, of(&a) == of(&b));
        }
    }

    #[test]
    fn workspaces_inside_each_other_are_the_same() {
        for (a, b, same) in [
            ("/a", "/a", true),
            ("/a", "/a/b", true),
            ("/a/b", "/a", true),
            ("/a", "/ab", false),
            ("/a/b", "/a/c", false),
            ("/", "/a", true),
        ] {
            assert_eq!(workspaces_overlap(a.as_bytes(), b.as_bytes()), same, "{a} {b}");
        }
    }

    #[test]
    fn previews_are_bounded_and_printable() {
        assert_eq!(work(&["sh", "-c", "echo 'a b'"]).command.preview(80), r"sh -c 'echo '\''a b'\'''");
        assert_eq!(work(&["a\u{1b}[2Jb"]).command.preview(80), "'a\u{fffd}[2Jb'");
        assert_eq!(work(&["abcdef"]).command.preview(4), "abc…");
    }
}
