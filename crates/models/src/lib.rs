//! Every interleaving of what the brain does, with crashes between any two durable steps.
//!
//! A model here is a small world around the decisions of `outlast_core`: it keeps what a store would keep, loses what memory
//! would lose, and asks the core's own functions what to do. The checker visits every state that can be reached. A rule that
//! is broken anywhere is found with the shortest way to it.
//!
//! - [`delivery`]: workers that claim, crash, hand over and acknowledge events of tasks of one or two people.
//! - [`retry`]: starts whose answers are lost, stops that race them, and later attempts.
//!
//! A model that finds nothing may be blind, so each has a list of bugs that can be put into it, and the tests require that
//! every one is found. Each also notes which situations it has met ([`Met`]), and the tests require those they are there for.
#![forbid(unsafe_code)]

pub mod delivery;
mod facts;
mod met;
pub mod retry;

pub use met::Met;
