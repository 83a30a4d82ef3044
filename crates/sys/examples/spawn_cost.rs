//! Prints what starting and reaping `/bin/true` costs, our way and the standard library's (`posix_spawn`), in
//! turns in one run; with a number of MiB as argument, from a process that has touched that much memory.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement has nobody to report errors to")]

use std::os::fd::AsFd;
use std::process::Command;
use std::time::{Duration, Instant};

use outlast_sys::spawn::Spawn;
use outlast_sys::wait::{Children, wait_pidfd};

const ROUNDS: usize = 1000;

fn ours() -> Duration {
    let start = Instant::now();
    let null = std::fs::File::open("/dev/null").unwrap();
    let mut spawn = Spawn::new(c"/bin/true".into());
    spawn.fd(null.as_fd(), 0).fd(null.as_fd(), 1).fd(null.as_fd(), 2);
    let child = spawn.spawn().unwrap();
    wait_pidfd(child.pidfd.as_fd(), Children::Ordinary, false).unwrap();
    start.elapsed()
}

fn standard() -> Duration {
    let start = Instant::now();
    Command::new("/bin/true").env_clear().status().unwrap();
    start.elapsed()
}

fn main() {
    let mib: usize = std::env::args().nth(1).map_or(0, |text| text.parse().expect("a number of MiB"));
    let touched = vec![1u8; mib << 20];
    let (mut a, mut b): (Vec<_>, Vec<_>) = (0..ROUNDS).map(|_| (ours(), standard())).unzip();
    for (name, times) in [("outlast-sys", &mut a), ("std::process", &mut b)] {
        times.sort_unstable();
        println!("{name:13} p50 {:>7.1?}  p90 {:>7.1?}", times[ROUNDS / 2], times[ROUNDS * 9 / 10]);
    }
    println!("ratio of p50  {:.3}", a[ROUNDS / 2].as_secs_f64() / b[ROUNDS / 2].as_secs_f64());
    std::hint::black_box(touched);
}
