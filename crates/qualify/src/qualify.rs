//! Probing a subject: each probe in its own time, so that a subject which hangs fails instead of hanging whoever asks.

use crate::lab::{Lab, TIDYING};
use crate::latency::{Distribution, Figures, MEASURES, Measure};
use crate::machine::{self, Machine};
use crate::probe::{Finding, Probe, Verdict, fail, inconclusive};
use crate::probes;
use crate::report::{Mode, Report, Row, SCHEMA};
use crate::subject::{Request, Subject, Trouble, Work, millis};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

/// What is probed, and how thoroughly.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Options {
    /// Fewer samples, fewer bytes.
    pub quick: bool,
    /// Only these probes, and `latency` where it is named; all where none is.
    pub only: Vec<String>,
    /// Not these.
    pub skip: Vec<String>,
    /// How much the bulk probe prints, where the mode's size is not the right one.
    pub bulk_bytes: Option<u64>,
    /// How many samples a latency has, where the mode's number is not the right one.
    pub samples: Option<usize>,
}

/// The name by which latencies are chosen and skipped.
pub const LATENCY: &str = "latency";

impl Options {
    /// Names that no probe has.
    #[must_use]
    pub fn unknown_names(&self) -> Vec<String> {
        let probes = probes::all();
        let known = |name: &String| *name == LATENCY || probes.iter().any(|probe| probe.id == name);
        self.only.iter().chain(&self.skip).filter(|name| !known(name)).cloned().collect()
    }

    fn wants(&self, id: &str) -> bool {
        let named = |names: &[String]| names.iter().any(|name| name == id);
        (self.only.is_empty() || named(&self.only)) && !named(&self.skip)
    }

    fn bulk(&self) -> u64 {
        self.bulk_bytes.unwrap_or(if self.quick { 64 << 20 } else { 1 << 30 })
    }

    fn samples(&self) -> usize {
        self.samples.unwrap_or(if self.quick { 5 } else { 30 })
    }
}

/// What is told while it goes on.
#[derive(Debug)]
pub enum Progress<'p> {
    /// A probe begins.
    Begins(&'p Probe),
    /// A probe is done.
    Done(&'p Row),
    /// A latency is measured.
    Measured(&'p Figures),
}

/// Asks a subject all that was chosen.
pub fn qualify(
    subject: &Arc<dyn Subject>,
    options: &Options,
    scratch: &Path,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Report {
    let mut report = Report {
        schema: SCHEMA,
        tool_version: env!("CARGO_PKG_VERSION"),
        date: machine::now(),
        mode: if options.quick { Mode::Quick } else { Mode::Full },
        bulk_bytes: options.bulk(),
        samples: options.samples(),
        machine: Machine::look(scratch),
        subject: subject.describe(),
        unavailable: unavailable(subject),
        probes: Vec::new(),
        latencies: Vec::new(),
        duration_ms: 0,
    };
    let began = Instant::now();
    if report.unavailable.is_none() {
        for probe in probes::all().into_iter().filter(|probe| options.wants(probe.id)) {
            progress(Progress::Begins(&probe));
            let row = ask(subject, options, probe);
            progress(Progress::Done(&row));
            report.probes.push(row);
        }
        if options.wants(LATENCY) {
            for measure in MEASURES {
                let figures = figures(subject, options, *measure);
                progress(Progress::Measured(&figures));
                report.latencies.push(figures);
            }
        }
    }
    report.duration_ms = millis(began.elapsed());
    report
}

/// Why the subject cannot be probed at all. One that answers anything can be.
fn unavailable(subject: &Arc<dyn Subject>) -> Option<String> {
    let request = Request::of(Work::Argv(vec!["true".into()]));
    let asked = Arc::clone(subject);
    let within = subject.patience();
    match within_time(within, move || asked.run(&request, within)) {
        Some(Err(Trouble::Unavailable { why })) => Some(why),
        Some(_) => None,
        None => Some(format!("no answer to `true` in {} s", within.as_secs())),
    }
}

/// One probe, within its time, with everything tidied after it.
fn ask(subject: &Arc<dyn Subject>, options: &Options, probe: Probe) -> Row {
    let lab = Arc::new(Lab::new(Arc::clone(subject), options.quick, options.bulk()));
    let began = Instant::now();
    let bound = Duration::from_secs(probe.bound_s);
    let asking = Arc::clone(&lab);
    let finding = match within_time(bound, move || (probe.run)(&asking)) {
        Some(Ok(finding)) => finding,
        Some(Err(trouble)) => Finding::of_trouble(&trouble),
        None if began.elapsed() < bound => Finding::of(
            &"the probe broke",
            inconclusive("the probe itself broke; its message is on standard error"),
        ),
        None => {
            let trouble = Trouble::no_answer(bound);
            Finding::of(&trouble, fail(trouble.to_string()))
        }
    };
    let duration_ms = millis(began.elapsed());
    lab.close();
    tidy(lab);
    Row {
        id: probe.id,
        title: probe.title,
        cases: probe.cases,
        verdict: finding.verdict,
        line: finding.line,
        evidence: finding.evidence,
        duration_ms,
    }
}

fn tidy(lab: Arc<Lab>) {
    within_time(TIDYING + Duration::from_secs(10), move || lab.tidy());
}

fn figures(subject: &Arc<dyn Subject>, options: &Options, measure: Measure) -> Figures {
    let lab = Arc::new(Lab::new(Arc::clone(subject), options.quick, 0));
    let wanted = if measure.once { 1 } else { options.samples() };
    let mut samples = Vec::with_capacity(wanted);
    let mut trouble = None;
    // The first one finds everything cold, and is not counted.
    for number in 0..=wanted {
        if measure.once && number == 0 {
            continue;
        }
        let asking = Arc::clone(&lab);
        match within_time(Duration::from_secs(60), move || (measure.sample)(&asking)) {
            Some(Ok(_)) if number == 0 => {}
            Some(Ok(sample)) => samples.push(sample),
            Some(Err(error)) => trouble = Some(error.to_string()),
            None => trouble = Some("no answer in 60 s".to_owned()),
        }
        if trouble.is_some() {
            break;
        }
    }
    tidy(lab);
    Figures {
        id: measure.id,
        title: measure.title,
        unit: measure.unit,
        distribution: Distribution::of(samples),
        trouble,
    }
}

/// What is done, if it is done in time. What is not goes on in its thread, which nobody waits for.
fn within_time<T: Send + 'static>(bound: Duration, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (send, receive) = channel();
    thread::spawn(move || send.send(work()));
    receive.recv_timeout(bound).ok()
}

/// Whether nothing but what may be was seen.
#[must_use]
pub fn is_accepted(verdict: Verdict, allow_unsupported: bool) -> bool {
    verdict == Verdict::Pass || allow_unsupported && verdict == Verdict::Unsupported
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::{
        Answer, Description, End, Follow, Handle, Said, Settled, Sink, Started, State, Trouble,
    };

    /// A subject of plain lies: everything succeeds at once and nothing is done.
    struct Liar {
        hangs: bool,
    }

    impl Subject for Liar {
        fn describe(&self) -> Description {
            Description {
                name: "liar".to_owned(),
                version: "1".to_owned(),
                reached: "in memory".to_owned(),
                boundary: None,
            }
        }
        fn on_this_machine(&self) -> bool {
            true
        }
        fn scratch(&self) -> String {
            "/nonexistent".to_owned()
        }
        fn patience(&self) -> Duration {
            Duration::from_millis(300)
        }
        fn start(&self, _: &Request) -> Answer<Started> {
            if self.hangs {
                thread::sleep(Duration::from_secs(600));
            }
            Ok(Started { handle: Handle("1".to_owned()), existed: false })
        }
        fn inspect(&self, _: &Handle) -> Answer<Said> {
            Ok(Said::ended(End::Exited { code: 0 }))
        }
        fn read(&self, _: &Handle, from: u64, _: Follow, _: Sink<'_>) -> Answer<u64> {
            Ok(from)
        }
        fn stop(&self, handle: &Handle, _: Duration) -> Answer<Said> {
            self.inspect(handle)
        }
        fn write_stdin(&self, _: &Handle, _: &[u8], _: bool) -> Answer<()> {
            Ok(())
        }
        fn next_attempt(&self, _: &Handle) -> Answer<Handle> {
            Err(Trouble::unsupported("no attempts"))
        }
        fn kill_owner(&self, _: &Handle) -> Answer<String> {
            Err(Trouble::unsupported("no owner"))
        }
        fn restart_owner(&self) -> Answer<String> {
            Err(Trouble::unsupported("no owner"))
        }
        fn settle(&self, _: &Handle, _: Duration) -> Answer<Settled> {
            Ok(Settled { said: Said::only(State::Ended), refused: None })
        }
        fn owners(&self, _: &Handle) -> Answer<Vec<u32>> {
            Ok(Vec::new())
        }
    }

    fn ask_liar(hangs: bool, only: &[&str]) -> Report {
        let subject: Arc<dyn Subject> = Arc::new(Liar { hangs });
        let options = Options {
            quick: true,
            only: only.iter().map(|name| (*name).to_owned()).collect(),
            ..Options::default()
        };
        qualify(&subject, &options, Path::new("/"), &mut |_| {})
    }

    #[test]
    fn success_that_did_nothing_passes_no_probe_of_output_or_effect() {
        let report = ask_liar(
            false,
            &[
                "long-line",
                "binary-output",
                "fast-output",
                "reader-returns",
                "same-key",
                "stdin-exact",
                "limit-told",
            ],
        );
        assert_eq!(report.probes.len(), 7);
        for row in &report.probes {
            assert_eq!(row.verdict, Verdict::Fail, "{row:?}");
        }
        assert_eq!(report.exit_code(true), 1);
    }

    #[test]
    fn what_is_missing_is_shown_as_missing() {
        let report = ask_liar(false, &["unknown-then-settled"]);
        // It never begins, so nothing can be said of its end.
        assert_eq!(report.probes[0].verdict, Verdict::Inconclusive, "{:?}", report.probes[0]);
    }

    #[test]
    fn a_subject_that_hangs_is_unavailable_and_hangs_nobody() {
        let began = Instant::now();
        let report = ask_liar(true, &[]);
        assert!(report.unavailable.is_some());
        assert_eq!(report.exit_code(false), 12);
        assert!(began.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_probe_that_takes_too_long_fails_with_the_time() {
        let subject: Arc<dyn Subject> = Arc::new(Liar { hangs: true });
        let probe = Probe { bound_s: 1, ..probes::all()[0] };
        let row = ask(&subject, &Options::default(), probe);
        assert_eq!((row.verdict, row.line.as_str()), (Verdict::Fail, "no answer in 1 s"));
    }

    #[test]
    fn names_are_checked() {
        let options = Options {
            only: vec!["escape".to_owned(), "latency".to_owned()],
            skip: vec!["escap".to_owned()],
            ..Options::default()
        };
        assert_eq!(options.unknown_names(), ["escap"]);
        assert!(options.wants("escape") && !options.wants("long-line"));
    }
}
