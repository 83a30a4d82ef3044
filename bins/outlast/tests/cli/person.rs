//! A person at a terminal: a pseudo-terminal stands in for theirs.

use crate::scene::{Scene, until};
use outlast_sys::pty::{self, Size};
use outlast_sys::spawn::{Spawn, Spawned};
use outlast_sys::wait::{Children, Status, WaitOutcome, wait_pidfd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, tcgetattr};
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};

/// A call at a terminal.
struct Person {
    master: OwnedFd,
    slave: OwnedFd,
    child: Spawned,
    seen: Vec<u8>,
}

impl Person {
    fn call(scene: &Scene, words: &[&str]) -> Person {
        let pair = pty::open(Size { rows: 24, cols: 80 }).unwrap();
        let text = |text: &str| CString::new(text).unwrap();
        let mut spawn = Spawn::new(text(env!("CARGO_BIN_EXE_outlast")));
        let argv = ["outlast"].iter().chain(words).map(|word| text(word)).collect();
        let path = std::env::var("PATH").unwrap();
        let environment = [
            format!("OUTLAST_HOME={}", scene.home().display()),
            format!("PATH={path}"),
            "TERM=xterm".to_owned(),
        ];
        spawn.argv(argv).env(environment.iter().map(|entry| text(entry)).collect());
        spawn.cwd(text(scene.work().to_str().unwrap())).controlling_terminal();
        for target in 0..3 {
            spawn.fd(pair.slave.as_fd(), target);
        }
        let child = spawn.spawn().unwrap();
        Person { master: pair.master, slave: pair.slave, child, seen: Vec::new() }
    }

    fn types(&self, keys: &str) {
        rustix::io::write(&self.master, keys.as_bytes()).unwrap();
    }

    /// Reads what has been shown so far.
    fn look(&mut self) -> String {
        let now = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        while poll(&mut [PollFd::new(&self.master, PollFlags::IN)], Some(&now)).unwrap() > 0 {
            let mut buffer = [0; 4096];
            match rustix::io::read(&self.master, &mut buffer) {
                Ok(0) | Err(_) => break,
                Ok(count) => self.seen.extend_from_slice(&buffer[..count]),
            }
        }
        String::from_utf8_lossy(&self.seen).into_owned()
    }

    #[track_caller]
    fn sees(&mut self, text: &str) {
        let mut last = String::new();
        until(&format!("the terminal to show {text:?}"), || {
            last = self.look();
            last.contains(text).then_some(())
        });
    }

    fn is_raw(&self) -> bool {
        !tcgetattr(&self.slave).unwrap().local_modes.contains(LocalModes::ICANON)
    }

    /// Its exit code, with all that was shown.
    #[track_caller]
    fn leaves(mut self) -> (i32, String) {
        let code = until("the call to end", || {
            self.look();
            match wait_pidfd(self.child.pidfd.as_fd(), Children::Ordinary, true).unwrap() {
                WaitOutcome::Reaped { status: Status::Exited(code), .. } => Some(code),
                WaitOutcome::Reaped { status: Status::Signaled { signal, .. }, .. } => Some(128 + signal),
                _ => None,
            }
        });
        assert!(!self.is_raw(), "the terminal was not restored");
        (code, self.look())
    }
}

#[test]
fn text_and_no_budget_at_a_terminal() {
    let scene = Scene::new();
    let mut person = Person::call(&scene, &["run", "--", "sh", "-c", "echo hello; exit 3"]);
    person.sees("hello");
    let (code, seen) = person.leaves();
    assert_eq!((code, seen.as_str()), (3, "hello\r\n"));
}

#[test]
fn ctrl_c_stops_the_job_and_proves_it() {
    let scene = Scene::new();
    let mut person = Person::call(&scene, &["run", "--", "sh", "-c", "echo began; sleep 1000; :"]);
    person.sees("began");
    person.types("\x03");
    let (code, seen) = person.leaves();
    assert_eq!(code, 130, "{seen}");
    assert!(seen.contains("outlast: stopping the job; Ctrl-C again leaves it to stop by itself"), "{seen}");
    assert!(seen.contains("CANCELLED"), "{seen}");
    assert_eq!(scene.ask(&["job", "status", &scene.only_job()]).exits(143)["data"]["state"], "settled");
}

#[test]
fn a_second_ctrl_c_detaches() {
    let scene = Scene::new();
    let script = "trap '' INT TERM; echo began; while [ ! -e go ]; do sleep 0.02; done";
    let mut person = Person::call(&scene, &["run", "--grace", "60s", "--", "sh", "-c", script]);
    person.sees("began");
    person.types("\x03");
    let job = scene.only_job();
    scene.until("the stop", || {
        (scene.ask(&["job", "status", &job]).json()["data"]["state"] == "stopping").then_some(())
    });
    person.types("\x03");
    let (code, seen) = person.leaves();
    assert_eq!(code, 14, "{seen}");
    assert!(seen.contains("job wait"), "{seen}");
}

#[test]
fn ctrl_c_ends_a_wait_and_not_the_job() {
    let scene = Scene::new();
    let job = Scene::job_of(&scene.ask(&["run", "--background", "--", "sh", "-c", "sleep 1000; :"]).exits(0));
    let mut person = Person::call(&scene, &["job", "wait", &job]);
    person.sees("running");
    person.types("\x03");
    let (code, seen) = person.leaves();
    assert_eq!(code, 14, "{seen}");
    assert_eq!(scene.ask(&["job", "status", &job]).exits(14)["data"]["state"], "running");
}

#[test]
fn a_closed_terminal_leaves_the_work() {
    let scene = Scene::new();
    let mut person = Person::call(
        &scene,
        &["run", "--", "sh", "-c", "echo began; while [ ! -e go ]; do sleep 0.02; done"],
    );
    person.sees("began");
    let Person { master, slave, child, .. } = person;
    drop((master, slave));
    let ended = until("the call to end", || {
        match wait_pidfd(child.pidfd.as_fd(), Children::Ordinary, true).unwrap() {
            WaitOutcome::Reaped { status, .. } => Some(status),
            _ => None,
        }
    });
    assert_eq!(ended, Status::Exited(14));
    let job = scene.only_job();
    scene.write("go", "");
    scene.ask(&["job", "wait", &job]).exits(0);
}

#[test]
fn keys_and_window_go_to_the_command() {
    let scene = Scene::new();
    let script = "stty size; read line; echo got:$line; trap 'echo interrupted; exit 9' INT; touch ready; while :; do sleep 0.02; done";
    let mut person = Person::call(&scene, &["run", "--tty", "--", "sh", "-c", script]);
    person.sees("24 80");
    assert!(person.is_raw(), "the command's own terminal does the echoing");
    person.types("hello\r");
    person.sees("got:hello");
    scene.until("the trap", || scene.work().join("ready").exists().then_some(()));
    person.types("\x03");
    person.sees("interrupted");
    let (code, _) = person.leaves();
    assert_eq!(code, 9);
}

#[test]
fn a_resized_window_is_passed_on() {
    let scene = Scene::new();
    let script = "echo began; trap 'stty size; exit 0' WINCH; while :; do sleep 0.02; done";
    let mut person = Person::call(&scene, &["run", "--tty", "--", "bash", "-c", script]);
    person.sees("began");
    pty::set_size(person.master.as_fd(), Size { rows: 50, cols: 132 }).unwrap();
    person.sees("50 132");
    assert_eq!(person.leaves().0, 0);
}

#[test]
fn the_detach_key_leaves_the_command_running() {
    let scene = Scene::new();
    let mut person = Person::call(
        &scene,
        &["run", "--tty", "--", "sh", "-c", "echo began; while [ ! -e go ]; do sleep 0.02; done; echo end"],
    );
    person.sees("outlast: Ctrl-] detaches");
    person.sees("began");
    person.types("\x1d");
    let (code, seen) = person.leaves();
    assert_eq!(code, 14, "{seen}");
    assert!(seen.contains("outlast: detached; the work continues in the background"), "{seen}");
    assert!(seen.contains("  continue: outlast run --tty -- sh -c "), "{seen}");
    let job = scene.only_job();
    scene.write("go", "");
    let result = scene.ask(&["job", "wait", &job]).exits(0);
    assert_eq!(result["data"]["output"]["stdout"]["text"], "began\r\nend\r\n");
    let resized = scene.ask(&["job", "resize", &job, "10", "20"]).exits(0);
    assert_eq!(resized["data"]["effect"], "noop");
}

#[test]
fn output_cannot_control_the_terminal_of_who_reads_it() {
    let scene = Scene::new();
    let job = Scene::job_of(&scene.ask(&["run", "--", "printf", r"a\033]52;c;eA==\007b\033[2Jc"]).exits(0));
    let mut person = Person::call(&scene, &["job", "logs", &job]);
    person.sees("abc");
    assert_eq!(person.leaves(), (0, "abc".to_owned()));
    let listed = scene.ask(&["run", "--", "sh", "-c", "printf '\u{1b}[2Jx'"]).exits(0);
    assert!(!listed["data"]["command"].as_str().unwrap().contains('\u{1b}'));
    let mut person = Person::call(&scene, &["job", "list", "--all"]);
    person.sees("COMMAND");
    assert!(!person.leaves().1.contains('\u{1b}'));
}

#[test]
fn the_first_keys_after_coming_back_are_the_command_s() {
    let scene = Scene::new();
    let script = "read a; echo got-$a; read b; echo got-$b";
    let words = ["run", "--tty", "--", "sh", "-c", script];
    let mut person = Person::call(&scene, &words);
    person.sees("Ctrl-]");
    person.types("one\r");
    person.sees("got-one");
    person.types("\x1d");
    assert_eq!(person.leaves().0, 14);
    let mut person = Person::call(&scene, &words);
    person.sees("attached to job");
    person.sees("got-one");
    person.types("two\r");
    person.sees("got-two");
    assert_eq!(person.leaves().0, 0);
}
