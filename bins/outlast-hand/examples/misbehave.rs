//! A program that misbehaves, for the torture suite: it does its arguments one after the other.
//!
//! `misbehave say=hello spew=1048576 orphan=setsid,ignore=TERM,forever exit=3`
//!
//! An argument is a deed and, after `=`, what it is done with; [`deed`] lists them. `child=` and `orphan=` take deeds
//! of their own, separated by commas. Every process gives itself an alarm, so that nothing outlives a failed test for
//! long.
#![allow(unsafe_code)] // It forks.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A fixture that cannot misbehave fails its test.

use rustix::process::{Pid, Signal};
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// No process of ours lives longer than this.
const LIFE_SECONDS: u32 = 90;

fn main() {
    live_shortly();
    for argument in std::env::args().skip(1) {
        deed(&argument);
    }
}

fn live_shortly() {
    // SAFETY: alarm only sets a timer; its signal ends the process.
    unsafe { libc::alarm(LIFE_SECONDS) };
}

fn deed(text: &str) {
    let (verb, with) = text.split_once('=').unwrap_or((text, ""));
    match verb {
        // Output.
        "say" => put(1, format!("{with}\n").as_bytes()),
        "err" => put(2, format!("{with}\n").as_bytes()),
        "line" => put(1, &[vec![b'x'; number(with)], vec![b'\n']].concat()),
        "spew" => spew(1, number(with)),
        "binary" => put(1, &(0..=255).cycle().take(256 * number(with)).collect::<Vec<u8>>()),
        "alternate" => (0..number(with)).for_each(|n| put(1 + (n % 2) as i32, format!("{n}\n").as_bytes())),
        "chatter" => chatter(number(with)),
        "close" => unsafe_close(number(with) as i32),
        "reopen" => reopen(),
        // Time.
        "wait" => wait_for(Path::new(with)),
        "touch" => drop(OpenOptions::new().create(true).append(true).open(with).unwrap()),
        "sleep" => std::thread::sleep(Duration::from_millis(number(with) as u64)),
        "forever" => loop {
            std::thread::sleep(Duration::from_secs(1));
        },
        "burn" => burn(number(with) as u64),
        // Ends and signals.
        "exit" => std::process::exit(number(with) as i32),
        "signal" => {
            // The runtime has a handler for some.
            if with != "KILL" {
                handle(with, libc::SIG_DFL);
            }
            rustix::process::kill_process(rustix::process::getpid(), signal(with)).unwrap();
            std::thread::sleep(Duration::from_secs(10));
        }
        "ignore" => handle(with, libc::SIG_IGN),
        "on-term" => handle("TERM", last_words as *const () as usize),
        "stop" => rustix::process::kill_process(rustix::process::getpid(), Signal::STOP).unwrap(),
        // Processes.
        "setsid" => drop(rustix::process::setsid()),
        "child" => {
            if fork().is_none() {
                with.split(',').for_each(deed);
                std::process::exit(0);
            }
        }
        "orphan" => match fork() {
            Some(between) => {
                let _ = rustix::process::waitpid(Some(between), rustix::process::WaitOptions::empty());
            }
            None => {
                if fork().is_none() {
                    with.split(',').for_each(deed);
                }
                std::process::exit(0);
            }
        },
        "zombies" => (0..number(with)).for_each(|_| {
            if fork().is_none() {
                std::process::exit(0);
            }
        }),
        "swarm" => (0..number(with)).for_each(|_| {
            if fork().is_none() {
                handle("TERM", libc::SIG_IGN);
                deed("forever");
            }
        }),
        "hop" => hop(number(with) as u64),
        "bomb" => bomb(),
        // Resources and boundaries.
        "eat" => eat(number(with)),
        "escape" => std::fs::write(Path::new(with).join("cgroup.procs"), "0").unwrap(),
        "write-env" => std::fs::write(with, std::fs::read("/proc/self/environ").unwrap()).unwrap(),
        // Input and terminals.
        "cat" => drop(io::copy(&mut io::stdin(), &mut io::stdout())),
        "read" => {
            let mut bytes = vec![0; number(with)];
            io::stdin().read_exact(&mut bytes).unwrap();
            put(1, &bytes);
        }
        "terminal" => terminal(),
        "resized" => resized(with),
        "descriptors" => descriptors(),
        _ => {
            put(2, format!("misbehave: no such deed: {text}\n").as_bytes());
            std::process::exit(99);
        }
    }
}

fn number(text: &str) -> usize {
    text.parse().unwrap_or_else(|_| panic!("`{text}` is no number"))
}

fn signal(name: &str) -> Signal {
    match name {
        "TERM" => Signal::TERM,
        "KILL" => Signal::KILL,
        "SEGV" => Signal::SEGV,
        "INT" => Signal::INT,
        "HUP" => Signal::HUP,
        _ => panic!("no signal {name}"),
    }
}

fn handle(name: &str, handler: usize) {
    // SAFETY: the handlers we have do nothing that is not allowed in one.
    unsafe { libc::signal(signal(name).as_raw(), handler) };
}

/// What a program with a handler for TERM does: say so, and end with a status of its own.
extern "C" fn last_words(_: i32) {
    // SAFETY: both calls are allowed in a handler.
    unsafe {
        libc::write(1, c"last words\n".as_ptr().cast(), 11);
        libc::_exit(7);
    }
}

fn fork() -> Option<Pid> {
    // SAFETY: this program has one thread.
    match unsafe { libc::fork() } {
        0 => {
            live_shortly();
            None
        }
        raw => Some(Pid::from_raw(raw).unwrap_or_else(|| std::process::exit(98))),
    }
}

fn unsafe_close(fd: i32) {
    // SAFETY: only standard streams are closed, which nothing here owns.
    unsafe { libc::close(fd) };
}

fn put(fd: i32, mut bytes: &[u8]) {
    // SAFETY: the descriptor is a standard stream; where it has been closed, the write fails.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    while !bytes.is_empty() {
        match rustix::io::write(fd, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => std::process::exit(97),
        }
    }
}

/// Bytes without a pattern that a mistake could repeat, the same each time: the test makes them again.
fn spew(fd: i32, bytes: usize) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut left = bytes;
    while left > 0 {
        let mut chunk = Vec::with_capacity(64 << 10);
        while chunk.len() < 64 << 10 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            chunk.extend_from_slice(&state.to_le_bytes());
        }
        chunk.truncate(left);
        left -= chunk.len();
        put(fd, &chunk);
    }
}

/// A line each millisecond, numbered, for so many of them.
fn chatter(lines: usize) {
    for line in 0..lines {
        put(1, format!("line {line:06}\n").as_bytes());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What `echo x > /dev/stdout` does in a shell.
fn reopen() {
    let mut again = OpenOptions::new().write(true).truncate(true).create(true).open("/dev/stdout").unwrap();
    again.write_all(b"through a new descriptor\n").unwrap();
}

fn wait_for(path: &Path) {
    while !path.exists() {
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn burn(millis: u64) {
    let until = Instant::now() + Duration::from_millis(millis);
    while Instant::now() < until {
        std::hint::spin_loop();
    }
}

/// Changes its pid as fast as it can: each process forks its successor and ends.
fn hop(millis: u64) {
    let until = Instant::now() + Duration::from_millis(millis);
    while Instant::now() < until {
        if fork().is_some() {
            // SAFETY: ends this process without running anything else.
            unsafe { libc::_exit(0) };
        }
    }
}

/// A fork bomb: every process forks for ever. To be used only where the number of processes is limited.
fn bomb() {
    handle("TERM", libc::SIG_IGN);
    loop {
        // SAFETY: this program has one thread.
        match unsafe { libc::fork() } {
            0 => live_shortly(),
            // The limit is reached.
            -1 => std::thread::sleep(Duration::from_millis(1)),
            _ => {}
        }
    }
}

fn eat(mebibytes: usize) {
    let mut eaten: Vec<Vec<u8>> = Vec::new();
    for _ in 0..mebibytes {
        let mut piece = vec![0; 1 << 20];
        piece.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
        eaten.push(piece);
    }
    put(1, format!("ate {}\n", eaten.len()).as_bytes());
}

fn terminal() {
    let is = |fd: BorrowedFd<'_>| rustix::termios::isatty(fd);
    let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
    put(
        1,
        format!("{} {} {} {}\n", is(stdin.as_fd()), is(stdout.as_fd()), is(stderr.as_fd()), size())
            .as_bytes(),
    );
}

fn size() -> String {
    rustix::termios::tcgetwinsize(io::stdin())
        .map_or_else(|errno| errno.to_string(), |size| format!("{}x{}", size.ws_row, size.ws_col))
}

/// Waits until the terminal has another size than this, and says which.
fn resized(before: &str) {
    while size() == before {
        std::thread::sleep(Duration::from_millis(2));
    }
    put(1, format!("{}\n", size()).as_bytes());
}

/// The descriptors that were open when this program started, and what it inherited besides.
fn descriptors() {
    let mut open: Vec<String> = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|fd| {
            !std::fs::read_link(format!("/proc/self/fd/{fd}"))
                .is_ok_and(|to| to.to_string_lossy().contains("/fd"))
        })
        .collect();
    open.sort();
    let own = rustix::process::getpid();
    let leads = rustix::process::getsid(None).is_ok_and(|session| session == own);
    put(1, format!("{} session={leads}\n", open.join(",")).as_bytes());
}
