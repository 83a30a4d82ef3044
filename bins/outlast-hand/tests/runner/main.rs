//! The runner under fire: the real program on a home of its own, real jobs, real connections.
//!
//! Each scene ([`support::scene`]) has a home, a runner and a folder to work in, checks at its end that the runner goes
//! when it is told to, that nothing is left (process, cgroup, lock, socket) and that the home violates no invariant.
//! Waits are for conditions, each with a bound.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Scenes are tests, wherever they are told.

#[path = "../torture/support.rs"]
mod ground;
mod support;

mod access;
mod fences;
mod headers;
mod hostile;
mod input;
mod lifecycle;
mod load;
mod mutations;
mod reading;
mod secrets;
mod words;
