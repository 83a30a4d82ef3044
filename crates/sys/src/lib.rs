//! The system calls Outlast needs and the standard library lacks. All of the unsafe code lives here.
//!
//! Every module is one topic of the keeper's work, and every public function is safe to call. What a caller
//! can already do safely through `rustix` (resize a pipe, rename without replacing, change an owner) is
//! deliberately absent; the crate's README lists those.
//!
//! In reading order: [`spawn`] starts the command and [`fork`] the keeper's own second process; [`wait`] and
//! [`pidfd`] learn how processes ended; [`prctl`], [`proc_tree`], [`cgroup`] and [`ns`] contain and find what
//! the command started; [`signals`], [`mod@file`], [`unix`], [`pty`], [`title`] and [`mem`] are the tools of the two
//! event loops.
#![allow(unsafe_code, reason = "the one crate that may: the rest of the workspace denies it")]

mod raw;

pub mod cgroup;
pub mod file;
pub mod fork;
pub mod inherit;
pub mod mem;
pub mod ns;
pub mod pidfd;
pub mod prctl;
pub mod proc_tree;
pub mod pty;
pub mod signals;
pub mod spawn;
pub mod title;
pub mod unix;
pub mod wait;

pub use rustix::io::Errno;
pub use rustix::process::{Pid, Signal};
