//! The runner: the server on a hand. It admits jobs and serves their logs and receipts over any byte stream.
//!
//! It owns nothing. The job directories are the truth; keepers own the jobs; the runner may be killed, upgraded and
//! started again, and neither notices. What it adds is that a job which lost its keeper is settled at once, and that many
//! readers may follow from afar.
//!
//! | module | what |
//! |---|---|
//! | [`settings`] | what a runner is told |
//! | [`serve`] | the run of the program |
//! | `connections` | listeners, connections, HTTP on them |
//! | `shared`, `call` | what all calls share; one call, from its headers to its answer |
//! | `reserve` | what keeps it alive under load: its lock, its own group, spare descriptors |
//! | `pool` | threads for what blocks, in lanes, so that a stop never waits behind an admission |
//! | `paced` | a stream whose other end must keep reading |
//! | `hub` | a watch on each open job; who waits is told; what lost its keeper is settled |
//! | `guard` | who calls, whether it is stale, whether it is a replay |
//! | `route` | paths and queries, as a table |
//! | `admit`, `jobs`, `output` | what the calls do |
//! | [`tokens`], [`identity`] | bearer tokens; the runner's own certificate |
//! | `dial` | where the runner dials, and is the server of who it dialled |
//! | [`connect`] | standard streams to the runner's socket, for `ssh` and container exec |
//!
//! One thread drives all connections. Nothing on it touches a disk or waits for a process.
#![forbid(unsafe_code)]
#![allow(
    clippy::result_large_err,
    reason = "a problem is made once for a call that is refused, and goes out as it is"
)]

mod admit;
mod answer;
mod call;
pub mod connect;
mod connections;
mod dial;
mod guard;
mod hub;
pub mod identity;
mod jobs;
mod output;
mod paced;
mod pool;
mod reserve;
mod route;
pub mod serve;
pub mod settings;
mod shared;
pub mod tokens;

pub use route::{OPERATIONS, Operation};
