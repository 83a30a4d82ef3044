//! What the shell noted of its last pipeline, as the receipt says it.

use crate::job::{name, work_dir};
use outlast_core::pipeline::{Stages, effective};
use outlast_core::spec::{Capture, Spec};
use outlast_shell::{LastPipeline, Stage, StageEvidence, parse_stages, reconcile};
use std::io::Read;
use std::path::Path;

/// A record of more stages than fit this was not written by us.
const RECORD_LIMIT: u64 = 4096;

/// Reads the record, and believes it only where it fits what the syntax tree promised and the shell's own exit.
pub(super) fn read(job_path: &Path, spec: &Spec, code: Option<u8>) -> Stages {
    let programs = match &spec.manner.capture {
        Capture::NotAPipeline => return Stages::NotAPipeline,
        Capture::NotCaptured { why } => return Stages::NotCaptured { why: why.clone() },
        Capture::BashEnv { programs, .. } | Capture::Rewritten { programs, .. } => programs,
    };
    let not_captured = |why: &str| Stages::NotCaptured { why: why.to_owned() };
    let Some(code) = code else { return not_captured("the shell did not exit by itself") };
    let Some(record) = record(&work_dir(job_path, spec).join(name::STAGES)) else {
        return not_captured(
            "the shell ended without noting them (it was replaced, killed, or set an EXIT trap of its own)",
        );
    };
    let decides = LastPipeline::Decides {
        stages: programs.iter().map(|program| Stage { program: program.clone(), start: 0, end: 0 }).collect(),
        pipefail: None,
    };
    match reconcile(&decides, parse_stages(&record), i32::from(code)) {
        StageEvidence::Captured(stages) => match effective(code, &stages) {
            Some(effective) => Stages::Captured { stages, effective },
            None => not_captured("there were no stages"),
        },
        StageEvidence::NotCaptured(why) => not_captured(&why.to_string()),
    }
}

/// The command may write this file: it is read only if it is a plain file, and only so far.
fn record(path: &Path) -> Option<Vec<u8>> {
    use std::os::unix::fs::OpenOptionsExt;
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOFOLLOW;
    let file = std::fs::OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut record = Vec::new();
    file.take(RECORD_LIMIT).read_to_end(&mut record).ok()?;
    Some(record)
}
