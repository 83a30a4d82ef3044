//! The brain over a real hand: the runner's program on a home of its own, real commands, a real store.
//!
//! Waits are for conditions, each with a bound. What is left behind is looked for at each scene's end.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Scenes are tests, wherever they are told.
#![allow(dead_code, reason = "the ground and the scenes are the other suites' too")]

#[path = "../torture/support.rs"]
mod ground;
mod stage;
#[path = "../runner/support.rs"]
mod support;

mod deaths;
mod tasks;
