//! What the brain keeps: domain records behind a small door, in SQLite or in PostgreSQL.
//!
//! One file holds one table and everything that may be done to it. A thing that may be done is an [`Op`]: a value with the
//! request's facts, run in one transaction. It says what is true after it has returned, and it may be run again: whoever
//! lost the answer of a commit runs the same value once more, which changes nothing more. [`Query`]s only read.
//!
//! The text of each statement is the same for both databases ([`tx`] says where they differ). Nothing here decides what a
//! record means: that is `outlast_core`'s, which the operations ask with the facts they have read under their locks.
//!
//! In reading order:
//!
//! - [`tx`], [`value`]: a transaction, and what goes into and comes out of a statement.
//! - [`store`]: opening, writing, reading; `sqlite` and `postgres` behind it; [`migrate`] before anything else.
//! - [`ids`]: what records are called. [`tables`]: what there is.
//! - [`fault`]: failures at will, for tests of whoever uses this.
//!
//! Invariants kept here: each transition locks or compares and sets one root row (conversation, hand, task); every write
//! that a lease guards checks its token; a task's settlement and its event are one transaction; a cursor only ever moves
//! from where it is.
#![forbid(unsafe_code)]

pub mod error;
pub mod fault;
pub mod ids;
pub mod migrate;
mod postgres;
mod sqlite;
pub mod store;
pub mod tables;
pub mod tx;
pub mod value;

pub use error::StoreError;
pub use store::{Location, Op, Query, Store};
