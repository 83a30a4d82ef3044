//! Outlast by the address of a runner, over the hand protocol alone: what is not on this machine is looked at by commands
//! that the hand itself runs.

use crate::process::descendants;
use crate::subject::{
    Answer, Cause, Containment, Description, End, Follow, Handle, Request, Said, Settled, Sink, Started,
    State, Stdin, Subject, Trouble, Work,
};
use bytes::Bytes;
use outlast_core::bytes::Bytes as Text;
use outlast_core::exit::{Cause as CoreCause, Exit};
use outlast_core::fence::StopReason;
use outlast_core::id::{Attempt, Cursor, JobId, Key, Scope};
use outlast_core::receipt::Drain;
use outlast_core::spec::{Boundary, Command};
use outlast_core::status::State as JobState;
use outlast_core::time::Millis;
use outlast_wire::address::{Address, DialOptions, dial};
use outlast_wire::admission::{Admission, StdinFrom};
use outlast_wire::client::{Client, ClientError, Read, Tail, Until, request_id};
use outlast_wire::verbs::{Settle, Settled as WireSettled, Stop};
use outlast_wire::view::{Arrival, JobView};
use std::collections::HashMap;
use std::fs;
use std::future::Future;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// The scope of what is run here.
const SCOPE: &str = "outlast-qualify";
/// The longest wait of one call.
const WAIT: Duration = Duration::from_secs(45);
/// Workspaces that are made at the beginning: one whose end is unknown must not keep the others from being admitted.
const WORKSPACES: usize = 1000;
/// How often a connection that was lost is made again before the runner counts as unavailable, and how long it is waited
/// for: one that was killed may be coming back.
const CONNECT_WITHIN: Duration = Duration::from_secs(20);

/// How a runner is reached.
#[derive(Debug, Clone, Default)]
pub struct Reach {
    /// Certificates, pins, token.
    pub options: DialOptions,
    /// Kills the runner, with signal 9, again and again while commands run: its commands must not notice. For addresses
    /// that start a new one when they are dialled (`ssh:`, `exec:… outlast-hand connect`).
    pub kill_runner: bool,
}

/// Outlast, by a runner's address.
pub struct Runner {
    address: Address,
    reach: Reach,
    runtime: Runtime,
    client: Mutex<Option<Arc<Client>>>,
    hello: outlast_wire::hello::Hello,
    scratch: String,
    /// What was admitted, by its handle: an attempt after it is the same command.
    admitted: Mutex<HashMap<String, Admission>>,
    workspaces: Mutex<Workspaces>,
    written: Mutex<HashMap<String, u64>>,
    killed: Mutex<u64>,
}

#[derive(Default)]
struct Workspaces {
    next: usize,
    by_key: HashMap<String, usize>,
}

/// Reaches the runner at this address.
///
/// # Errors
/// [`Trouble::Unavailable`] where it is no address, nobody answers there, or it runs no command.
pub fn connect(address: &str, reach: Reach) -> Answer<Arc<Runner>> {
    let address: Address = address.parse().map_err(Trouble::unavailable)?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Trouble::unobserved)?;
    let client = runtime.block_on(begin(&address, &reach.options)).map_err(Trouble::unavailable)?;
    let mut runner = Runner {
        hello: client.hello().clone(),
        client: Mutex::new(Some(Arc::new(client))),
        address,
        reach,
        runtime,
        scratch: String::new(),
        admitted: Mutex::default(),
        workspaces: Mutex::default(),
        written: Mutex::default(),
        killed: Mutex::default(),
    };
    let make = format!(
        "d=$(mktemp -d) && mkdir \"$d/w\" && cd \"$d/w\" && i=0 && while [ $i -lt {WORKSPACES} ]; do mkdir $i || exit 1; i=$((i+1)); done && printf %s \"$d\""
    );
    let made = runner.errand(&make)?;
    let folder = String::from_utf8(made).ok().filter(|folder| folder.starts_with('/'));
    runner.scratch =
        folder.ok_or_else(|| Trouble::unavailable("no scratch folder could be made on the hand"))?;
    runner.reach.kill_runner = runner.reach.kill_runner && runner.hello.runner_pid > 1;
    Ok(Arc::new(runner))
}

async fn begin(address: &Address, options: &DialOptions) -> Result<Client, String> {
    let in_words = |error: &dyn std::error::Error| {
        let mut words = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            words = format!("{words}: {error}");
            cause = error.source();
        }
        words
    };
    let stream = dial(address, options).await.map_err(|error| in_words(&error))?;
    let http = stream.http();
    let scope = Scope::new(SCOPE).map_err(|error| error.to_string())?;
    Client::begin(stream, http, options.token.as_deref(), scope).await.map_err(|error| in_words(&error))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Runner {
    /// Removes the scratch folder, and attests what nothing proves dead: the probes ended all that had their mark.
    ///
    /// # Errors
    /// What the runner says.
    pub fn remove(&self) -> Answer<()> {
        let mut after = None;
        loop {
            let page = self.call(|client| async move { client.list(after, 1000).await })?;
            for job in &page.jobs {
                if job.state == JobState::Unknown {
                    let settle = Settle::Attest { name: SCOPE.to_owned() };
                    let _ = self.settle_by(job.job_id, &settle);
                }
            }
            after = page.next_after;
            if after.is_none() {
                break;
            }
        }
        if self.scratch.starts_with('/') && self.scratch.len() > 1 {
            self.errand(&format!("rm -rf '{}'", self.scratch))?;
        }
        Ok(())
    }

    /// How often the runner was killed.
    #[must_use]
    pub fn killed(&self) -> u64 {
        *lock(&self.killed)
    }

    /// The connection, made anew where it was lost.
    fn client(&self) -> Answer<Arc<Client>> {
        let mut held = lock(&self.client);
        if let Some(client) = &*held {
            return Ok(Arc::clone(client));
        }
        let until = Instant::now() + CONNECT_WITHIN;
        loop {
            match self.runtime.block_on(begin(&self.address, &self.reach.options)) {
                Ok(client) => {
                    let client = Arc::new(client);
                    *held = Some(Arc::clone(&client));
                    return Ok(client);
                }
                Err(why) if Instant::now() >= until => return Err(Trouble::unavailable(why)),
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    fn drop_client(&self, lost: &Arc<Client>) {
        let mut held = lock(&self.client);
        if held.as_ref().is_some_and(|client| Arc::ptr_eq(client, lost)) {
            *held = None;
        }
    }

    /// Makes a call, and makes it again on a new connection where the old one was lost under it: a call that changes
    /// something carries the same id then.
    fn call<T, F, Fut>(&self, call: F) -> Answer<T>
    where
        F: Fn(Arc<Client>) -> Fut,
        Fut: Future<Output = Result<T, ClientError>>,
    {
        let until = Instant::now() + CONNECT_WITHIN;
        loop {
            let client = self.client()?;
            match self.runtime.block_on(call(Arc::clone(&client))) {
                Ok(value) => return Ok(value),
                Err(error) if error.is_of_connection() => {
                    self.drop_client(&client);
                    if Instant::now() >= until {
                        return Err(Trouble::unavailable(error));
                    }
                }
                Err(ClientError::Refused(problem)) => {
                    let why = problem.to_string();
                    return Err(match problem.code.as_str() {
                        "CONTAINMENT_UNAVAILABLE" => Trouble::unsupported(why),
                        "BUSY" | "OUT_OF_RESOURCES" => Trouble::unavailable(why),
                        code => Trouble::refused(code, why),
                    });
                }
                Err(error) => return Err(Trouble::unavailable(error)),
            }
        }
    }

    /// Runs a script of our own on the hand and gives its output.
    fn errand(&self, script: &str) -> Answer<Vec<u8>> {
        let id = new_id()?;
        let command = Command::Argv(["/bin/sh", "-c", script].map(Text::from).to_vec());
        let mut admission = Admission::new(key(&format!("errand-{id}"))?, command, "/");
        // Its own folder: the workspaces of probes may hold what is unknown.
        admission.workspace = Some(Text::from("/proc"));
        admission.allow_detach = true;
        let (id, admission) = (id.as_str(), &admission);
        let view =
            self.call(|client| async move { client.admit(id, admission, Until::Settled, WAIT).await })?;
        let mut output = Vec::new();
        self.read_job(view.job_id, 0, Follow::Until(WAIT), &mut |bytes| {
            output.extend_from_slice(bytes);
            ControlFlow::Continue(())
        })?;
        match view.verdict {
            Some(verdict) if verdict.exit_code == 0 => Ok(output),
            Some(verdict) => {
                Err(Trouble::unobserved(format!("an errand on the hand failed: {}", verdict.message)))
            }
            None => Err(Trouble::unobserved("an errand on the hand did not end")),
        }
    }

    fn admission(&self, request: &Request) -> Answer<Admission> {
        let number = {
            let mut workspaces = lock(&self.workspaces);
            let fresh = workspaces.next;
            let number = match &request.key {
                Some(key) => *workspaces.by_key.entry(key.clone()).or_insert(fresh),
                None => fresh,
            };
            workspaces.next += usize::from(number == fresh);
            number % WORKSPACES
        };
        let name = match &request.key {
            Some(key) => format!("{}-{key}", self.scratch),
            None => format!("{}-{}", self.scratch, new_id()?),
        };
        let command = match &request.work {
            Work::Argv(words) => {
                Command::Argv(words.iter().map(|word| Text(word.as_encoded_bytes().to_vec())).collect())
            }
            Work::Script(text) => Command::Script { shell: String::new(), text: Text::from(text.as_str()) },
        };
        let folder = format!("{}/w/{number}", self.scratch);
        let mut admission = Admission::new(key(&name)?, command, folder.as_str());
        let ms = |length: Duration| Millis(u64::try_from(length.as_millis()).unwrap_or(u64::MAX));
        admission.limits.deadline = request.deadline.map(ms);
        admission.grace = request.grace.map(ms);
        admission.allow_detach = true;
        if request.stdin == Stdin::Open {
            admission.stdin = StdinFrom::Open;
        }
        admission.containment = request.containment.map(|Containment::PidNamespace| Boundary::PidNamespace);
        if request.keep_all_output {
            admission.limits.log_bytes = Some(0);
        }
        Ok(admission)
    }

    fn admit(&self, admission: &Admission, until: Until, wait: Duration) -> Answer<JobView> {
        let id = new_id()?;
        let id = id.as_str();
        let view = self.call(|client| async move { client.admit(id, admission, until, wait).await })?;
        if let Some(failed) = &view.set_up_failed {
            return Err(match failed.code.as_str() {
                "CONTAINMENT_UNAVAILABLE" => Trouble::unsupported(&failed.message),
                code => Trouble::refused(code, &failed.message),
            });
        }
        lock(&self.admitted).insert(view.job_id.to_string(), admission.clone());
        Ok(view)
    }

    fn look(&self, handle: &Handle, until: Until, wait: Duration) -> Answer<Option<JobView>> {
        let id = job_id(handle)?;
        let wait = wait.min(WAIT);
        match self.call(|client| async move { client.job(id, until, wait).await }) {
            Ok(view) => Ok(Some(view)),
            Err(Trouble::Refused { code, .. }) if code == "NO_SUCH_JOB" => Ok(None),
            Err(trouble) => Err(trouble),
        }
    }

    fn read_job(&self, id: JobId, from: u64, follow: Follow, sink: Sink<'_>) -> Answer<u64> {
        let until = match follow {
            Follow::No => None,
            Follow::Until(within) => Some(Instant::now() + within),
        };
        let mut at = from;
        loop {
            let left = until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()));
            let read = Read { from: Cursor(at), wait: left.min(WAIT), ..Read::default() };
            let answer = self.call(|client| async move { client.read(id, read).await })?;
            at = answer.next.0;
            if !answer.body.is_empty() && sink(&answer.body).is_break() {
                // A reader that goes away takes its connection with it.
                let held = lock(&self.client).take();
                drop(held);
                return Ok(at);
            }
            match (answer.tail, until) {
                (Tail::Ended, _) | (Tail::Open, None) => return Ok(at),
                (_, Some(until)) if Instant::now() >= until => return Ok(at),
                _ => {}
            }
        }
    }

    fn settle_by(&self, id: JobId, how: &Settle) -> Answer<WireSettled> {
        let request = new_id()?;
        let request = request.as_str();
        self.call(|client| async move { client.settle(request, id, how).await })
    }

    /// Kills the runner where that was asked for.
    fn shake(&self) {
        if !self.reach.kill_runner {
            return;
        }
        let Ok(client) = self.client() else { return };
        let pid = client.hello().runner_pid;
        let id = new_id().unwrap_or_default();
        let script = format!("kill -9 {pid}");
        let command = Command::Argv(["/bin/sh", "-c", script.as_str()].map(Text::from).to_vec());
        let Ok(key) = key(&format!("shake-{id}")) else { return };
        let mut admission = Admission::new(key, command, "/");
        admission.workspace = Some(Text::from("/proc"));
        // No answer comes, if all goes well.
        let answer =
            self.runtime.block_on(client.admit(&id, &admission, Until::Settled, Duration::from_secs(5)));
        drop(answer);
        self.drop_client(&client);
        *lock(&self.killed) += 1;
    }
}

impl Subject for Runner {
    fn describe(&self) -> Description {
        let offer = self.hello.containment.iter().find(|offer| offer.available);
        let shaken = if self.reach.kill_runner { ", the runner killed again and again" } else { "" };
        Description {
            name: "outlast runner".to_owned(),
            version: self.hello.runner_version.clone(),
            reached: format!("hand protocol, {}{shaken}", self.address),
            boundary: offer.map(|offer| format!("{} by default", offer.name)),
        }
    }

    fn on_this_machine(&self) -> bool {
        // Another machine may have the same socket path, not the same boot.
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        matches!(self.address, Address::Unix(_)) && boot.trim() == self.hello.boot_id.as_str()
    }

    fn scratch(&self) -> String {
        self.scratch.clone()
    }

    fn start(&self, request: &Request) -> Answer<Started> {
        let view = self.admit(&self.admission(request)?, Until::Started, WAIT)?;
        let existed = view.arrival != Some(Arrival::Admitted);
        self.shake();
        Ok(Started { handle: Handle(view.job_id.to_string()), existed })
    }

    fn start_and_lose_the_answer(&self, request: &Request) -> Answer<()> {
        let (admission, id) = (self.admission(request)?, new_id()?);
        self.runtime.block_on(async {
            let client = begin(&self.address, &self.reach.options).await.map_err(Trouble::unavailable)?;
            // The connection goes while the answer is waited for.
            let answer = client.admit(&id, &admission, Until::Settled, WAIT);
            let _ = tokio::time::timeout(Duration::from_millis(50), answer).await;
            Ok(())
        })
    }

    fn inspect(&self, handle: &Handle) -> Answer<Said> {
        Ok(self
            .look(handle, Until::Now, Duration::ZERO)?
            .map_or(Said::only(State::Forgotten), |view| said(&view)))
    }

    fn wait(&self, handle: &Handle, within: Duration) -> Answer<Said> {
        let until = Instant::now() + within;
        self.shake();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let Some(view) = self.look(handle, Until::Settled, left)? else {
                return Ok(Said::only(State::Forgotten));
            };
            let said = said(&view);
            if said.state.is_final() || Instant::now() >= until {
                return Ok(said);
            }
        }
    }

    fn run(&self, request: &Request, within: Duration) -> Answer<Said> {
        // One call, as most callers make it; longer ones go on by waiting.
        let view = self.admit(&self.admission(request)?, Until::Settled, within.min(WAIT))?;
        let told = said(&view);
        match told.state.is_final() {
            true => Ok(told),
            false => self.wait(&Handle(view.job_id.to_string()), within.saturating_sub(WAIT)),
        }
    }

    fn read(&self, handle: &Handle, from: u64, follow: Follow, sink: Sink<'_>) -> Answer<u64> {
        if follow != Follow::No {
            self.shake();
        }
        self.read_job(job_id(handle)?, from, follow, sink)
    }

    fn stop(&self, handle: &Handle, within: Duration) -> Answer<Said> {
        let (id, request) = (job_id(handle)?, new_id()?);
        let stop =
            Stop { id: format!("stop-{request}"), force: false, grace: None, reason: StopReason::Asked };
        let (request, stop) = (request.as_str(), &stop);
        self.call(|client| async move { client.stop(request, id, stop).await })?;
        self.wait(handle, within)
    }

    fn write_stdin(&self, handle: &Handle, bytes: &[u8], close: bool) -> Answer<()> {
        let id = job_id(handle)?;
        let begin = lock(&self.written).get(&handle.0).copied().unwrap_or(0);
        let mut at = begin;
        let end = begin + bytes.len() as u64;
        loop {
            let from = usize::try_from(at - begin).unwrap_or(usize::MAX).min(bytes.len());
            let piece = Bytes::copy_from_slice(&bytes[from..(from + (512 << 10)).min(bytes.len())]);
            let last = from + piece.len() == bytes.len();
            let request = new_id()?;
            let (request, piece) = (request.as_str(), &piece);
            let taken = self.call(|client| async move {
                client.write_stdin(request, id, Cursor(at), piece.clone(), close && last, WAIT).await
            })?;
            at = taken.taken.0;
            lock(&self.written).insert(handle.0.clone(), at);
            if taken.closed || (at >= end && !close) {
                return match at >= end {
                    true => Ok(()),
                    false => Err(Trouble::refused("CLOSED", "it takes no more input")),
                };
            }
        }
    }

    fn next_attempt(&self, handle: &Handle) -> Answer<Handle> {
        let admission = lock(&self.admitted).get(&handle.0).cloned();
        let mut admission = admission.ok_or_else(|| Trouble::unobserved("it was not admitted here"))?;
        admission.attempt = Attempt(admission.attempt.0.saturating_add(1));
        let view = self.admit(&admission, Until::Started, WAIT)?;
        Ok(Handle(view.job_id.to_string()))
    }

    fn kill_owner(&self, handle: &Handle) -> Answer<String> {
        let pid = self.look(handle, Until::Now, Duration::ZERO)?.and_then(|view| view.keeper_pid);
        let pid = pid.ok_or_else(|| Trouble::unobserved("it has no keeper now"))?;
        // By a command of the hand: over there the number means that process.
        self.errand(&format!("kill -9 {pid}; while kill -0 {pid} 2>/dev/null && ! grep -q 'State:.Z' /proc/{pid}/status; do sleep 0.01; done"))?;
        Ok(format!("the job's warden, process {pid} of the hand"))
    }

    fn restart_owner(&self) -> Answer<String> {
        Ok("nothing to restart: the runner settles what lost its keeper by itself".to_owned())
    }

    fn settle(&self, handle: &Handle, within: Duration) -> Answer<Settled> {
        let until = Instant::now() + within;
        loop {
            let refused = match self.settle_by(job_id(handle)?, &Settle::Asked)? {
                WireSettled::Busy if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(20));
                    continue;
                }
                WireSettled::Settled | WireSettled::Attested => None,
                WireSettled::KeeperLives => Some("its keeper lives".to_owned()),
                WireSettled::Busy => Some("another settler is at it".to_owned()),
                WireSettled::StillUnknown { why, .. } => Some(why),
            };
            return Ok(Settled { said: self.inspect(handle)?, refused });
        }
    }

    fn owners(&self, handle: &Handle) -> Answer<Vec<u32>> {
        if !self.on_this_machine() {
            return Err(Trouble::unsupported("the hand is on another machine"));
        }
        let warden = self.look(handle, Until::Now, Duration::ZERO)?.and_then(|view| view.keeper_pid);
        let warden = warden.ok_or_else(|| Trouble::unobserved("it has no keeper now"))?;
        let program = |pid: u32| -> Option<PathBuf> { fs::read_link(format!("/proc/{pid}/exe")).ok() };
        let own =
            program(warden).ok_or_else(|| Trouble::unobserved("its keeper's program cannot be seen"))?;
        // The scribe is a fork of the warden; the command is its child as well, but another program.
        let scribe = descendants(warden).into_iter().filter(|pid| program(*pid).as_ref() == Some(&own));
        Ok([warden, self.hello.runner_pid].into_iter().chain(scribe).collect())
    }
}

fn new_id() -> Answer<String> {
    request_id().map_err(Trouble::unobserved)
}

fn key(text: &str) -> Answer<Key> {
    Key::new(text).map_err(Trouble::unobserved)
}

fn job_id(handle: &Handle) -> Answer<JobId> {
    handle.0.parse().map_err(Trouble::unobserved)
}

fn said(view: &JobView) -> Said {
    let state = match view.state {
        JobState::Starting | JobState::Running => State::Running,
        JobState::Stopping => State::Stopping,
        JobState::Unknown => State::Unknown,
        JobState::Settled | JobState::Paused => State::Ended,
    };
    let end = view.exit.as_ref().map(|exit| match exit {
        Exit::Exited { code } => End::Exited { code: i64::from(*code) },
        Exit::Signaled { signal, .. } => End::Signaled { signal: *signal },
        Exit::ExecFailed { errno, stage } => End::NotExecuted { why: format!("{stage}, error {errno}") },
        Exit::NotStarted { .. } => End::NotExecuted { why: exit.to_string() },
        Exit::Unknown { why } => End::Unknown { why: why.clone() },
    });
    let receipt = view.receipt.as_ref();
    let cause =
        receipt.map(|receipt| &receipt.cause).or(view.ending.as_ref()).and_then(|cause| match cause {
            CoreCause::OwnEnd => Some(Cause::Itself),
            CoreCause::Deadline { .. } => Some(Cause::Deadline),
            CoreCause::Stop { .. } => Some(Cause::Stop),
            CoreCause::KeeperLost => Some(Cause::OwnerLost),
            _ => None,
        });
    let gap = receipt.and_then(|receipt| match &receipt.output.drain {
        Drain::Incomplete { held_by } => Some(format!("incomplete, held by {} processes", held_by.len())),
        _ => None,
    });
    Said {
        state,
        end,
        effective: receipt.and_then(|receipt| receipt.effective_status()).map(i64::from),
        cause,
        proof: receipt.map(|receipt| receipt.death.name().to_owned()),
        gap,
        because: view.because.clone(),
    }
}
