//! The start mark: who has it decides whether an attempt starts.
//!
//! A keeper takes it before the command's process exists; a settler, where none came in time, or a stop that was first.
//! It is created exclusively, so a keeper that comes late finds it taken and starts nothing.

use crate::job::{self, name};
use crate::{clock, files, log};
use outlast_core::evidence::{self, StartMarkTaken};
use outlast_core::exit::{Cause, Exit, NotStarted};
use outlast_core::id::Cursor;
use outlast_core::ledger::StartMark;
use outlast_core::pipeline::Stages;
use outlast_core::receipt::{Authority, Drain, Facts, Output, Receipt, Resources, TerminalMutation};
use outlast_core::spec::Spec;
use rustix::fs::AtFlags;
use std::io;
use std::os::fd::BorrowedFd;

/// Creates the start mark; `false` where somebody has it. It appears with its whole text or not at all.
///
/// It is not synced: within this boot the page cache keeps it whoever dies, and after a restart the change of boot
/// proves death whether or not anything was started.
pub(crate) fn take_start_mark(job_dir: BorrowedFd<'_>, mark: &StartMark) -> io::Result<bool> {
    let aside = files::name_aside(name::START);
    match files::create_new(job_dir, &aside, &serde_json::to_vec(mark)?) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            rustix::fs::unlinkat(job_dir, aside.as_str(), AtFlags::empty())?;
            files::create_new(job_dir, &aside, &serde_json::to_vec(mark)?).map(drop)?;
        }
        other => drop(other?),
    }
    match files::rename_new(job_dir, &aside, job_dir, name::START) {
        Ok(()) => Ok(true),
        Err(error) => {
            let _ = rustix::fs::unlinkat(job_dir, aside.as_str(), AtFlags::empty());
            if error.kind() == io::ErrorKind::AlreadyExists { Ok(false) } else { Err(error) }
        }
    }
}

/// Settles a job under which nothing was started and nothing ever will be, because the start mark is taken here, or was by
/// somebody who has not written the receipt yet. Gives the reason as the mark has it, which is the receipt's, whoever writes
/// that; `None` where a keeper has the mark.
pub(crate) fn never_started(
    home: BorrowedFd<'_>,
    job_dir: BorrowedFd<'_>,
    spec: &Spec,
    why: NotStarted,
    by: &str,
) -> io::Result<Option<NotStarted>> {
    let mark = StartMark::Settler { name: by.to_owned(), at: clock::unix_now(), why: Some(why) };
    let (claimed_by, why) = if take_start_mark(job_dir, &mark)? {
        (by.to_owned(), why)
    } else {
        match job::read_json(job_dir, name::START)? {
            // It has died before it wrote the receipt, or is about to.
            Some(StartMark::Settler { name, why: marked, .. }) => (name, marked.unwrap_or(why)),
            _ => return Ok(None),
        }
    };
    let now = clock::unix_now();
    let facts = Facts {
        authority: Authority::Settler { name: by.to_owned() },
        exit: Exit::NotStarted { why },
        cause: Cause::NotStarted,
        stages: Stages::NotAPipeline,
        output: Output {
            final_cursor: Cursor(0),
            hash: log::output_hash(Some(&blake3::Hasher::new())),
            drain: Drain::Complete,
            gaps: Vec::new(),
            stdout_bytes: Some(0),
            stderr_bytes: Some(0),
        },
        terminal_mutation: TerminalMutation::None,
        stragglers: Vec::new(),
        resources: None::<Resources>,
        started: None,
        exited: None,
        dead: now,
        settled: now,
        boundary: None,
        isolation: None,
        stops: Vec::new(),
    };
    let receipt = Receipt::assemble(spec, evidence::never_started(StartMarkTaken::by(claimed_by)), facts);
    files::write_once(job_dir, name::RECEIPT, &serde_json::to_vec(&receipt)?, || Ok(()))?;
    if let Ok(open) = files::open_subdir(home, "open") {
        let _ = rustix::fs::unlinkat(open, spec.job_id.to_string().as_str(), AtFlags::empty());
    }
    Ok(Some(why))
}
