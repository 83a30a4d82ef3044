//! What a shell script would do, read from its syntax tree.
//!
//! Text in, facts out: this crate opens nothing, runs nothing and knows no clock. Three questions are
//! answered, each by walking a tree and never by looking for a word in the text:
//!
//! 1. **Would it leave the call?** [`analyze_script`] and [`analyze_argv`] list what detaches, daemonizes
//!    or hands work to another daemon, and, apart from that, what only waits or polls (CONTRACT §3.8).
//! 2. **Whose status is it?** [`last_pipeline`] names the stages that decide a script's status; the
//!    rule that judges them is `outlast_core::pipeline`.
//! 3. **How is a stage's status learnt?** [`plan_capture`] says how to run the script so that every stage
//!    is recorded, and [`reconcile`] decides whether the record may be believed.
//!
//! The analysis is advice and the boundary around the process is the guard. A text that cannot be read
//! comes back as [`Parsed::Unparsed`], which means "run it contained, and say so", never "all is well".
//!
//! In reading order: `report` (the facts), `syntax` and `parse` (the tree), `programs` (what a command line
//! runs), `walk` (jobs and the waits that join them), `tail` (the deciding pipeline), `status`, `capture`.
#![forbid(unsafe_code)]

mod capture;
mod parse;
mod programs;
mod report;
mod syntax;
mod tail;
mod walk;

pub use capture::{
    CapturePlan, NotCaptured, RecordedStages, ScriptCall, StageEvidence, StagesError, bash_env_text,
    instrument_dash, parse_stages, plan_capture, plan_capture_argv, reconcile,
};
pub use report::{
    Analysis, Dialect, Finding, FindingKind, LastPipeline, Parsed, Stage, UnparsedReason, WhyNot,
};

/// Reads a script and lists what it would do that a call must not.
pub fn analyze_script(text: &[u8], dialect: Dialect) -> Analysis {
    report::analyze(text, |text| walk::script(text, dialect))
}

/// Reads a command line that is about to be started as it is, looking into any shell it calls.
///
/// Places in the findings count in the arguments joined by one space each. The deciding pipeline is that of
/// a script given to a shell with `-c`.
pub fn analyze_argv(argv: &[Vec<u8>]) -> Analysis {
    let text = argv.join(&b' ');
    report::analyze(&text, |text| {
        if text.len() > parse::MAX_BYTES {
            return Err(parse::Stop::Whole(UnparsedReason::TooLarge { limit: parse::MAX_BYTES }));
        }
        let args = programs::args_of_argv(argv);
        let last_pipeline =
            match programs::shell_call(&args).and_then(|call| call.script.map(|at| (call, at))) {
                None => LastPipeline::No { why: WhyNot::NotAPipeline },
                Some((call, at)) => {
                    let inner = &args[at].script;
                    match parse::parse(&inner.bytes, Some(&inner.places), call.dialect, 0) {
                        Err(_) => LastPipeline::No { why: WhyNot::Unparsed },
                        Ok(script) => {
                            let mut tail = tail::find(&script);
                            if let (true, Ok(tail)) = (call.pipefail, &mut tail) {
                                // The shell's option holds unless the script itself touches it.
                                if !tail.sets_pipefail {
                                    tail.pipefail = Some(true);
                                }
                            }
                            tail::public(tail)
                        }
                    }
                }
            };
        Ok((walk::argv(&args), last_pipeline))
    })
}

/// The pipeline that decides the script's status, or the reason why none can be named.
pub fn last_pipeline(analysis: &Analysis) -> &LastPipeline {
    &analysis.last_pipeline
}
