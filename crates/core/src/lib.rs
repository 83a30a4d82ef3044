//! The pure core of Outlast: facts in, decisions out.
//!
//! Nothing in this crate reads a file, a clock or a random number, starts a thread or awaits. Time is an
//! argument, and what the world did arrives as a fact. `./test` fails when its dependency tree gains anything
//! that could do more (see `ARCHITECTURE.md`, "What is deliberately absent").
//!
//! In reading order:
//!
//! - [`id`]: who is who — jobs, scopes, keys, attempts, generations, cursors.
//! - [`spec`]: the immutable command a job was admitted with, its digest, and what differs between two.
//! - [`exit`] and [`pipeline`]: how a command ended, and what its pipeline's stages say about it.
//! - [`evidence`]: what proves that a process tree is dead, and the only functions that can say so.
//! - [`warden`]: the machine that decides when a tree is signalled, lingered for, drained and settled.
//! - [`fence`]: which stops and admissions are stale.
//! - [`ledger`] and [`receipt`]: what a keeper writes down.
//! - [`status`]: the one function that says what state a job is in, and the obligations behind it.
//! - [`verdict`]: what a caller of a settled job is told: exit code and error code.
//!
//! What the brain decides by:
//!
//! - [`task`]: what state a task is in, what is owed about it, and how far its result has come.
//! - [`cutover`]: whether a call's reply carries the result, or the task is handed off.
//! - [`delivery`]: which event a run is owed, and when and to whom it is handed over.
//! - [`stops`]: which tasks a stop hits.
#![forbid(unsafe_code)]

pub mod bytes;
pub mod cutover;
pub mod delivery;
pub mod duration;
pub mod evidence;
pub mod exit;
pub mod fence;
pub mod id;
pub mod ledger;
pub mod pipeline;
pub mod progress;
pub mod receipt;
#[cfg(feature = "schema")]
mod schema;
pub mod spec;
pub mod status;
pub mod stops;
pub mod task;
pub mod time;
pub mod verdict;
pub mod warden;
