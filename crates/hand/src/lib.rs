//! The hand: job directories, admission, the keeper, containment and settling.
//!
//! The job directory is the truth. One keeper writes it, everyone else reads it; there is no daemon, and nothing
//! here needs one. `ARCHITECTURE.md` has the map and the files of a job directory.
//!
//! In reading order:
//!
//! - [`home`] and [`job`]: where jobs live, and what a look at one finds.
//! - [`reading`] and [`defaults`]: what a command's text says before it runs, and what it is given where nobody says.
//! - [`admit`]: a command becomes a job, once. [`fence`]: what is stale or sealed is refused.
//! - [`launch`]: a keeper is started for it; [`nest`]: quickly, where many are.
//! - [`keeper`]: what the keeper does: warden, scribe, containment.
//! - [`control`]: talking to a living keeper.
//! - `contain`: what owns the process tree; `start`: the mark that decides who may start it.
//! - [`settle`]: what is done about a job that lost its keeper.
//! - [`brains`]: who keeps a finished job. [`dropped`]: what was dropped as stale. [`masks`]: what no view shows.
//! - [`gc`], [`verify`], [`probe`]: tidying, checking, and saying what this machine offers.
#![forbid(unsafe_code)]

pub mod admit;
pub mod brains;
pub mod clock;
mod contain;
pub mod control;
pub mod defaults;
pub mod dropped;
pub mod fence;
pub mod files;
pub mod gc;
pub mod home;
pub mod job;
pub mod keeper;
pub mod launch;
pub mod log;
pub mod marks;
pub mod masks;
pub mod nest;
pub mod probe;
pub mod reading;
pub mod settle;
mod start;
pub mod verify;
