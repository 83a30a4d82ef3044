//! The hand without keepers: who a home is for, fences, attempts by name, and what brains keep.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod attempts;
mod brains;
mod fences;
mod homes;
mod support;
