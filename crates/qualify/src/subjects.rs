//! Outlast itself as a subject, by each way it is reached.

pub mod local;
pub mod runner;
