//! The commands, one file a verb.

pub(crate) mod completions;
pub(crate) mod doctor;
pub(crate) mod job_cancel;
pub(crate) mod job_explain;
pub(crate) mod job_gc;
pub(crate) mod job_list;
pub(crate) mod job_logs;
pub(crate) mod job_resize;
pub(crate) mod job_retry;
pub(crate) mod job_settle;
pub(crate) mod job_status;
pub(crate) mod job_stdin;
pub(crate) mod job_wait;
pub(crate) mod qualify;
pub(crate) mod run;
pub(crate) mod schema;
