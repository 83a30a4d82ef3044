//! The keeper under torture that only root can set up: cgroups to escape to, other users, limits, mounts, and system
//! calls that fail. For another user these tests fail; `torture` is for everyone.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Scenes are tests, wherever they are told.

#[path = "../torture/support.rs"]
mod support;

mod escapes;
mod faults;
mod limits;
mod other_uid;
mod system_calls;

use support::Ground;

/// Ground for a scene that needs root.
#[track_caller]
fn as_root(name: &str) -> Ground {
    assert!(support::is_root(), "this test needs root: run the `torture` binary alone as another user");
    Ground::new(name)
}
