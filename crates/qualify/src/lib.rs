//! Probes for anything that runs commands for others: what it does with them, seen from outside.
//!
//! Nothing here knows how Outlast works inside, so that the same questions can be put to anything else. What every probe
//! does, and what its answer proves and does not, is written at the probe itself and in `docs/QUALIFICATION.md`. In
//! reading order:
//!
//! - [`subject`]: what is probed, and what it may answer.
//! - [`probe`] and [`probes`]: the questions, each with its judgement.
//! - [`lab`]: where one of them is put; it ends what is left behind. [`process`] finds that.
//! - [`qualify`] and [`latency`]: all of them, one after another, each within its bound.
//! - [`report`] and [`machine`]: what is shown and kept of it.
//! - [`subjects`]: Outlast itself; [`call`] helps those who write another.
#![forbid(unsafe_code)]

pub mod call;
mod lab;
pub mod latency;
pub mod machine;
pub mod probe;
pub mod probes;
pub mod process;
pub mod qualify;
pub mod report;
pub mod subject;
pub mod subjects;
