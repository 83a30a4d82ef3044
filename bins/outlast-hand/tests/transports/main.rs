//! The ways to a runner, each for real: `ssh` and its daemon, a container's exec, TLS between two machines' networks, a
//! proxy that misbehaves, a hand that dials, several hands on one machine.
//!
//! What all of them show: a connection that is lost loses nothing else. Jobs go on, a reader continues by cursor, a call
//! whose answer was lost is repeated with its id, and both ends notice within the documented times.
//!
//! Some scenes need root and tools of the system. Where those are missing the test fails and says what to install; none
//! is passed over.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Scenes are tests, wherever they are told.

#[path = "../torture/support.rs"]
mod ground;
mod support;

mod container;
mod dial;
mod network;
mod proxied;
mod proxy;
mod several;
mod ssh;
mod tls;
