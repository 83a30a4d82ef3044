//! The tables, a file each, and what may be done to them.
//!
//! | table | what a row is |
//! |---|---|
//! | [`tenants`] | whose everything is |
//! | [`principals`], [`tokens`] | who calls, and by what that is known |
//! | [`conversations`], [`runs`] | where work is asked for, and for whom |
//! | [`sandboxes`], [`hands`] | places to run, and their incarnations with who works on them |
//! | [`tasks`], [`segments`] | promises with their executions, and what those wrote |
//! | [`stops`] | stops that were accepted or dropped |
//! | [`events`] | facts that are owed |
//! | [`audit`] | who did what |

pub mod audit;
pub mod conversations;
pub mod events;
pub mod hands;
pub mod principals;
pub mod runs;
pub mod sandboxes;
pub mod segments;
pub mod stops;
pub mod tasks;
pub mod tenants;
pub mod tokens;
