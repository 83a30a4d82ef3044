//! The keeper under torture: real processes, real cgroups, real kills.
//!
//! Each scene runs on a [`support::Ground`] of its own, which checks at its end that nothing is left (process, cgroup,
//! lock) and that the home violates no invariant. Scenes over containment modes run in each mode that this user must
//! have; as root, [`another_user`] runs all of them once more as `nobody`. What only root can set up is in the other
//! binary, `torture-as-root`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Scenes are tests, wherever they are told.

#[path = "support.rs"]
mod support;

mod another_user;
mod ends;
mod input;
mod losses;
mod output;
mod races;
mod reboot;
mod stops;
mod strangers;
mod trees;
