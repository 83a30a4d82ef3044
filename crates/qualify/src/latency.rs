//! How long things take: distributions, not averages, because it is the slow ones that are noticed.

use crate::lab::{Lab, until};
use crate::process::proportional_kib;
use crate::subject::{Answer, Follow, Request, State, Trouble, Work};
use serde::Serialize;
use std::ffi::OsString;
use std::ops::ControlFlow;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// One thing that is measured, again and again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measure {
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    pub(crate) unit: &'static str,
    /// A single sample says it all.
    pub(crate) once: bool,
    pub(crate) sample: fn(&Lab) -> Answer<f64>,
}

const fn in_ms(id: &'static str, title: &'static str, sample: fn(&Lab) -> Answer<f64>) -> Measure {
    Measure { id, title, unit: "ms", once: false, sample }
}

pub(crate) const MEASURES: &[Measure] = &[
    in_ms("admission", "a start is asked for → it is answered", admission),
    in_ms("first-byte", "a start is asked for → the first byte is read", first_byte),
    in_ms("end-told", "the command's last act → its end is told to a waiter", end_told),
    in_ms("stop-proved", "a stop is asked for → it is told to be over", stop_proved),
    in_ms("round-trip", "`true` is asked for → its end is told", round_trip),
    Measure {
        id: "owners",
        title: "memory of what owns one sleeping command",
        unit: "KiB",
        once: true,
        sample: owners_idle,
    },
];

/// What came of one measure.
#[derive(Debug, Clone, Serialize)]
pub struct Figures {
    /// Its name.
    pub id: &'static str,
    /// What is measured.
    pub title: &'static str,
    /// In which unit.
    pub unit: &'static str,
    /// The samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distribution: Option<Distribution>,
    /// Why there are no more samples, where there should be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// Samples in order of size. Every figure is a sample that was seen, by its nearest rank.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Distribution {
    /// How many.
    pub samples: usize,
    /// The smallest.
    pub min: f64,
    /// Half are no larger.
    pub p50: f64,
    /// Nine of ten are no larger.
    pub p90: f64,
    /// Of fewer than a hundred samples it is the largest.
    pub p99: f64,
    /// The largest.
    pub max: f64,
}

impl Distribution {
    pub(crate) fn of(mut samples: Vec<f64>) -> Option<Distribution> {
        samples.sort_unstable_by(f64::total_cmp);
        let (first, last) = (*samples.first()?, *samples.last()?);
        let rank = |percent: usize| samples[(samples.len() * percent).div_ceil(100).max(1) - 1];
        Some(Distribution {
            samples: samples.len(),
            min: first,
            p50: rank(50),
            p90: rank(90),
            p99: rank(99),
            max: last,
        })
    }
}

/// Milliseconds to a hundredth.
fn ms(length: Duration) -> f64 {
    (length.as_secs_f64() * 100_000.0).round() / 100.0
}

fn admission(lab: &Lab) -> Answer<f64> {
    let began = Instant::now();
    let handle = lab.subject.start(&Request::of(Work::Argv(vec![OsString::from("true")])))?.handle;
    let took = began.elapsed();
    lab.subject.wait(&handle, Duration::from_secs(20))?;
    Ok(ms(took))
}

fn first_byte(lab: &Lab) -> Answer<f64> {
    let began = Instant::now();
    let handle = lab.start(&lab.bash("echo x; sleep 30"))?.handle;
    let mut seen = None;
    lab.subject.read(&handle, 0, Follow::Until(Duration::from_secs(10)), &mut |_| {
        seen = Some(began.elapsed());
        ControlFlow::Break(())
    })?;
    lab.subject.stop(&handle, Duration::from_secs(15))?;
    seen.map(ms).ok_or_else(|| Trouble::no_answer(Duration::from_secs(10)))
}

fn end_told(lab: &Lab) -> Answer<f64> {
    if !lab.subject.on_this_machine() {
        return Err(Trouble::unobserved("its clock is another machine's"));
    }
    // The pause lets the waiter take its place before there is anything to be told.
    let handle = lab.start(&lab.bash("sleep 0.1; echo $EPOCHREALTIME"))?.handle;
    let said = lab.subject.wait(&handle, Duration::from_secs(20))?;
    let told = SystemTime::now().duration_since(UNIX_EPOCH).map_err(Trouble::unobserved)?;
    if said.state != State::Ended {
        return Err(Trouble::no_answer(Duration::from_secs(20)));
    }
    let read = lab.read_all(&handle)?;
    let last =
        moment(&read.first).ok_or_else(|| Trouble::unobserved("the command's clock could not be read"))?;
    Ok(ms(told.saturating_sub(last)))
}

/// `SECONDS.MICROS`; some locales write a comma.
fn moment(text: &[u8]) -> Option<Duration> {
    let text = std::str::from_utf8(text).ok()?.trim();
    let (seconds, micros) = text.split_once(['.', ','])?;
    Some(Duration::new(seconds.parse().ok()?, micros.parse::<u32>().ok()?.checked_mul(1000)?))
}

fn stop_proved(lab: &Lab) -> Answer<f64> {
    let handle = lab.start(&lab.bash("echo ready; exec sleep 30"))?.handle;
    if !lab.until_output_has(&handle, "ready", Duration::from_secs(10))? {
        return Err(Trouble::unobserved("the command did not get ready in 10 s"));
    }
    let began = Instant::now();
    let said = lab.subject.stop(&handle, Duration::from_secs(20))?;
    match said.state {
        State::Ended => Ok(ms(began.elapsed())),
        _ => Err(Trouble::no_answer(began.elapsed())),
    }
}

fn round_trip(lab: &Lab) -> Answer<f64> {
    let began = Instant::now();
    let request = Request::of(Work::Argv(vec![OsString::from("true")]));
    let said = lab.subject.run(&request, Duration::from_secs(20))?;
    match said.state {
        State::Ended => Ok(ms(began.elapsed())),
        _ => Err(Trouble::no_answer(began.elapsed())),
    }
}

fn owners_idle(lab: &Lab) -> Answer<f64> {
    let handle = lab.start(&lab.bash("exec sleep 30"))?.handle;
    let sum =
        || -> Answer<u64> { Ok(lab.subject.owners(&handle)?.into_iter().filter_map(proportional_kib).sum()) };
    let mut last = sum()?;
    // Buffers are given back a moment after the start: until two looks agree.
    until(Duration::from_secs(2), || {
        std::thread::sleep(Duration::from_millis(300));
        let before = last;
        last = sum().unwrap_or(before);
        last == before
    });
    lab.subject.stop(&handle, Duration::from_secs(15))?;
    // Kibibytes of any machine are far below what a float holds exactly.
    Ok(last as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_of_samples_that_were_seen() {
        let thirty = Distribution::of((1..=30).rev().map(f64::from).collect()).unwrap();
        let expected = Distribution { samples: 30, min: 1.0, p50: 15.0, p90: 27.0, p99: 30.0, max: 30.0 };
        assert_eq!(thirty, expected);
        assert_eq!(Distribution::of(vec![]), None);
        assert_eq!(Distribution::of(vec![1.5]).unwrap().p50, 1.5);
        assert_eq!(ms(Duration::from_micros(1234)), 1.23);
    }

    #[test]
    fn a_shells_clock_is_read() {
        assert_eq!(moment(b"12.000345\n"), Some(Duration::from_micros(12_000_345)));
        assert_eq!(moment(b"12,000345\n"), Some(Duration::from_micros(12_000_345)));
        assert_eq!(moment(b"x"), None);
    }
}
