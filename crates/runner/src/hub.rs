//! A watch on each open job.
//!
//! The runner keeps one connection to each living keeper, however many callers wait for the job: they are told here. A
//! keeper whose connection closes has finished or is lost; which, the job's folder says, and what is lost is settled at
//! once as far as proof goes. Words of keepers only hurry things: whoever is woken looks at the files.

use crate::pool::{Lanes, NotDone};
use crate::shared::lock;
use outlast_core::exit::Exit;
use outlast_core::id::JobId;
use outlast_core::ledger::StartMark;
use outlast_core::time::Millis;
use outlast_hand::control::{Notice, Say, Watch};
use outlast_hand::home::Home;
use outlast_hand::job::{Job, name};
use outlast_hand::settle::{Outcome, Settle, settle};
use outlast_hand::{clock, files};
use outlast_sys::{Pid, pidfd};
use outlast_wire::view::SetUpFailed;
use rustix::fs::AtFlags;
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, watch};

/// A launched keeper that has not begun by then is looked for: a little more than a settler waits for its start mark.
const BEGINS_WITHIN: Duration = Duration::from_millis(5_500);
/// How soon a job whose keeper does not listen yet is looked at again; doubled each time.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// The longest of those pauses.
const LOOK_AGAIN_AT_MOST: Duration = Duration::from_millis(500);
/// The same for a job that is unknown: what may change there is that a person attests, or that its deadline comes.
const UNKNOWN_AGAIN: Duration = Duration::from_secs(1);
/// The longest of those pauses.
const UNKNOWN_AGAIN_AT_MOST: Duration = Duration::from_secs(30);
/// How often the home is looked at for jobs that others admitted.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// What could not be set up is remembered for so many jobs.
const FAILURES: usize = 256;

/// What is known of an open job without looking.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// The command's process exists.
    pub(crate) started: bool,
    /// The command's own process ended.
    pub(crate) exited: bool,
    /// There is a receipt, a person's word, or nothing any more.
    pub(crate) settled: bool,
    /// Its keeper is lost and nothing proves its end.
    pub(crate) unknown: bool,
    /// How often a watch was connected: before that, things may have happened unheard.
    pub(crate) connected: u32,
}

/// One open job.
pub(crate) struct Entry {
    id: JobId,
    seen: watch::Sender<Seen>,
    exit: Mutex<Option<Exit>>,
    output: watch::Sender<u64>,
    link: Mutex<Link>,
    /// The watch of its keeper's launch, until it is listened to.
    launched: Mutex<Option<Watch>>,
    handed: Notify,
}

#[derive(Default)]
struct Link {
    watch: Option<Arc<AsyncFd<Socket>>>,
    followers: usize,
}

struct Socket(Watch);

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.0.socket().as_raw_fd()
    }
}

impl Entry {
    /// What is known, and what comes.
    pub(crate) fn seen(&self) -> watch::Receiver<Seen> {
        self.seen.subscribe()
    }

    /// How the command's own process ended, where its keeper has said so. The keeper writes that down a moment later.
    pub(crate) fn exit(&self) -> Option<Exit> {
        lock(&self.exit).clone()
    }

    /// A call that follows the output; told of it for as long as this lives.
    pub(crate) fn follow(self: &Arc<Entry>) -> Following {
        let mut link = lock(&self.link);
        link.followers += 1;
        if link.followers == 1 {
            tell_output(&link, true);
        }
        drop(link);
        Following { entry: Arc::clone(self), output: self.output.subscribe() }
    }

    fn is_watched(&self) -> bool {
        lock(&self.link).watch.is_some()
    }

    /// Hands over the watch that the keeper's launch gave, to be listened to instead of any other.
    fn hand(&self, watch: Watch) {
        *lock(&self.launched) = Some(watch);
        self.handed.notify_one();
    }

    /// Returns once a launch's watch is there that nobody listens to.
    async fn handed(&self) {
        // Word of one that was taken meanwhile may still be there.
        while lock(&self.launched).is_none() {
            self.handed.notified().await;
        }
    }

    fn note(&self, change: impl FnOnce(&mut Seen)) {
        self.seen.send_modify(change);
    }
}

/// Has the keeper tell of output, or not any more. Where it does not hear, its socket closes, which is heard here.
fn tell_output(link: &Link, output: bool) {
    if let Some(watch) = &link.watch {
        let _ = watch.get_ref().0.set_output(output);
    }
}

/// See [`Entry::follow`].
pub(crate) struct Following {
    entry: Arc<Entry>,
    output: watch::Receiver<u64>,
}

impl Following {
    /// Waits until output was logged since this was asked last.
    pub(crate) async fn output(&mut self) {
        // The sender lives as long as the entry, which is held here.
        let _ = self.output.changed().await;
    }

    /// What is known of the job, and what comes.
    pub(crate) fn seen(&self) -> watch::Receiver<Seen> {
        self.entry.seen()
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let mut link = lock(&self.entry.link);
        link.followers -= 1;
        if link.followers == 0 {
            tell_output(&link, false);
        }
    }
}

/// All open jobs of a home.
pub(crate) struct Hub {
    home: Arc<Home>,
    lanes: Lanes,
    entries: Mutex<HashMap<JobId, Arc<Entry>>>,
    failures: Mutex<VecDeque<(JobId, SetUpFailed)>>,
}

/// What a look at a job without a watch found.
enum Found {
    /// There is nothing to wait for.
    Over,
    /// Its keeper listens.
    Keeper(Watch),
    /// It has yet to come, or somebody else settles it.
    Soon,
    /// Nothing proves its end.
    Unknown {
        /// How far away its deadline is.
        due: Option<Millis>,
        /// The init of its namespace, whose end would be proof.
        init: Option<OwnedFd>,
    },
}

impl Hub {
    pub(crate) fn new(home: Arc<Home>, lanes: Lanes) -> Hub {
        Hub { home, lanes, entries: Mutex::default(), failures: Mutex::default() }
    }

    /// Whether a living watch is held on a job's keeper.
    pub(crate) fn watches(&self, id: JobId) -> bool {
        lock(&self.entries).get(&id).is_some_and(|entry| entry.is_watched())
    }

    /// Jobs that are open.
    pub(crate) fn open_jobs(&self) -> usize {
        lock(&self.entries).len()
    }

    /// Takes over the watch of a keeper that was just launched, also of a job that the sweep or another call came upon first.
    /// It alone was told everything from the beginning: what could not be set up is told to no later watch. What was said
    /// so far is heard before this returns, so whoever looks next knows it, even if the job is settled already.
    pub(crate) fn adopt(self: &Arc<Hub>, id: JobId, watch: Watch) -> Arc<Entry> {
        let entry = self.entry(id);
        while let Ok(Notice::Said(say)) = watch.next(Some(Duration::ZERO)) {
            self.hear(&entry, say);
        }
        entry.hand(watch);
        entry
    }

    /// The entry of a job, which is looked after from now on. For one that is over, it soon says so.
    pub(crate) fn entry(self: &Arc<Hub>, id: JobId) -> Arc<Entry> {
        let mut entries = lock(&self.entries);
        if let Some(entry) = entries.get(&id) {
            return Arc::clone(entry);
        }
        let entry = Arc::new(Entry {
            id,
            seen: watch::Sender::new(Seen::default()),
            exit: Mutex::default(),
            output: watch::Sender::new(0),
            link: Mutex::default(),
            launched: Mutex::default(),
            handed: Notify::new(),
        });
        entries.insert(id, Arc::clone(&entry));
        drop(entries);
        tokio::spawn(Arc::clone(self).attend(Arc::clone(&entry)));
        entry
    }

    /// What could not be set up for a job, where its keeper said so to this runner.
    pub(crate) fn set_up_failed(&self, id: JobId) -> Option<SetUpFailed> {
        lock(&self.failures).iter().find(|(job, _)| *job == id).map(|(_, failed)| failed.clone())
    }

    fn note_failure(&self, id: JobId, failed: SetUpFailed) {
        let mut failures = lock(&self.failures);
        if failures.len() == FAILURES {
            failures.pop_front();
        }
        failures.push_back((id, failed));
    }

    /// Looks after one job until there is nothing to wait for.
    async fn attend(self: Arc<Hub>, entry: Arc<Entry>) {
        let mut watch = None;
        let mut pause = LOOK_AGAIN;
        let mut unknown_pause = UNKNOWN_AGAIN;
        loop {
            // A keeper that was launched just now has told its watch everything from the beginning.
            let launched = lock(&entry.launched).take();
            let from_the_beginning = launched.is_some();
            if let Some(watch) = launched.or(watch.take()) {
                self.listen(&entry, watch, from_the_beginning).await;
                if entry.seen.borrow().settled {
                    break;
                }
                pause = LOOK_AGAIN;
                if lock(&entry.launched).is_some() {
                    continue;
                }
            }
            let (home, id) = (Arc::clone(&self.home), entry.id);
            let found = self.lanes.settle.run(move || look_after(&home, id)).await;
            if lock(&entry.launched).is_some() {
                // It knows more than a look does, also of a job that is over.
                continue;
            }
            match found {
                Ok(Ok(Found::Over)) => {
                    entry.note(|seen| seen.settled = true);
                    break;
                }
                Ok(Ok(Found::Keeper(found))) => watch = Some(found),
                Ok(Ok(Found::Unknown { due, init })) => {
                    entry.note(|seen| seen.unknown = true);
                    let due = due.map_or(UNKNOWN_AGAIN_AT_MOST, |due| Duration::from_millis(due.0 + 1));
                    tokio::select! {
                        () = tokio::time::sleep(unknown_pause.min(due)) => {}
                        () = end_of(init) => {}
                        () = entry.handed() => {}
                    }
                    unknown_pause = (unknown_pause * 2).min(UNKNOWN_AGAIN_AT_MOST);
                }
                Ok(Ok(Found::Soon)) | Ok(Err(_)) | Err(NotDone::Full | NotDone::Failed) => {
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        () = entry.handed() => {}
                    }
                    pause = (pause * 2).min(LOOK_AGAIN_AT_MOST);
                }
            }
        }
        lock(&self.entries).remove(&entry.id);
    }

    /// Hears a keeper until it closes or has settled the job, or the watch of its launch is there, which knows all that this
    /// one does and more.
    async fn listen(&self, entry: &Entry, watch: Watch, from_the_beginning: bool) {
        #[expect(deprecated, reason = "its successor is unsafe code; what is given here owns its descriptor")]
        let Ok(watch) = AsyncFd::with_interest(Socket(watch), Interest::READABLE) else { return };
        let watch = Arc::new(watch);
        {
            let mut link = lock(&entry.link);
            link.watch = Some(Arc::clone(&watch));
            if link.followers > 0 {
                tell_output(&link, true);
            }
        }
        entry.note(|seen| {
            seen.connected += u32::from(!from_the_beginning);
            seen.unknown = false;
        });
        let begins_by = tokio::time::Instant::now() + BEGINS_WITHIN;
        loop {
            let begun = !from_the_beginning || entry.seen.borrow().started;
            let ready = tokio::select! {
                ready = watch.readable() => ready,
                () = entry.handed() => break,
                // Nobody has it, though the channel is open: it lies where keepers come from. It is settled as never started.
                () = tokio::time::sleep_until(begins_by), if !begun => break,
            };
            let Ok(mut ready) = ready else { break };
            match watch.get_ref().0.next(Some(Duration::ZERO)) {
                Ok(Notice::Said(say)) => {
                    self.hear(entry, say);
                    if entry.seen.borrow().settled {
                        break;
                    }
                }
                Ok(Notice::TimedOut) => ready.clear_ready(),
                Ok(Notice::Closed) | Err(_) => break,
            }
        }
        lock(&entry.link).watch = None;
        // Followers of a job whose keeper was lost read on what its scribe still logs, or learn that nothing comes.
        entry.output.send_modify(|count| *count += 1);
    }

    fn hear(&self, entry: &Entry, say: Say) {
        match say {
            Say::Started => entry.note(|seen| seen.started = true),
            Say::Exited { exit } => {
                *lock(&entry.exit) = Some(exit);
                entry.note(|seen| seen.exited = true);
            }
            Say::Settled => entry.note(|seen| seen.settled = true),
            Say::Output => entry.output.send_modify(|count| *count += 1),
            Say::Failed { code, message, remedy } => {
                self.note_failure(entry.id, SetUpFailed { code, message, remedy });
            }
            _ => {}
        }
    }

    /// Finds jobs that this runner did not admit, now and for ever.
    pub(crate) async fn sweep_for_ever(self: Arc<Hub>) {
        let mut swept = Swept::default();
        loop {
            let home = Arc::clone(&self.home);
            if let Ok((after, found)) = self.lanes.settle.run(move || sweep(&home, swept)).await {
                swept = after;
                for id in found {
                    drop(self.entry(id));
                }
            } else {
                swept = Swept::default();
            }
            tokio::time::sleep(SWEEP_EVERY).await;
        }
    }
}

/// Takes a job without a watch as far as it goes.
fn look_after(home: &Home, id: JobId) -> io::Result<Found> {
    let Some(job) = home.job(id)? else { return Ok(Found::Over) };
    if job.receipt()?.is_some() {
        return Ok(Found::Over);
    }
    if let Some(watch) = Watch::connect(&job, false)? {
        return Ok(Found::Keeper(watch));
    }
    Ok(match settle(home, &job, &Settle::IfDue)? {
        Outcome::Settled(_) | Outcome::Attested(_) => Found::Over,
        Outcome::KeeperLives | Outcome::Busy => Found::Soon,
        Outcome::StillUnknown { .. } if job.attestation()?.is_some() => Found::Over,
        Outcome::StillUnknown { .. } => Found::Unknown { due: until_deadline(&job), init: init_of(&job) },
    })
}

/// The living init of a job's PID namespace.
fn init_of(job: &Job) -> Option<OwnedFd> {
    let (_, pid, start_time, namespace) = job.look().ok()?.ledger.started?;
    namespace?;
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
    let init = pidfd::open(pid).ok()?;
    // Looked at after it is held, so that it is that one and not a later process of its number.
    (pidfd::start_time(pid) == Some(start_time)).then_some(init)
}

/// Returns once a process has ended; never, where there is none to wait for.
async fn end_of(process: Option<OwnedFd>) {
    if let Some(process) = process {
        #[expect(deprecated, reason = "its successor is unsafe code; what is given here owns its descriptor")]
        let process = AsyncFd::with_interest(process, Interest::READABLE);
        if let Ok(process) = process
            && process.readable().await.is_ok()
        {
            return;
        }
    }
    std::future::pending::<()>().await;
}

fn until_deadline(job: &Job) -> Option<Millis> {
    let deadline = job.spec().work.limits.deadline.filter(|deadline| deadline.0 > 0)?;
    let StartMark::Keeper(mark) = job.start_mark().ok()?? else { return None };
    let due = mark.mono.plus(deadline);
    // One that is past was acted on just now.
    Some(due.since(clock::mono_now())).filter(|left| left.0 > 0)
}

/// What a sweep left behind for the next.
#[derive(Default)]
struct Swept {
    /// When the folder of jobs had last changed.
    jobs_changed: Option<(i64, u64)>,
    /// Jobs that were looked at.
    known: HashSet<JobId>,
}

/// The jobs that have no receipt among those that came since the last sweep.
fn sweep(home: &Home, mut swept: Swept) -> (Swept, Vec<JobId>) {
    let changed = rustix::fs::fstat(home.jobs_dir()).ok().map(|stat| (stat.st_mtime, stat.st_mtime_nsec));
    if changed.is_some() && changed == swept.jobs_changed {
        return (swept, Vec::new());
    }
    let Ok(jobs) = home.jobs() else { return (swept, Vec::new()) };
    // Read before the listing, so that what came during it is found by the next.
    swept.jobs_changed = changed;
    let there: HashSet<JobId> = jobs.into_iter().collect();
    let open = there.iter().filter(|id| !swept.known.contains(*id)).copied().filter(|id| !is_over(home, *id));
    let open = open.collect();
    swept.known = there;
    (swept, open)
}

fn is_over(home: &Home, id: JobId) -> bool {
    let Ok(dir) = files::open_subdir(home.jobs_dir(), &id.to_string()) else { return true };
    let has = |name: &str| rustix::fs::statat(dir.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW).is_ok();
    has(name::RECEIPT) || has(name::ATTESTED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};

    const ID: &str = "0123456789abcdef.1.1";

    fn play(scene: impl AsyncFnOnce(Arc<Hub>)) {
        let folder = tempfile::tempdir().unwrap();
        let home = Arc::new(Home::open(&folder.path().join("home")).unwrap());
        let hub = Arc::new(Hub::new(home, Lanes::start().unwrap()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            tokio::time::timeout(Duration::from_secs(30), scene(hub)).await.expect("waited in vain");
        });
    }

    /// A watch, and the keeper's end of it.
    fn watch() -> (Watch, OwnedFd) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        (Watch::from_socket(ours), theirs)
    }

    fn say(keeper: &OwnedFd, word: &Say) {
        send(keeper, &serde_json::to_vec(word).unwrap(), SendFlags::NOSIGNAL).unwrap();
    }

    fn failed(code: &str) -> Say {
        Say::Failed { code: code.into(), message: "it is not there".into(), remedy: "ask for another".into() }
    }

    async fn until(entry: &Entry, what: impl FnMut(&Seen) -> bool) {
        entry.seen().wait_for(what).await.unwrap();
    }

    fn code(hub: &Hub) -> Option<String> {
        hub.set_up_failed(ID.parse().unwrap()).map(|failed| failed.code)
    }

    /// The sweep came upon the job first and has a watch of its own; what went wrong was told to the launch's only, before
    /// it was handed over.
    #[test]
    fn what_the_launch_was_told_is_known_at_once() {
        play(async |hub| {
            let id = ID.parse().unwrap();
            let (own, swept) = watch();
            let entry = hub.adopt(id, own);
            say(&swept, &Say::Started);
            until(&entry, |seen| seen.started).await;
            let (launch, keeper) = watch();
            say(&keeper, &failed("CONTAINMENT_UNAVAILABLE"));
            let adopted = hub.adopt(id, launch);
            assert!(Arc::ptr_eq(&entry, &adopted), "one entry for all who wait");
            assert_eq!(code(&hub).as_deref(), Some("CONTAINMENT_UNAVAILABLE"));
            say(&keeper, &Say::Settled);
            until(&entry, |seen| seen.settled).await;
        });
    }

    /// The same, told after it was handed over: the entry listens to the launch's watch from then on, not to its own.
    #[test]
    fn the_watch_of_the_launch_is_the_one_that_is_heard() {
        play(async |hub| {
            let id = ID.parse().unwrap();
            let (own, swept) = watch();
            let entry = hub.adopt(id, own);
            say(&swept, &Say::Started);
            until(&entry, |seen| seen.started).await;
            let (launch, keeper) = watch();
            hub.adopt(id, launch);
            say(&keeper, &failed("USER_UNAVAILABLE"));
            say(&keeper, &Say::Settled);
            until(&entry, |seen| seen.settled).await;
            assert_eq!(code(&hub).as_deref(), Some("USER_UNAVAILABLE"));
        });
    }

    /// The same, while the sweep's entry looks at the folder, and finds there that the job is over.
    #[test]
    fn a_look_that_finds_the_job_over_does_not_lose_why() {
        play(async |hub| {
            let id = ID.parse().unwrap();
            // No thread has time for the look before the launch's watch is there.
            let (go, wait) = std::sync::mpsc::channel::<()>();
            let wait = Arc::new(Mutex::new(wait));
            let blocked: Vec<_> = (0..64)
                .map(|_| {
                    let (lanes, wait) = (hub.lanes.clone(), Arc::clone(&wait));
                    tokio::spawn(async move { lanes.settle.run(move || lock(&wait).recv().is_ok()).await })
                })
                .collect();
            // There is no such job, so the look will find nothing to wait for.
            let entry = hub.entry(id);
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            let (launch, keeper) = watch();
            hub.adopt(id, launch);
            drop(go);
            for blocked in blocked {
                blocked.await.unwrap().unwrap();
            }
            say(&keeper, &failed("LIMITS_UNAVAILABLE"));
            say(&keeper, &Say::Settled);
            until(&entry, |seen| seen.settled).await;
            assert_eq!(code(&hub).as_deref(), Some("LIMITS_UNAVAILABLE"));
            // Nothing is left to look after.
            while hub.open_jobs() > 0 {
                tokio::task::yield_now().await;
            }
        });
    }
}
