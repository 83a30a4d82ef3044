//! The command line, end to end: the real binary, real keepers, a home of its own for each test.
//!
//! Every JSON answer that passes through [`scene::Scene`] is checked against `schemas/envelope.schema.json`, and every
//! scene ends by proving that nothing it started is left.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on says so"
)]

mod attach;
mod budget;
mod cancel;
mod cases;
mod detach;
mod envelope;
mod keys;
mod logs;
mod lost;
mod manual;
mod person;
mod qualify;
mod resume;
mod run;
mod scene;
mod signals;
mod stdin;
