//! Is every byte of output there, when it should be?

use super::{Bytes, judge_bytes, took};
use crate::lab::{Expected, Lab, Read};
use crate::probe::{Finding, Judgement, Probe, fail, inconclusive, partial, pass};
use crate::process::proportional_kib;
use crate::subject::{Answer, End, Follow, Handle, Request, Said, State, millis};
use serde::Serialize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

pub(super) const PROBES: &[Probe] = &[
    Probe {
        id: "long-line",
        title: "A line of 4 MiB is kept whole",
        does: "Prints 4 MiB without a line end, then END, and reads everything back.",
        proves: "Output is carried as bytes; no line buffer bounds it.",
        proves_not: "That much more output is kept: see `bulk-output`.",
        cases: &[52, 67],
        bound_s: 60,
        run: long_line,
    },
    Probe {
        id: "binary-output",
        title: "All 256 byte values are kept",
        does: "Prints every byte value, NUL included, sixteen times, and compares.",
        proves: "Nothing decodes, escapes or drops bytes between the command and its reader.",
        proves_not: "That two streams are told apart.",
        cases: &[],
        bound_s: 60,
        run: binary_output,
    },
    Probe {
        id: "split-characters",
        title: "Characters that are written in pieces come back whole",
        does: "Prints 150 KB of three-byte characters on one line in pieces of 1000 bytes, which cut every third \
               character, and compares.",
        proves: "Nothing decodes output piece by piece.",
        proves_not: "How a shortened view of it looks.",
        cases: &[],
        bound_s: 60,
        run: split_characters,
    },
    Probe {
        id: "reopened-stdout",
        title: "A command that reopens its own standard output destroys nothing",
        does: "Prints a line, prints another through /dev/stdout, and a third.",
        proves: "The command does not hold the file in which its output is kept: opening /dev/stdout for writing truncates \
                 a file.",
        proves_not: "That the record is out of reach for a command that looks for it.",
        cases: &[],
        bound_s: 60,
        run: reopened_stdout,
    },
    Probe {
        id: "live-output",
        title: "Output can be read while the command runs",
        does: "Prints a line, then stays silent; measures when the line can be read.",
        proves: "A reader sees output as it comes, with no block to fill and no exit to wait for.",
        proves_not: "A bound on the delay under load.",
        cases: &[100],
        bound_s: 60,
        run: live_output,
    },
    Probe {
        id: "follow-at-once",
        title: "A reader that begins to follow as output is written is given it",
        does: "Prints a line some milliseconds after its start, then stays silent; a reader that follows is there at about \
               that moment, again and again. Each must be given the line within 3 s.",
        proves: "Between a reader's first look and its being told of more, no output fell through, in these rounds.",
        proves_not: "That it cannot happen: it is a race, and more rounds would show a rarer one.",
        cases: &[61, 101],
        bound_s: 150,
        run: follow_at_once,
    },
    Probe {
        id: "fast-output",
        title: "Once the end is told, the output is there",
        does: "Runs a command that prints one line and ends, again and again, and reads at the moment its end is told.",
        proves: "The end is not told before the output is drained.",
        proves_not: "That it holds for a command that leaves processes behind: see `parent-exits`.",
        cases: &[53, 58],
        bound_s: 120,
        run: fast_output,
    },
    Probe {
        id: "reader-returns",
        title: "A reader that leaves and comes back misses nothing",
        does: "A command prints 4 MB over two seconds. A reader drops its connection in the middle, lets the command end, and \
               reads on from its cursor; both parts together are compared by hash.",
        proves: "A reader owns nothing: its loss neither stops the command nor loses a byte, and a cursor is a place.",
        proves_not: "That bytes survive a loss of power.",
        cases: &[55, 61, 70, 85],
        bound_s: 60,
        run: reader_returns,
    },
    Probe {
        id: "bulk-output",
        title: "1 GiB of output is kept, unread, and the command is never held up",
        does: "Prints 1 GiB (64 MiB with --quick) that nobody reads meanwhile, then reads it back and compares by hash.",
        proves: "Output is drained whether or not anybody reads, and all of it is kept where that is asked for.",
        proves_not: "What happens where the disk is full.",
        cases: &[68, 70, 73, 74],
        bound_s: 600,
        run: bulk_output,
    },
];

const ENOUGH: Duration = Duration::from_secs(30);

/// Runs a command to its end and compares its output.
fn compare(lab: &Lab, request: &Request, expected: &Expected) -> Answer<Finding> {
    let started = lab.start(request)?;
    let said = lab.subject.wait(&started.handle, ENOUGH)?;
    let read = lab.read_all(&started.handle)?;
    let seen = bytes(expected, &read, &said);
    Ok(Finding::of(&seen, judge_bytes(&seen)))
}

fn bytes(expected: &Expected, read: &Read, said: &Said) -> Bytes {
    Bytes {
        expected: expected.count,
        got: read.count,
        same: read.is(expected),
        gap: said.gap.clone(),
        said: said.in_words(),
    }
}

fn long_line(lab: &Lab) -> Answer<Finding> {
    let script = "head -c 4194304 /dev/zero | tr '\\0' x; echo; echo END";
    let mut expected = vec![b'x'; 4 << 20];
    expected.extend_from_slice(b"\nEND\n");
    compare(lab, &lab.bash(script), &Expected::bytes(&expected))
}

fn binary_output(lab: &Lab) -> Answer<Finding> {
    let script =
        "for j in {1..16}; do for i in {0..255}; do printf -v o '\\\\x%02x' $i; printf \"$o\"; done; done";
    let expected: Vec<u8> = (0..16).flat_map(|_| 0..=255).collect();
    compare(lab, &lab.bash(script), &Expected::bytes(&expected))
}

fn split_characters(lab: &Lab) -> Answer<Finding> {
    // The whole line goes to dd through a pipe; dd writes it on in pieces of its block size.
    let script = "for i in {1..50000}; do printf '\\xe6\\xbc\\xa2'; done | dd bs=1000 iflag=fullblock status=none; echo";
    let mut expected = "漢".repeat(50_000).into_bytes();
    expected.push(b'\n');
    compare(lab, &lab.bash(script), &Expected::bytes(&expected))
}

fn reopened_stdout(lab: &Lab) -> Answer<Finding> {
    let script = "echo one; echo two > /dev/stdout; echo three";
    compare(lab, &lab.bash(script), &Expected::bytes(b"one\ntwo\nthree\n"))
}

#[derive(Debug, Serialize)]
struct Live {
    /// When the line could be read; absent where it could not while the command ran.
    after_ms: Option<u64>,
}

fn live_output(lab: &Lab) -> Answer<Finding> {
    let began = Instant::now();
    let started = lab.start(&lab.bash("echo now; sleep 60"))?;
    let found = lab.until_output_has(&started.handle, "now\n", Duration::from_secs(10))?;
    let seen = Live { after_ms: found.then(|| millis(began.elapsed())) };
    Ok(Finding::of(&seen, judge_live(&seen)))
}

fn judge_live(seen: &Live) -> Judgement {
    match seen.after_ms {
        Some(ms) if ms <= 1000 => pass(format!("readable {} after the start was asked for", took(ms))),
        Some(ms) => partial(format!("readable only after {}", took(ms))),
        None => fail("nothing could be read in 10 s while the command ran"),
    }
}

#[derive(Debug, Serialize)]
struct Followed {
    rounds: usize,
    /// Rounds in which the reader was given nothing, though the line is there.
    missed: usize,
    /// The longest that one waited, since the start was asked for.
    longest_ms: u64,
}

fn follow_at_once(lab: &Lab) -> Answer<Finding> {
    let rounds = if lab.quick { 20 } else { 100 };
    let mut seen = Followed { rounds: 0, missed: 0, longest_ms: 0 };
    let began = Instant::now();
    while seen.rounds < rounds && began.elapsed() < Duration::from_secs(60) {
        let delay_ms = seen.rounds % 10;
        let asked = Instant::now();
        let started = lab.start(&lab.bash(&format!("sleep 0.00{delay_ms}; echo x; exec sleep 30")))?;
        let read = lab.read_from(&started.handle, 0, Follow::Until(Duration::from_secs(3)), 1)?;
        seen.rounds += 1;
        seen.missed += usize::from(read.count == 0);
        seen.longest_ms = seen.longest_ms.max(millis(asked.elapsed()));
        lab.subject.stop(&started.handle, Duration::from_secs(15))?;
    }
    Ok(Finding::of(&seen, judge_followed(&seen)))
}

fn judge_followed(seen: &Followed) -> Judgement {
    let Followed { rounds, missed, longest_ms } = seen;
    match (rounds, missed) {
        (0, _) => inconclusive("no round was done"),
        (rounds, 0) => pass(format!(
            "{rounds} of {rounds} readers were given it, the slowest after {}",
            took(*longest_ms)
        )),
        (rounds, missed) => {
            fail(format!("{missed} of {rounds} readers were given nothing in 3 s, and were not told"))
        }
    }
}

#[derive(Debug, Serialize)]
struct Fast {
    rounds: usize,
    /// Rounds in which the line was not there when the end was told.
    short: usize,
    /// Rounds whose end was told as something else than exit 0.
    misjudged: usize,
}

fn fast_output(lab: &Lab) -> Answer<Finding> {
    let rounds = if lab.quick { 10 } else { 50 };
    let mut seen = Fast { rounds, short: 0, misjudged: 0 };
    for _ in 0..rounds {
        let started = lab.start(&lab.bash("echo x"))?;
        let said = lab.subject.wait(&started.handle, ENOUGH)?;
        let read = lab.read_from(&started.handle, 0, Follow::No, 1 << 20)?;
        seen.short += usize::from(read.first != b"x\n");
        seen.misjudged += usize::from(said.end != Some(End::Exited { code: 0 }));
    }
    Ok(Finding::of(&seen, judge_fast(&seen)))
}

fn judge_fast(seen: &Fast) -> Judgement {
    let Fast { rounds, short, misjudged } = seen;
    match (short, misjudged) {
        (0, 0) => pass(format!("{rounds} of {rounds} times the line was there")),
        (0, misjudged) => partial(format!(
            "the line was always there; {misjudged} of {rounds} ends were not told as exit 0"
        )),
        (short, _) => fail(format!("{short} of {rounds} times the end was told and the line was missing")),
    }
}

#[derive(Debug, Serialize)]
struct Returned {
    /// Where the reader left.
    left_at: u64,
    bytes: Bytes,
}

fn reader_returns(lab: &Lab) -> Answer<Finding> {
    let script = "for i in {1..8}; do seq 1 80000; sleep 0.25; done";
    let one: Vec<u8> = (1..=80_000).flat_map(|number| format!("{number}\n").into_bytes()).collect();
    let expected = Expected::repeated(&one, one.len() as u64 * 8);
    let started = lab.start(&lab.bash(script))?;
    let first = lab.read_from(&started.handle, 0, Follow::Until(ENOUGH), 1_234_567)?;
    let left_at = first.count;
    let said = lab.subject.wait(&started.handle, ENOUGH)?;
    // The reader counts what it has, so its cursor is its own, whatever the connection had in flight.
    let mut whole = first;
    lab.read_on(&started.handle, &mut whole)?;
    let seen = Returned { left_at, bytes: bytes(&expected, &whole, &said) };
    Ok(Finding::of(&seen, judge_returned(&seen)))
}

fn judge_returned(seen: &Returned) -> Judgement {
    if seen.left_at == 0 || seen.left_at >= seen.bytes.expected {
        return fail(format!(
            "the reader got {} of {} bytes before it could leave",
            seen.left_at, seen.bytes.expected
        ));
    }
    let (verdict, line) = judge_bytes(&seen.bytes);
    (verdict, format!("left at byte {}, came back: {line}", seen.left_at))
}

#[derive(Debug, Serialize)]
struct Bulk {
    bytes: Bytes,
    /// From the request to the told end.
    run_ms: u64,
    run_mb_per_s: u64,
    read_ms: u64,
    read_mb_per_s: u64,
    /// The most memory that what owns the command had meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    owners_peak_kib: Option<u64>,
}

fn bulk_output(lab: &Lab) -> Answer<Finding> {
    const LINE: &str = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ+";
    let count = lab.bulk_bytes;
    let request = Request {
        keep_all_output: true,
        // dd copies large blocks: the command is not to be what is measured.
        ..lab.bash(&format!("yes {LINE} | head -c {count}"))
    };
    let began = Instant::now();
    let started = lab.start(&request)?;
    let (said, owners_peak_kib) = watched(lab, &started.handle, Duration::from_secs(280))?;
    let run = began.elapsed();
    let began = Instant::now();
    let read = lab.read_from(&started.handle, 0, Follow::Until(Duration::from_secs(280)), u64::MAX)?;
    let reading = began.elapsed();
    let expected = Expected::repeated(format!("{LINE}\n").as_bytes(), count);
    let seen = Bulk {
        bytes: bytes(&expected, &read, &said),
        run_ms: millis(run),
        run_mb_per_s: mb_per_s(count, run),
        read_ms: millis(reading),
        read_mb_per_s: mb_per_s(read.count, reading),
        owners_peak_kib,
    };
    Ok(Finding::of(&seen, judge_bulk(&seen, said.state)))
}

fn mb_per_s(count: u64, length: Duration) -> u64 {
    let micros = u64::try_from(length.as_micros()).unwrap_or(u64::MAX).max(1);
    count / micros
}

fn judge_bulk(seen: &Bulk, state: State) -> Judgement {
    if !state.is_final() {
        return fail(format!("not over after {}: the command is held up", took(seen.run_ms)));
    }
    let (verdict, line) = judge_bytes(&seen.bytes);
    let memory =
        seen.owners_peak_kib.map_or(String::new(), |kib| format!(", {:.1} MiB", kib as f64 / 1024.0));
    let (run, read) = (seen.run_mb_per_s, seen.read_mb_per_s);
    (verdict, format!("{line}; {run} MB/s, read back at {read} MB/s{memory}"))
}

/// Waits for the end while another thread looks at the memory of what owns the command.
fn watched(lab: &Lab, handle: &Handle, within: Duration) -> Answer<(Said, Option<u64>)> {
    let (over, peak) = (AtomicBool::new(false), AtomicU64::new(0));
    let said = thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let owners = lab.subject.owners(handle).unwrap_or_default();
                peak.fetch_max(owners.into_iter().filter_map(proportional_kib).sum(), Ordering::Relaxed);
                thread::sleep(Duration::from_millis(40));
            }
        });
        let said = lab.subject.wait(handle, within);
        over.store(true, Ordering::Relaxed);
        said
    })?;
    Ok((said, Some(peak.into_inner()).filter(|peak| *peak > 0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Verdict;

    #[test]
    fn seeing_output_late_or_never_is_told_apart() {
        for (after_ms, verdict) in
            [(Some(20), Verdict::Pass), (Some(2500), Verdict::Partial), (None, Verdict::Fail)]
        {
            assert_eq!(judge_live(&Live { after_ms }).0, verdict);
        }
    }

    #[test]
    fn one_reader_that_waits_in_vain_is_a_failure() {
        for (rounds, missed, verdict) in
            [(40, 0, Verdict::Pass), (40, 1, Verdict::Fail), (0, 0, Verdict::Inconclusive)]
        {
            assert_eq!(judge_followed(&Followed { rounds, missed, longest_ms: 9 }).0, verdict);
        }
    }

    #[test]
    fn one_missing_line_is_a_failure() {
        for (short, misjudged, verdict) in
            [(0, 0, Verdict::Pass), (0, 50, Verdict::Partial), (1, 0, Verdict::Fail), (1, 1, Verdict::Fail)]
        {
            assert_eq!(judge_fast(&Fast { rounds: 50, short, misjudged }).0, verdict);
        }
    }

    fn ten(got: u64, same: bool) -> Bytes {
        Bytes { expected: 10, got, same, gap: None, said: String::new() }
    }

    #[test]
    fn a_reader_that_never_left_proves_nothing() {
        for (left_at, bytes, verdict) in [
            (4, ten(10, true), Verdict::Pass),
            (0, ten(10, true), Verdict::Fail),
            (10, ten(10, true), Verdict::Fail),
            (4, ten(10, false), Verdict::Fail),
            (4, ten(9, false), Verdict::Fail),
        ] {
            assert_eq!(judge_returned(&Returned { left_at, bytes }).0, verdict);
        }
    }

    #[test]
    fn a_command_that_is_held_up_is_a_failure() {
        let seen = |bytes| Bulk {
            bytes,
            run_ms: 9,
            run_mb_per_s: 9,
            read_ms: 9,
            read_mb_per_s: 9,
            owners_peak_kib: Some(1536),
        };
        assert_eq!(judge_bulk(&seen(ten(10, true)), State::Ended).0, Verdict::Pass);
        assert_eq!(judge_bulk(&seen(ten(10, true)), State::Running).0, Verdict::Fail);
        assert_eq!(judge_bulk(&seen(ten(9, false)), State::Ended).0, Verdict::Fail);
    }
}
