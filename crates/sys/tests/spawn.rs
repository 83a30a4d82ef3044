//! What a spawned program finds, and what is told when there is none. Every test here may run beside any
//! other.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use outlast_sys::cgroup::{self, Hierarchy, Leaf};
use outlast_sys::spawn::{Credentials, Limit, Spawn, Spawned, Stage, candidates};
use outlast_sys::wait::{Children, Status, WaitOutcome, wait_pidfd};
use outlast_sys::{Errno, Pid, Signal, pidfd, proc_tree, pty};

fn c(text: impl AsRef<OsStr>) -> CString {
    CString::new(text.as_ref().as_bytes()).unwrap()
}

fn pipe() -> (OwnedFd, OwnedFd) {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap()
}

fn read_all(fd: OwnedFd) -> String {
    let mut text = String::new();
    File::from(fd).read_to_string(&mut text).unwrap();
    text
}

fn wait(child: &Spawned) -> Status {
    match wait_pidfd(child.pidfd.as_fd(), Children::Ordinary, false).unwrap() {
        WaitOutcome::Reaped { pid, status, .. } => {
            assert_eq!(pid, child.pid);
            status
        }
        other => panic!("{other:?}"),
    }
}

fn shell(script: &str) -> Spawn<'static> {
    let mut spawn = Spawn::new(c("/bin/sh"));
    spawn.args([c("-c"), c(script)]).env(vec![c("PATH=/usr/bin:/bin")]);
    spawn
}

/// What a script prints; it must succeed.
fn output_of(spawn: Spawn<'_>) -> String {
    let (reader, writer) = pipe();
    let null = File::open("/dev/null").unwrap();
    let mut spawn = spawn;
    spawn.fd(null.as_fd(), 0).fd(writer.as_fd(), 1).fd(writer.as_fd(), 2);
    let child = spawn.spawn().unwrap();
    drop(spawn);
    drop(writer);
    let text = read_all(reader);
    assert_eq!(wait(&child), Status::Exited(0), "{text}");
    text
}

/// A child that waits on its standard input until dropped, and can be looked at meanwhile.
struct Held {
    child: Spawned,
    stdin: Option<OwnedFd>,
}

impl Held {
    fn start(spawn: Spawn<'_>) -> Self {
        let (reader, writer) = pipe();
        // Bound anew, so that it may borrow what has just been made.
        let mut spawn = spawn;
        let null = File::create("/dev/null").unwrap();
        spawn.fd(reader.as_fd(), 0).fd(null.as_fd(), 1).fd(null.as_fd(), 2);
        let child = spawn.spawn().unwrap();
        Self { child, stdin: Some(writer) }
    }

    fn proc(&self, file: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{file}", self.child.pid.as_raw_nonzero())).unwrap()
    }

    fn status(&self) -> BTreeMap<String, String> {
        let fields = |line: &str| line.split_once(':').map(|(k, v)| (k.to_owned(), v.trim().to_owned()));
        self.proc("status").lines().filter_map(fields).collect()
    }

    fn fds(&self) -> Vec<i32> {
        let list = fs::read_dir(format!("/proc/{}/fd", self.child.pid.as_raw_nonzero())).unwrap();
        let mut fds: Vec<i32> =
            list.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
        fds.sort_unstable();
        fds
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = pidfd::send_signal(self.child.pidfd.as_fd(), Signal::KILL);
        let _ = wait_pidfd(self.child.pidfd.as_fd(), Children::All, false);
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn arguments_and_environment_are_exactly_those_given() {
    let mut spawn = Spawn::search(vec![c("/nonexistent"), c("/bin/sh")], c("arg0"));
    spawn.args([c("-c"), c("printf '%s|' \"$0\" \"$@\"; tr '\\0' '|' </proc/$$/environ"), c("a b"), c("")]);
    spawn.args([c("c\n")]).env(vec![c("PATH=/usr/bin:/bin"), c("X=1 2"), c("EMPTY=")]);
    assert_eq!(output_of(spawn), "a b||c\n|PATH=/usr/bin:/bin|X=1 2|EMPTY=|");
}

#[test]
fn neither_arguments_nor_environment_show_in_debug_output() {
    let mut spawn = Spawn::new(c("/bin/true"));
    spawn.arg(c("--token=canary")).env(vec![c("TOKEN=canary")]);
    assert_eq!(format!("{spawn:?}"), "Spawn { programs: [\"/bin/true\"], .. }");
}

#[test]
fn descriptors_that_overlap_find_their_places_and_no_other_stays_open() {
    let temp = tempfile::tempdir().unwrap();
    let file = |name: &str| {
        fs::write(temp.path().join(name), name).unwrap();
        File::open(temp.path().join(name)).unwrap()
    };
    let (a, b, stays) = (file("a"), file("b"), file("c"));
    let (x, y, z) = (a.as_raw_fd(), b.as_raw_fd(), stays.as_raw_fd());
    // a and b change places, c keeps its number and has a second one; all are close-on-exec here.
    let mut spawn = Spawn::new(c("/bin/cat"));
    spawn.fd(a.as_fd(), y).fd(b.as_fd(), x).fd(stays.as_fd(), z).fd(stays.as_fd(), 200);
    let held = Held::start(spawn);
    let link = |fd: i32| {
        fs::read_link(format!("/proc/{}/fd/{fd}", held.child.pid.as_raw_nonzero()))
            .unwrap()
            .file_name()
            .unwrap()
            .to_owned()
    };
    assert_eq!([link(y), link(x), link(z), link(200)], ["a", "b", "c", "c"].map(OsStr::new));
    let mut expected = vec![0, 1, 2, x, y, z, 200];
    expected.sort_unstable();
    assert_eq!(held.fds(), expected);
}

#[test]
fn a_source_may_be_the_target_of_another() {
    let (reader, writer) = pipe();
    let (r, w) = (reader.as_raw_fd(), writer.as_raw_fd());
    let mut spawn =
        shell(&format!("echo through >/proc/self/fd/{r}; cat </proc/self/fd/{w} 2>/dev/null & wait"));
    // Each end at the other's number, and standard output at the reader's source.
    spawn.fd(writer.as_fd(), r).fd(reader.as_fd(), w).fd(writer.as_fd(), 1).fd(writer.as_fd(), 2);
    let null = File::open("/dev/null").unwrap();
    spawn.fd(null.as_fd(), 0);
    let child = spawn.spawn().unwrap();
    drop(spawn);
    let mut line = [0; 8];
    File::from(reader).read_exact(&mut line).unwrap();
    assert_eq!(&line, b"through\n");
    pidfd::send_signal(child.pidfd.as_fd(), Signal::KILL).unwrap();
    wait(&child);
    drop(writer);
}

#[test]
fn impossible_targets_are_refused_before_a_process_exists() {
    let null = File::open("/dev/null").unwrap();
    let mut spawn = Spawn::new(c("/bin/true"));
    spawn.fd(null.as_fd(), -1);
    let error = spawn.spawn().unwrap_err();
    assert_eq!((error.stage, error.errno), (Stage::Request, Errno::BADF));
    let mut spawn = Spawn::new(c("/bin/true"));
    spawn.fd(null.as_fd(), 0).fd(null.as_fd(), 0);
    let error = spawn.spawn().unwrap_err();
    assert_eq!((error.stage, error.errno), (Stage::Request, Errno::INVAL));
    let error = Spawn::search(Vec::new(), c("x")).spawn().unwrap_err();
    assert_eq!((error.stage, error.errno), (Stage::Request, Errno::NOENT));
    let mut spawn = Spawn::new(c("/bin/true"));
    spawn.fd(null.as_fd(), i32::MAX - 1);
    assert_eq!(spawn.spawn().unwrap_err().stage, Stage::Descriptors);
}

#[test]
fn the_error_says_what_could_not_be_done() {
    let temp = tempfile::tempdir().unwrap();
    let at = |name: &str| temp.path().join(name);
    fs::write(at("plain"), "no program").unwrap();
    fs::write(at("garbage"), "no program").unwrap();
    fs::set_permissions(at("garbage"), PermissionsExt::from_mode(0o755)).unwrap();
    let fail = |programs: &[&Path]| {
        let programs = programs.iter().map(c).collect();
        let error = Spawn::search(programs, c("x")).spawn().unwrap_err();
        assert_eq!(error.stage, Stage::Exec);
        error.errno
    };
    let missing = &at("missing");
    assert_eq!(fail(&[missing]), Errno::NOENT);
    assert_eq!(fail(&[&at("plain")]), Errno::ACCESS);
    assert_eq!(fail(&[temp.path()]), Errno::ACCESS);
    assert_eq!(fail(&[&at("garbage")]), Errno::NOEXEC);
    assert_eq!(fail(&[&at("plain/below")]), Errno::NOENT);
    assert_eq!(fail(&[missing, &at("plain"), missing]), Errno::ACCESS);
    assert_eq!(fail(&[missing, &at("garbage"), Path::new("/bin/true")]), Errno::NOEXEC);

    let mut spawn = Spawn::new(c("/bin/true"));
    spawn.cwd(c(missing));
    let error = spawn.spawn().unwrap_err();
    assert_eq!((error.stage, error.errno), (Stage::Chdir, Errno::NOENT));
    assert_eq!(error.to_string(), "the working directory could not be entered");
    assert!(std::error::Error::source(&error).is_some());
    let mut spawn = Spawn::new(c("/bin/true"));
    spawn.cwd(c(at("plain")));
    assert_eq!(spawn.spawn().unwrap_err().errno, Errno::NOTDIR);
    let null = File::open("/dev/null").unwrap();
    let mut spawn = Spawn::new(c("/bin/true"));
    spawn.fd(null.as_fd(), 0).controlling_terminal();
    let error = spawn.spawn().unwrap_err();
    assert_eq!((error.stage, error.errno), (Stage::Terminal, Errno::NOTTY));
    let mut spawn = Spawn::new(c("/bin/true"));
    spawn.join(null.as_fd());
    assert_eq!(spawn.spawn().unwrap_err().stage, Stage::Cgroup);
    let mut spawn = Spawn::new(c("/bin/true"));
    spawn.into_cgroup(null.as_fd());
    let error = spawn.spawn().unwrap_err();
    assert_eq!(error.stage, Stage::Clone);
    assert!(!error.clone_unavailable(), "{error:?}");
}

#[test]
fn a_name_is_looked_up_as_execvp_does() {
    let list = |name: &str, path: &str| candidates(OsStr::new(name), OsStr::new(path));
    assert_eq!(list("ls", "/a:/b"), [c("/a/ls"), c("/b/ls")]);
    assert_eq!(list("ls", ":/b:"), [c("./ls"), c("/b/ls"), c("./ls")]);
    assert_eq!(list("./ls", "/a:/b"), [c("./ls")]);
    assert_eq!(list("", "/a"), [] as [CString; 0]);
    assert_eq!(list("a\0b", "/a"), [] as [CString; 0]);
}

#[test]
fn a_program_starts_with_clean_signals_and_what_was_asked_for() {
    outlast_sys::signals::ignore(Signal::USR2).unwrap();
    let held = std::thread::spawn(|| {
        // Only this thread's mask changes. It must be the same afterwards.
        outlast_sys::signals::block(&[Signal::USR1, Signal::TERM]);
        let mask = || {
            let status = fs::read_to_string("/proc/thread-self/status").unwrap();
            status.lines().find(|line| line.starts_with("SigBlk")).unwrap().to_owned()
        };
        let before = mask();
        let mut spawn = Spawn::new(c("/bin/cat"));
        spawn.new_session().umask(0o027).limit(Limit::Core, Some(0)).limit(Limit::OpenFiles, Some(77));
        spawn.oom_score_adj(321).no_new_privs();
        let held = Held::start(spawn);
        assert_eq!(mask(), before);
        held
    });
    let held = held.join().unwrap();
    let status = held.status();
    for field in ["SigBlk", "SigIgn", "SigCgt", "SigPnd"] {
        assert_eq!(status[field], "0000000000000000", "{field}");
    }
    assert_eq!(status["Umask"], "0027");
    assert_eq!(status["NoNewPrivs"], "1");
    assert_eq!(held.proc("oom_score_adj").trim(), "321");
    let limits = held.proc("limits");
    let limit = |name: &str| -> Vec<String> {
        let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().take(2).map(str::to_owned).collect()
    };
    assert_eq!(limit("Max core file size"), ["0", "0"]);
    assert_eq!(limit("Max open files"), ["77", "77"]);
    // Session and process group are fields 6 and 5, after the name.
    let pid = held.child.pid.as_raw_nonzero().to_string();
    let stat = held.proc("stat");
    let fields: Vec<&str> = stat.split_whitespace().collect();
    assert_eq!((fields[4], fields[5]), (&*pid, &*pid));
}

#[test]
fn the_working_directory_is_given_by_path_or_by_descriptor() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().canonicalize().unwrap();
    let mut spawn = shell("pwd -P");
    spawn.cwd(c(&path));
    assert_eq!(output_of(spawn).trim_end(), path.to_str().unwrap());
    let dir = File::open(&path).unwrap();
    // Even if its number becomes a target.
    let mut spawn = shell("pwd -P");
    spawn.cwd_fd(dir.as_fd());
    let null = File::open("/dev/null").unwrap();
    spawn.fd(null.as_fd(), dir.as_raw_fd());
    assert_eq!(output_of(spawn).trim_end(), path.to_str().unwrap());
}

#[test]
fn a_command_on_a_terminal_is_its_session_s_leader() {
    let pair = pty::open(pty::Size { rows: 33, cols: 101 }).unwrap();
    let mut spawn = shell("stty size </dev/tty; ps -o sid= -p $$");
    spawn.controlling_terminal();
    for target in 0..3 {
        spawn.fd(pair.slave.as_fd(), target);
    }
    let child = spawn.spawn().unwrap();
    drop(spawn);
    drop(pair.slave);
    let mut text = Vec::new();
    let error = File::from(pair.master).read_to_end(&mut text).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()));
    let text = String::from_utf8(text).unwrap();
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    assert_eq!(lines, ["33 101", &child.pid.as_raw_nonzero().to_string()]);
    assert_eq!(wait(&child), Status::Exited(0));
}

#[test]
fn another_user_without_capabilities_has_none_at_all() {
    if !is_root() {
        eprintln!("not run: needs root");
        return;
    }
    for (uid, drop_first) in [(65534, true), (65534, false), (0, true)] {
        let mut spawn = Spawn::new(c("/bin/cat"));
        spawn.credentials(Credentials { uid, gid: 65533, groups: vec![] }).no_new_privs();
        if drop_first {
            spawn.drop_capabilities();
        }
        let held = Held::start(spawn);
        let status = held.status();
        let four = |id: u32| [id; 4].map(|id| id.to_string()).join("\t");
        assert_eq!((&status["Uid"], &status["Gid"], &*status["Groups"]), (&four(uid), &four(65533), ""));
        for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            assert_eq!(status[set], "0000000000000000", "{set} of {uid}");
        }
        assert_eq!(status["CapBnd"] == "0000000000000000", drop_first);
        assert_eq!(held.fds(), [0, 1, 2]);
    }
    let mut spawn = shell("id -G");
    spawn.credentials(Credentials { uid: 65534, gid: 65533, groups: vec![7, 8] });
    assert_eq!(output_of(spawn).trim_end(), "65533 7 8");
}

#[test]
fn the_working_directory_is_entered_with_the_command_s_rights() {
    if !is_root() {
        eprintln!("not run: needs root");
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    fs::set_permissions(temp.path(), PermissionsExt::from_mode(0o700)).unwrap();
    let mut spawn = Spawn::new(c("/bin/true"));
    spawn.credentials(Credentials { uid: 65534, gid: 65534, groups: vec![] }).cwd(c(temp.path()));
    let error = spawn.spawn().unwrap_err();
    assert_eq!((error.stage, error.errno), (Stage::Chdir, Errno::ACCESS));
}

#[test]
fn a_command_dies_with_the_thread_that_started_it_if_asked_to() {
    let (reader, _writer) = pipe();
    let child = std::thread::scope(|scope| {
        let start = || {
            let mut spawn = Spawn::new(c("/bin/cat"));
            let null = File::create("/dev/null").unwrap();
            spawn.fd(reader.as_fd(), 0).fd(null.as_fd(), 1).parent_death_signal(Signal::KILL);
            spawn.spawn().unwrap()
        };
        scope.spawn(start).join().unwrap()
    });
    assert_eq!(wait(&child), Status::Signaled { signal: 9, core: false });
}

#[test]
fn how_it_ended_is_told_in_full() {
    let run = |script: &str| wait(&shell(script).spawn().unwrap());
    assert_eq!(run("exit 0"), Status::Exited(0));
    assert_eq!(run("exit 255"), Status::Exited(255));
    assert_eq!(run("kill -TERM $$"), Status::Signaled { signal: 15, core: false });
    let child = shell("i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done").spawn().unwrap();
    let outcome = wait_pidfd(child.pidfd.as_fd(), Children::Ordinary, false).unwrap();
    let WaitOutcome::Reaped { usage, .. } = outcome else { panic!("{outcome:?}") };
    assert!(usage.user + usage.system > std::time::Duration::ZERO, "{usage:?}");
    assert!(usage.max_rss_kib > 100, "{usage:?}");
    let again = wait_pidfd(child.pidfd.as_fd(), Children::All, false).unwrap();
    assert_eq!(again, WaitOutcome::NoChildren);
}

#[test]
fn many_threads_may_spawn_at_once() {
    std::thread::scope(|scope| {
        for thread in 0..6 {
            scope.spawn(move || {
                for round in 0..40 {
                    if (thread + round) % 3 == 0 {
                        let error = Spawn::new(c("/nonexistent")).spawn().unwrap_err();
                        assert_eq!(error.errno, Errno::NOENT);
                    } else {
                        let mut spawn = shell("exit $1");
                        spawn.args([c("sh"), c(round.to_string())]);
                        assert_eq!(wait(&spawn.spawn().unwrap()), Status::Exited(round));
                    }
                    std::hint::black_box(vec![0u8; 1000 * (round as usize + 1)]);
                }
            });
        }
    });
}

#[test]
fn who_holds_a_pidfd_learns_the_exit_once_the_parent_has_reaped() {
    let (reader, writer) = pipe();
    let (hold, held) = pipe();
    let mut spawn = shell("cat <&3 & echo $!; exec 1>&-; wait $!; exit 5");
    spawn.fd(writer.as_fd(), 1).fd(hold.as_fd(), 3);
    let parent = spawn.spawn().unwrap();
    drop(spawn);
    drop((writer, hold));
    let grandchild = Pid::from_raw(read_all(dup_until_newline(reader)).trim().parse().unwrap()).unwrap();
    let fd = pidfd::open(grandchild).unwrap();
    assert!(!pidfd::is_readable(fd.as_fd()).unwrap());
    assert_eq!(pidfd::exit_info(fd.as_fd()), None);
    assert!(pidfd::start_time(grandchild) >= pidfd::start_time(parent.pid));
    pidfd::send_signal(fd.as_fd(), Signal::TERM).unwrap();
    assert_eq!(wait(&parent), Status::Exited(5));
    // The shell ends only after it has reaped.
    assert!(pidfd::is_readable(fd.as_fd()).unwrap());
    assert_eq!(pidfd::send_signal(fd.as_fd(), Signal::TERM), Err(Errno::SRCH));
    assert_eq!(wait_pidfd(fd.as_fd(), Children::All, true).unwrap(), WaitOutcome::NoChildren);
    assert_eq!(pidfd::start_time(grandchild), None);
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut version = release.split('.').map(|part| part.parse().unwrap_or(0u32));
    let known = (version.next(), version.next()) >= (Some(6), Some(15));
    let expected = known.then_some(Status::Signaled { signal: 15, core: false });
    assert_eq!(pidfd::exit_info(fd.as_fd()), expected);
    assert_eq!(pidfd::exit_info(held.as_fd()), None);
}

/// A pipe that holds the first line of another, for readers that want an end.
fn dup_until_newline(fd: OwnedFd) -> OwnedFd {
    let (reader, writer) = pipe();
    let (mut from, mut to) = (File::from(fd), File::from(writer));
    let mut byte = [0];
    while byte != *b"\n" {
        from.read_exact(&mut byte).unwrap();
        to.write_all(&byte).unwrap();
    }
    reader
}

#[test]
fn a_mark_in_the_environment_is_found() {
    let mark = format!("OUTLAST_TEST_MARK=job-{}", std::process::id());
    let mut spawn = Spawn::new(c("/bin/cat"));
    spawn.env(vec![c("A=1"), c(&mark)]);
    let held = Held::start(spawn);
    let mut other = Spawn::new(c("/bin/cat"));
    other.env(vec![c(format!("{mark}0"))]);
    let _other = Held::start(other);
    // A spawn returns when the program has been loaded; its environment is laid out a moment later.
    let mut marked = proc_tree::Marked::default();
    until(|| {
        marked = proc_tree::scan_environ_mark(mark.as_bytes()).unwrap();
        !marked.found.is_empty()
    });
    let pids: Vec<Pid> = marked.found.iter().map(|process| process.pid).collect();
    assert_eq!(pids, [held.child.pid]);
    assert_eq!(marked.found[0].comm(), b"cat");
}

/// A group of our own, or `None` where we may not make one.
fn leaf(hierarchy: Hierarchy<'_>, name: &str) -> Option<Leaf> {
    let location = cgroup::locate(hierarchy).unwrap()?;
    let name = format!("outlast-test-{name}-{}", std::process::id());
    match Leaf::create(&location.own, OsStr::new(&name)) {
        Ok(leaf) => Some(leaf),
        Err(errno) => {
            eprintln!("not run: no group can be made in {}: {errno}", location.own.display());
            None
        }
    }
}

/// Waits for a condition that the kernel makes true by itself.
fn until(mut condition: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !condition() {
        assert!(start.elapsed().as_secs() < 20, "the condition did not come true");
        std::thread::yield_now();
    }
}

#[test]
fn a_command_is_born_in_its_group_and_ended_with_it() {
    let Some(leaf) = leaf(Hierarchy::Unified, "born") else { return };
    assert!(!leaf.populated().unwrap());
    let (reader, writer) = pipe();
    let mut spawn =
        shell("trap '' TERM; (trap '' TERM; setsid sleep 600 & setsid sleep 600 &) ; echo; exec sleep 600");
    spawn.into_cgroup(leaf.dir()).fd(writer.as_fd(), 1);
    let child = spawn.spawn().unwrap();
    drop(spawn);
    drop(writer);
    let mut line = [0];
    File::from(reader).read_exact(&mut line).unwrap();
    assert!(leaf.procs().unwrap().contains(&child.pid));
    assert_eq!(leaf.procs().unwrap().len(), 3);
    assert!(leaf.populated().unwrap());
    assert_eq!(leaf.remove(), Err(Errno::BUSY));
    leaf.freeze(true).unwrap();
    leaf.kill().unwrap();
    assert_eq!(wait(&child), Status::Signaled { signal: 9, core: false });
    until(|| !leaf.populated().unwrap());
    // Groups that the command made are removed with it; a stranger that takes the name is not touched.
    fs::create_dir_all(leaf.path().join("a/b")).unwrap();
    fs::create_dir(leaf.path().join("c")).unwrap();
    assert_eq!(leaf.remove(), Err(Errno::BUSY));
    let parent = leaf.path().parent().unwrap().to_owned();
    let name = leaf.path().file_name().unwrap().to_owned();
    assert_eq!(Leaf::reopen(&parent, &name, leaf.id()).unwrap().id(), leaf.id());
    leaf.remove_tree().unwrap();
    assert_eq!(leaf.remove(), Err(Errno::NOENT));
    assert_eq!(Leaf::reopen(&parent, &name, leaf.id()).unwrap_err(), Errno::NOENT);
    let stranger = Leaf::create(&parent, &name).unwrap();
    assert_ne!(stranger.id(), leaf.id());
    assert_eq!(leaf.remove(), Err(Errno::NOENT));
    assert_eq!(Leaf::reopen(&parent, &name, leaf.id()).unwrap_err(), Errno::STALE);
    assert_eq!(Leaf::create(&parent, &name).unwrap_err(), Errno::EXIST);
    stranger.remove().unwrap();
}

#[test]
fn a_command_joins_a_group_of_version_1_before_it_runs() {
    let Some(leaf) = leaf(Hierarchy::V1("pids"), "join") else { return };
    leaf.write("pids.max", b"7").unwrap();
    assert_eq!(leaf.read("pids.max").unwrap().trim(), "7");
    assert_eq!(leaf.populated(), Err(Errno::OPNOTSUPP));
    assert_eq!(leaf.kill(), Err(Errno::OPNOTSUPP));
    let procs = leaf.open_procs().unwrap();
    let mut spawn = Spawn::new(c("/bin/cat"));
    spawn.join(procs.as_fd());
    let held = Held::start(spawn);
    assert_eq!(leaf.procs().unwrap(), [held.child.pid]);
    drop(held);
    until(|| leaf.remove() != Err(Errno::BUSY));
    assert_eq!(leaf.remove(), Err(Errno::NOENT));
}

#[test]
fn a_probe_tells_what_can_be_done_and_leaves_nothing() {
    let Some(location) = cgroup::locate(Hierarchy::Unified).unwrap() else {
        eprintln!("not run: no cgroup2");
        return;
    };
    let capabilities = cgroup::probe(&location.own);
    if is_root() {
        assert_eq!((capabilities.create, capabilities.spawn_into, capabilities.kill), (Ok(()), Ok(()), true));
    }
    let names = fs::read_dir(&location.own).unwrap().map(|entry| entry.unwrap().file_name());
    let own = format!("outlast-probe-{}-", std::process::id());
    assert_eq!(names.filter(|name| name.to_string_lossy().starts_with(&own)).count(), 0);

    let elsewhere = tempfile::tempdir().unwrap();
    let capabilities = cgroup::probe(elsewhere.path());
    assert!(capabilities.spawn_into.is_err() && !capabilities.kill);
    let capabilities = cgroup::probe(Path::new("/nonexistent"));
    assert_eq!(capabilities.create, Err(Errno::NOENT));
}

#[test]
fn an_orphan_is_nobodys_child_and_runs() {
    let (ours, theirs) = rustix::pipe::pipe().unwrap();
    let mut spawn = Spawn::new(c"/bin/sh".to_owned());
    spawn.args([c"-c".to_owned(), c"echo $PPID $$".to_owned()]).fd(theirs.as_fd(), 1).new_session();
    let pid = spawn.spawn_orphan().unwrap();
    drop(spawn);
    drop(theirs);
    let mut said = String::new();
    std::io::Read::read_to_string(&mut std::fs::File::from(ours), &mut said).unwrap();
    let numbers: Vec<i32> = said.split_whitespace().map(|number| number.parse().unwrap()).collect();
    assert_ne!(numbers[0], rustix::process::getpid().as_raw_nonzero().get(), "its parent is whoever adopts");
    assert_eq!(numbers[1], pid.as_raw_nonzero().get());
}

#[test]
fn an_orphan_that_cannot_be_executed_is_told_of() {
    let error = Spawn::new(c"/nonexistent".to_owned()).spawn_orphan().unwrap_err();
    assert_eq!((error.stage, error.errno), (Stage::Exec, Errno::NOENT));
}
