//! Scenes that act on a whole process: forks, waits for any child, signal dispositions, namespaces.
//!
//! Each runs in a process of its own with one thread, started by this program's main with the scene's name. A
//! scene fails by panicking, and is ended if it takes longer than a minute.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::ffi::{CString, OsStr};
use std::fs;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use outlast_sys::cgroup::{Hierarchy, Leaf, locate};
use outlast_sys::fork::{ForkOptions, Forked, fork_process};
use outlast_sys::proc_tree::{Scanner, children_of, signal_descendants};
use outlast_sys::signals::{self, SignalFd};
use outlast_sys::spawn::{Credentials, Spawn};
use outlast_sys::wait::{Children, Status, WaitOutcome, wait_any, wait_pidfd};
use outlast_sys::{Errno, Pid, Signal, ns, pidfd, prctl};

/// A name, and what is to be true.
type Scene = (&'static str, fn());

const SCENES: &[Scene] = &[
    ("a_child_without_exit_signal_is_invisible_to_plain_waits", invisible),
    ("executing_a_program_makes_a_child_visible", visible_after_exec),
    ("a_failed_spawn_leaves_no_child", failed_spawn),
    ("a_fork_is_refused_beside_other_threads", refused_fork),
    ("a_fork_is_born_in_its_group", fork_into_group),
    ("a_subreaper_adopts_and_ends_all_but_the_excluded", subreaper),
    ("a_process_that_forks_away_is_caught", hopper),
    ("a_thousand_processes_are_found_and_ended_quickly", thousand),
    ("signals_arrive_on_a_descriptor", signal_fd),
    ("a_reset_undoes_what_was_inherited", reset),
    ("a_spawn_as_another_user_leaves_us_dumpable", dumpable),
    ("what_a_keeper_says_of_itself_holds", said),
    ("ignored_signals_reach_no_child", looked_at),
    ("a_process_shows_the_command_line_it_set", command_line),
    ("namespaces_as_we_are", namespaces),
    ("namespaces_as_an_ordinary_user", namespaces_unprivileged),
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Some(at) = args.iter().position(|arg| arg == "--scene") {
        let name = args.get(at + 1).expect("--scene needs a name");
        let scene = SCENES.iter().find(|scene| scene.0 == name).expect("no such scene");
        scene.1();
        return ExitCode::SUCCESS;
    }
    // The part of the test harness's language that test runners speak: none of these scenes is ever ignored.
    let has = |option: &str| args.iter().any(|arg| arg == option);
    if has("--list") {
        if !has("--ignored") {
            for (name, _) in SCENES {
                println!("{name}: test");
            }
        }
        return ExitCode::SUCCESS;
    }
    let filters: Vec<&String> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    let chosen = SCENES.iter().filter(|scene| {
        filters.is_empty() || filters.iter().any(|filter| matches(scene.0, filter, has("--exact")))
    });
    let (mut passed, mut failed) = (0, 0);
    for (name, _) in chosen {
        let ok = run(name);
        println!("test {name} ... {}", if ok { "ok" } else { "FAILED" });
        *(if ok { &mut passed } else { &mut failed }) += 1;
    }
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {verdict}. {passed} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out\n"
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn matches(name: &str, filter: &str, exact: bool) -> bool {
    if exact { name == filter } else { name.contains(filter) }
}

fn run(name: &str) -> bool {
    let me = std::env::current_exe().unwrap();
    let mut child = Command::new(me).args(["--scene", name]).stdin(Stdio::null()).spawn().unwrap();
    let fd = pidfd::open(Pid::from_child(&child)).unwrap();
    if !readable_within(fd.as_fd(), Duration::from_secs(60)) {
        println!("{name} takes too long");
        child.kill().unwrap();
    }
    child.wait().unwrap().success()
}

fn readable_within(fd: std::os::fd::BorrowedFd<'_>, time: Duration) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let timeout = Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: 0 };
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)).unwrap() == 1
}

/// Waits for a condition that others make true.
fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(30), "never: {what}");
        std::thread::yield_now();
    }
}

fn c(text: impl AsRef<OsStr>) -> CString {
    CString::new(text.as_ref().as_bytes()).unwrap()
}

fn pipe() -> (OwnedFd, OwnedFd) {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap()
}

fn shell(script: &str) -> Spawn<'static> {
    let mut spawn = Spawn::new(c("/bin/sh"));
    spawn.args([c("-c"), c(script)]).env(vec![c("PATH=/usr/bin:/bin")]);
    spawn
}

/// Forks, and runs `child` in the child, which exits with what it returns, or with 101 if it panics.
fn fork(options: ForkOptions<'_>, child: impl FnOnce() -> i32) -> (Pid, OwnedFd) {
    match fork_process(options).unwrap() {
        Forked::Parent { pid, pidfd } => (pid, pidfd),
        Forked::Child => {
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(101);
            std::process::exit(code)
        }
    }
}

fn ordinary() -> ForkOptions<'static> {
    ForkOptions { exit_signal: Some(Signal::CHILD), ..ForkOptions::default() }
}

/// A child that ends with `code` once a byte is written to the pipe.
fn held(options: ForkOptions<'_>, code: i32) -> (Pid, OwnedFd, OwnedFd) {
    let (reader, writer) = pipe();
    let (pid, pidfd) = fork(options, || {
        // Children forked later hold copies of the writer, so its end alone would not be noticed.
        prctl::set_parent_death_signal(Some(Signal::KILL)).unwrap();
        rustix::io::read(&reader, &mut [0]).unwrap();
        code
    });
    (pid, pidfd, writer)
}

fn release(writer: OwnedFd) {
    rustix::io::write(&writer, b"x").unwrap();
}

fn reaped(outcome: WaitOutcome) -> (Pid, Status) {
    match outcome {
        WaitOutcome::Reaped { pid, status, .. } => (pid, status),
        other => panic!("{other:?}"),
    }
}

/// Reaps all ordinary children, however long that takes, and counts them.
fn reap_all() -> usize {
    let mut count = 0;
    while wait_any(false).unwrap() != WaitOutcome::NoChildren {
        count += 1;
    }
    count
}

fn invisible() {
    assert_eq!(wait_any(true).unwrap(), WaitOutcome::NoChildren);
    let (scribe, scribe_fd, scribe_pipe) = held(ForkOptions::default(), 7);
    assert_eq!(wait_any(true).unwrap(), WaitOutcome::NoChildren);
    assert_eq!(wait_any(false).unwrap(), WaitOutcome::NoChildren);
    assert_eq!(wait_pidfd(scribe_fd.as_fd(), Children::Ordinary, true).unwrap(), WaitOutcome::NoChildren);
    assert_eq!(wait_pidfd(scribe_fd.as_fd(), Children::All, true).unwrap(), WaitOutcome::NoneReady);

    let (other, other_fd, other_pipe) = held(ordinary(), 3);
    assert_eq!(wait_any(true).unwrap(), WaitOutcome::NoneReady);
    assert_eq!(wait_pidfd(other_fd.as_fd(), Children::Ordinary, true).unwrap(), WaitOutcome::NoneReady);
    release(other_pipe);
    assert_eq!(reaped(wait_any(false).unwrap()), (other, Status::Exited(3)));
    assert_eq!(wait_any(false).unwrap(), WaitOutcome::NoChildren);

    // Nor is it seen once it has ended; asked for by name it is.
    release(scribe_pipe);
    assert!(readable_within(scribe_fd.as_fd(), Duration::from_secs(20)));
    assert_eq!(wait_any(true).unwrap(), WaitOutcome::NoChildren);
    let ended = wait_pidfd(scribe_fd.as_fd(), Children::All, true).unwrap();
    assert_eq!(reaped(ended), (scribe, Status::Exited(7)));
}

fn visible_after_exec() {
    use std::os::unix::process::CommandExt;
    let (pid, _fd) = fork(ForkOptions::default(), || panic!("{}", Command::new("/bin/true").exec()));
    let mut outcome = WaitOutcome::NoChildren;
    until("the child is seen", || {
        outcome = wait_any(true).unwrap();
        matches!(outcome, WaitOutcome::Reaped { .. })
    });
    assert_eq!(reaped(outcome), (pid, Status::Exited(0)));
}

fn failed_spawn() {
    let descriptors = || fs::read_dir("/proc/self/fd").unwrap().count();
    let open = descriptors();
    for _ in 0..50 {
        assert_eq!(Spawn::new(c("/nonexistent")).spawn().unwrap_err().errno, Errno::NOENT);
        assert_eq!(wait_any(true).unwrap(), WaitOutcome::NoChildren);
    }
    assert_eq!(descriptors(), open);
    let before = fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    for _ in 0..50 {
        Spawn::new(c("/nonexistent")).spawn().unwrap_err();
    }
    let after = fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    assert!(after <= before + 2, "{before} mappings became {after}");
    // Even while the kernel reaps children by itself.
    signals::ignore(Signal::CHILD).unwrap();
    assert_eq!(Spawn::new(c("/nonexistent")).spawn().unwrap_err().errno, Errno::NOENT);
}

/// Ignored signals reach no child, whether or not it was looked which there are.
fn looked_at() {
    let ignored = || {
        let mut spawn = Spawn::new(c("/bin/sh"));
        spawn.args([c("-c"), c("grep -q '^SigIgn:.0*$' /proc/self/status")]);
        let spawned = spawn.spawn().unwrap();
        match wait_pidfd(spawned.pidfd.as_fd(), Children::Ordinary, false).unwrap() {
            WaitOutcome::Reaped { status, .. } => status,
            other => panic!("{other:?}"),
        }
    };
    signals::ignore(Signal::USR1).unwrap();
    assert_eq!(ignored(), Status::Exited(0));
    signals::look_at_dispositions().unwrap();
    assert_eq!(ignored(), Status::Exited(0));
    signals::ignore(Signal::USR2).unwrap();
    assert_eq!(ignored(), Status::Exited(0));
    signals::reset();
    assert_eq!(ignored(), Status::Exited(0));
    assert!(fs::read_to_string("/proc/self/status").unwrap().contains("SigIgn:\t0000000000000000"));
}

fn command_line() {
    let shown = || fs::read("/proc/self/cmdline").unwrap();
    let before = shown();
    let line = outlast_sys::title::CommandLine::find().unwrap();
    line.show(&[b"a", b"b c"]);
    let after = shown();
    assert!(after.starts_with(b"a\0b c\0") && after[6..].iter().all(|byte| *byte == 0), "{after:?}");
    assert_eq!(after.len(), before.len());
    let long = [b'x'; 9000];
    line.show(&[&long]);
    let cut = shown();
    assert_eq!(cut.len(), before.len());
    assert!(cut[..cut.len() - 1].iter().all(|byte| *byte == b'x') && cut.ends_with(&[0]));
    // What lies behind them is whole.
    assert!(std::env::vars_os().any(|(name, _)| name == "PATH"));
}

fn refused_fork() {
    let (reader, writer) = pipe();
    let thread = std::thread::spawn(move || rustix::io::read(&reader, &mut [0]).unwrap());
    assert_eq!(fork_process(ordinary()).unwrap_err(), Errno::DEADLK);
    assert_eq!(outlast_sys::fork::thread_count().unwrap(), 2);
    release(writer);
    thread.join().unwrap();
    until("the thread has gone", || outlast_sys::fork::thread_count().unwrap() == 1);
    let (pid, _fd) = fork(ordinary(), || 0);
    assert_eq!(reaped(wait_any(false).unwrap()), (pid, Status::Exited(0)));
}

fn fork_into_group() {
    let Some(location) = locate(Hierarchy::Unified).unwrap() else { return println!("not run: no cgroup2") };
    let name = format!("outlast-test-fork-{}", std::process::id());
    let leaf = match Leaf::create(&location.own, OsStr::new(&name)) {
        Ok(leaf) => leaf,
        Err(errno) => return println!("not run: no group can be made: {errno}"),
    };
    let (pid, fd, _pipe) = held(ForkOptions { into_cgroup: Some(leaf.dir()), ..ordinary() }, 0);
    assert_eq!(leaf.procs().unwrap(), [pid]);
    leaf.kill().unwrap();
    let killed = Status::Signaled { signal: 9, core: false };
    assert_eq!(reaped(wait_pidfd(fd.as_fd(), Children::All, false).unwrap()), (pid, killed));
    assert!(!leaf.populated().unwrap());
    leaf.remove().unwrap();
}

fn subreaper() {
    prctl::set_subreaper().unwrap();
    let me = rustix::process::getpid();
    let (scribe, scribe_fd, scribe_pipe) = held(ForkOptions::default(), 0);
    let (reader, writer) = pipe();
    let mut spawn =
        shell("setsid sh -c 'trap \"\" TERM; echo a; exec sleep 600' & setsid sleep 600 & echo b; exit 4");
    spawn.fd(writer.as_fd(), 1).fd(writer.as_fd(), 2);
    let leader = spawn.spawn().unwrap();
    drop(spawn);
    drop(writer);
    let mut lines = [0; 4];
    fs::File::from(reader).read_exact(&mut lines).unwrap();
    assert_eq!(reaped(wait_any(false).unwrap()), (leader.pid, Status::Exited(4)));
    assert_eq!(wait_any(true).unwrap(), WaitOutcome::NoneReady);

    let orphans = children_of(me, &[scribe]).unwrap();
    assert_eq!(orphans.len(), 2, "{orphans:?}");
    assert!(orphans.iter().all(|orphan| orphan.ppid == Some(me)));
    assert_eq!(children_of(me, &[]).unwrap().len(), 3);

    assert_eq!(signal_descendants(me, &[scribe], Signal::TERM).unwrap().sent, 2);
    let (_, status) = reaped(wait_any(false).unwrap());
    assert_eq!(status, Status::Signaled { signal: 15, core: false });
    let signalled = signal_descendants(me, &[scribe], Signal::KILL).unwrap();
    assert_eq!((signalled.sent, signalled.gone, signalled.denied), (1, 0, 0));
    assert_eq!(reap_all(), 1);
    assert_eq!(signal_descendants(me, &[scribe], Signal::KILL).unwrap().sent, 0);
    assert!(!pidfd::is_readable(scribe_fd.as_fd()).unwrap(), "the scribe was signalled");
    release(scribe_pipe);
    reaped(wait_pidfd(scribe_fd.as_fd(), Children::All, false).unwrap());
}

fn hopper() {
    prctl::set_subreaper().unwrap();
    let me = rustix::process::getpid();
    let (reader, writer) = pipe();
    // Never the same pid for long: each process forks the next one and ends.
    let (_first, _fd) = fork(ordinary(), || {
        for hop in 0u32.. {
            if hop == 100 {
                rustix::io::write(&writer, b"x").unwrap();
            }
            if let Forked::Parent { .. } = fork_process(ordinary()).unwrap() {
                return 0;
            }
        }
        0
    });
    rustix::io::read(&reader, &mut [0]).unwrap();
    let mut scanner = Scanner::new().unwrap();
    let start = Instant::now();
    let mut passes = 0;
    loop {
        match wait_any(true).unwrap() {
            WaitOutcome::NoChildren => break,
            WaitOutcome::Reaped { .. } => {}
            WaitOutcome::NoneReady => {
                passes += 1;
                scanner.signal_descendants(me, &[], Signal::KILL).unwrap();
            }
        }
        assert!(start.elapsed() < Duration::from_secs(30), "it outran {passes} passes");
    }
    println!("a process that hops was caught in {:?} and {passes} passes", start.elapsed());
    assert_eq!(children_of(me, &[]).unwrap(), []);
}

fn thousand() {
    const MANY: usize = 1000;
    prctl::set_subreaper().unwrap();
    let me = rustix::process::getpid();
    let (reader, writer) = pipe();
    // All but the first are grandchildren, so that there is a chain to follow.
    let (_pid, _fd) = fork(ordinary(), || {
        for _ in 1..MANY {
            if let Forked::Child = fork_process(ordinary()).unwrap() {
                break;
            }
        }
        rustix::io::write(&writer, b"x").unwrap();
        loop {
            std::thread::park();
        }
    });
    fs::File::from(reader).read_exact(&mut vec![0; MANY]).unwrap();
    let mut scanner = Scanner::new().unwrap();
    let start = Instant::now();
    assert_eq!(scanner.descendants(me, &[]).unwrap().len(), MANY);
    let scanned = start.elapsed();
    let start = Instant::now();
    let signalled = scanner.signal_descendants(me, &[], Signal::KILL).unwrap();
    let sent = start.elapsed();
    // What dies in the meantime has gone, and nobody is signalled twice.
    assert_eq!((signalled.sent + signalled.gone, signalled.denied), (MANY, 0));
    assert_eq!(reap_all(), MANY);
    println!("{MANY} processes: found in {scanned:?}, signalled in {sent:?}");
    assert!(scanned + sent < Duration::from_secs(5));
}

fn signal_fd() {
    let fd = SignalFd::new(&[Signal::USR1, Signal::CHILD]).unwrap();
    assert_eq!(fd.read().unwrap(), None);
    let me = rustix::process::getpid();
    rustix::process::kill_process(me, Signal::USR1).unwrap();
    let received = fd.read().unwrap().unwrap();
    assert_eq!((received.signal, received.pid), (Signal::USR1.as_raw(), me.as_raw_nonzero().get()));
    assert_eq!(received.uid, rustix::process::getuid().as_raw());
    assert_eq!(fd.read().unwrap(), None);

    let child = shell("exit 3").spawn().unwrap();
    assert!(readable_within(fd.as_fd(), Duration::from_secs(20)));
    let received = fd.read().unwrap().unwrap();
    assert_eq!((received.signal, received.pid), (Signal::CHILD.as_raw(), child.pid.as_raw_nonzero().get()));
    assert_eq!(reaped(wait_any(false).unwrap()), (child.pid, Status::Exited(3)));
    // A child without exit signal ends in silence.
    let (_pid, silent, pipe) = held(ForkOptions::default(), 0);
    release(pipe);
    reaped(wait_pidfd(silent.as_fd(), Children::All, false).unwrap());
    assert_eq!(fd.read().unwrap(), None);
}

fn signal_sets() -> Vec<String> {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let sets =
        status.lines().filter(|line| ["SigBlk", "SigIgn", "SigCgt"].iter().any(|set| line.starts_with(set)));
    sets.map(|line| line.split_whitespace().nth(1).unwrap().to_owned()).collect()
}

fn reset() {
    signals::block(&[Signal::TERM, Signal::INT]);
    signals::ignore(Signal::HUP).unwrap();
    assert_eq!(signals::ignore(Signal::KILL), Err(Errno::INVAL));
    assert_eq!(signal_sets()[0], "0000000000004002");
    let (pid, _fd) = fork(ordinary(), || {
        signals::reset();
        assert_eq!(signal_sets(), ["0000000000000000"; 3]);
        0
    });
    assert_eq!(reaped(wait_any(false).unwrap()), (pid, Status::Exited(0)));
    assert_eq!(signal_sets()[0], "0000000000004002");
}

fn dumpable() {
    if !rustix::process::geteuid().is_root() {
        return println!("not run: needs root");
    }
    use rustix::process::{DumpableBehavior, dumpable_behavior};
    let mut spawn = Spawn::new(c("/bin/true"));
    spawn.credentials(Credentials { uid: 65534, gid: 65534, groups: vec![] }).no_new_privs();
    spawn.spawn().unwrap();
    assert_eq!(dumpable_behavior().unwrap(), DumpableBehavior::Dumpable);
    prctl::set_dumpable(false).unwrap();
    spawn.spawn().unwrap();
    assert_eq!(dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
    assert_eq!(reap_all(), 2);
}

fn said() {
    prctl::set_subreaper().unwrap();
    assert!(rustix::process::child_subreaper().unwrap().is_some());
    prctl::set_name(c"outlast) (x y").unwrap();
    assert_eq!(fs::read_to_string("/proc/self/comm").unwrap(), "outlast) (x y\n");
    let me = rustix::process::getpid();
    assert!(pidfd::start_time(me).is_some());
    prctl::set_no_new_privs().unwrap();
    assert!(rustix::thread::no_new_privs().unwrap());
    assert_eq!(pidfd::boot_id().unwrap().len(), 36);
}

/// A reaping init in namespaces of its own, as the warden makes it for `pid_namespace`.
fn namespaces() {
    let uid = rustix::process::geteuid();
    let gid = rustix::process::getegid();
    let options =
        ForkOptions { new_pid_ns: true, new_mount_ns: true, new_user_ns: !uid.is_root(), ..ordinary() };
    let (ready, tell) = pipe();
    let (release_reader, release_writer) = pipe();
    let (init, init_fd) = fork(options, || {
        prctl::set_parent_death_signal(Some(Signal::KILL)).unwrap();
        if !uid.is_root() {
            ns::write_identity_maps(ns::Who::Myself, uid.as_raw(), gid.as_raw()).unwrap();
        }
        ns::private_mounts().unwrap();
        ns::mount_proc().unwrap();
        assert_eq!(rustix::process::getpid(), Pid::INIT);
        assert_eq!((rustix::process::geteuid(), rustix::process::getegid()), (uid, gid));
        let numbers =
            |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().to_str()?.parse::<u32>().ok();
        let visible: Vec<u32> = fs::read_dir("/proc").unwrap().filter_map(numbers).collect();
        assert_eq!(visible, [1]);

        // A command that leaves an orphan in a session of its own, which comes to init.
        let mut spawn = shell("setsid sleep 600 >&- & exit 6");
        spawn.new_session();
        let leader = spawn.spawn().unwrap();
        assert_eq!(reaped(wait_any(false).unwrap()), (leader.pid, Status::Exited(6)));
        assert_eq!(children_of(Pid::INIT, &[]).unwrap().len(), 1);
        rustix::io::write(&tell, b"x").unwrap();
        rustix::io::read(&release_reader, &mut [0]).unwrap();
        0
    });
    drop(tell);
    if rustix::io::read(&ready, &mut [0]).unwrap() == 0 {
        panic!("init failed: {:?}", wait_any(false).unwrap());
    }
    // Outside, nothing of it shows but the processes themselves.
    let me = rustix::process::getpid();
    assert_eq!(fs::read_link("/proc/self").unwrap().to_str().unwrap(), me.as_raw_nonzero().to_string());
    let tree = children_of(me, &[]).unwrap();
    assert_eq!(tree.len(), 2, "{tree:?}");
    let orphan = tree.iter().find(|process| process.ppid == Some(init)).unwrap();
    let orphan_fd = pidfd::open(orphan.pid).unwrap();
    release(release_writer);
    // The end of init is the end of all of them: when it can be reaped they are dead.
    assert_eq!(reaped(wait_any(false).unwrap()), (init, Status::Exited(0)));
    assert!(pidfd::is_readable(orphan_fd.as_fd()).unwrap());
    assert_eq!(pidfd::send_signal(orphan_fd.as_fd(), Signal::KILL), Err(Errno::SRCH));
    assert!(pidfd::is_readable(init_fd.as_fd()).unwrap());
}

fn namespaces_unprivileged() {
    if !rustix::process::geteuid().is_root() {
        return println!("not run: needs root to become another user");
    }
    let me = std::env::current_exe().unwrap();
    let output = std::io::stderr();
    let mut spawn = Spawn::new(c("/proc/self/exe"));
    spawn.argv(vec![c(&me), c("--scene"), c("namespaces_as_we_are")]).env(vec![c("PATH=/usr/bin:/bin")]);
    spawn
        .credentials(Credentials { uid: 65534, gid: 65534, groups: vec![] })
        .no_new_privs()
        .drop_capabilities();
    let null = fs::File::open("/dev/null").unwrap();
    spawn.fd(null.as_fd(), 0).fd(output.as_fd(), 1).fd(output.as_fd(), 2);
    let child = spawn.spawn().unwrap();
    assert_eq!(reaped(wait_any(false).unwrap()), (child.pid, Status::Exited(0)));
    std::io::stderr().flush().unwrap();
}
