//! A job's output inside a bounded answer.

use crate::masks;
use crate::window::{Window, share, text_of};
use outlast_bytelog::{Error, Gap, GapLength, Item, ReadOutcome, Stream, Tail};
use outlast_core::id::Cursor;
use outlast_core::receipt::{Drain, Receipt};
use outlast_core::spec::Warning;
use outlast_hand::job::Job;
use outlast_hand::log::gap_cause;
use serde::Serialize;

/// A log up to this size is read whole for an answer.
const WHOLE: u64 = 64 << 20;

/// Of a larger one so much is looked at, at either end.
const EITHER_END: u64 = 4 << 20;

/// Bytes asked for at once.
const CHUNK: usize = 256 << 10;

/// Reads after which the end of a growing log is far enough.
const READS_TO_THE_END: usize = 64;

/// Gaps that are listed.
const GAPS_LISTED: usize = 16;

/// The `output` of an answer.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct OutputData {
    /// Standard output.
    pub(crate) stdout: StreamData,
    /// Standard error.
    pub(crate) stderr: StreamData,
    /// The end of all output; while it may still grow, `cursor` says how far it was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) final_cursor: Option<Cursor>,
    /// How far it was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cursor: Option<Cursor>,
    /// Ranges that are missing, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) gaps: Vec<GapData>,
    /// Reads what is not shown here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) read_more_command: Option<String>,
    /// Where that is.
    #[serde(skip)]
    pub(crate) read_more_at: Option<u64>,
    /// The end that was logged, and that the log does not hold any more; one of `gaps`.
    #[serde(skip)]
    pub(crate) missing: Option<GapData>,
}

/// One stream of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct StreamData {
    /// What is shown; absent in an answer without output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) text: Option<String>,
    /// How many bytes there are; absent where not all were looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes: Option<u64>,
    /// Whether something was left out.
    pub(crate) truncated: bool,
    /// Whether `text` stands for bytes that are no UTF-8.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) lossy: bool,
}

/// A range of output that is missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct GapData {
    /// Where it begins.
    pub(crate) from: u64,
    /// Where it ends; absent where nobody knows how much was lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) to: Option<u64>,
    /// Why.
    pub(crate) cause: String,
}

impl From<&Gap> for GapData {
    fn from(gap: &Gap) -> GapData {
        let to = match gap.length {
            GapLength::Known(_) => Some(gap.to()),
            GapLength::Unknown => None,
        };
        GapData { from: gap.from, to, cause: gap_cause(gap.cause) }
    }
}

/// One stream while it is gathered.
struct Gathered {
    window: Window,
    /// Where in the log the head's bytes lie: the stream's own offset and the cursor, at each item's start.
    places: Vec<(u64, u64)>,
}

impl Gathered {
    fn new(limit: usize) -> Gathered {
        Gathered { window: Window::new(limit.saturating_add(2 * masks::MARGIN)), places: Vec::new() }
    }

    fn push(&mut self, cursor: u64, bytes: &[u8], limit: usize) {
        if self.window.total() <= limit as u64 {
            self.places.push((self.window.total(), cursor));
        }
        self.window.push(bytes);
    }

    /// The cursor of the byte at this offset of the stream.
    fn cursor_of(&self, offset: u64) -> Option<u64> {
        let at = self.places.partition_point(|(start, _)| *start <= offset).checked_sub(1)?;
        let (start, cursor) = self.places[at];
        Some(cursor + (offset - start))
    }
}

/// What a log holds, gathered for an answer of at most `limit` bytes.
pub(crate) fn gather(
    receipt: Option<&Receipt>,
    committed: u64,
    limit: usize,
    mut read: impl FnMut(u64, usize) -> Result<ReadOutcome, Error>,
) -> Result<OutputData, Error> {
    let final_cursor = receipt.map(|receipt| receipt.output.final_cursor);
    let known_end = final_cursor.map_or(committed, |cursor| cursor.0);
    let mut streams = [Gathered::new(limit), Gathered::new(limit)];
    let mut gaps = Vec::new();
    let mut cursor = 0;
    let mut skipped = false;
    let mut log_end;
    loop {
        if !skipped && known_end > WHOLE && cursor >= EITHER_END {
            skipped = true;
            cursor = known_end - EITHER_END;
            streams.iter_mut().for_each(|stream| stream.window.skip());
        }
        let outcome = read(cursor, CHUNK)?;
        for item in &outcome.items {
            match item {
                Item::Data { stream, offset, bytes, .. } => {
                    streams[place(*stream)].push(*offset, bytes, limit);
                }
                Item::Gap(gap) if gaps.len() < GAPS_LISTED => gaps.push(GapData::from(gap)),
                Item::Gap(_) => {}
            }
        }
        let stuck = outcome.next == cursor && outcome.items.is_empty();
        cursor = outcome.next.max(cursor);
        log_end = outcome.end.min(cursor);
        if outcome.tail != Tail::More || stuck {
            break;
        }
    }
    let missing = receipt.and_then(|receipt| missing_end(receipt, &gaps, log_end));
    gaps.extend(missing.clone());
    let counted =
        |window: &Window, stated: Option<u64>| stated.or_else(|| (!skipped).then(|| window.total()));
    let [out, err] = streams;
    let stdout_bytes = counted(&out.window, receipt.and_then(|receipt| receipt.output.stdout_bytes));
    let stderr_bytes = counted(&err.window, receipt.and_then(|receipt| receipt.output.stderr_bytes));
    let (for_stdout, for_stderr) = share(limit, out.window.total(), err.window.total());
    // Where a count is not stated, either stream may have had what is missing.
    let is_short = |window: &Window, stated: Option<u64>| {
        missing.is_some() && stated.is_none_or(|bytes| bytes > window.total())
    };
    let stated = receipt.map(|receipt| &receipt.output);
    let short_stdout = is_short(&out.window, stated.and_then(|output| output.stdout_bytes));
    let short_stderr = is_short(&err.window, stated.and_then(|output| output.stderr_bytes));
    let (mut stdout, omitted_stdout) = show(out, stdout_bytes, for_stdout);
    let (mut stderr, omitted_stderr) = show(err, stderr_bytes, for_stderr);
    stdout.truncated |= short_stdout;
    stderr.truncated |= short_stderr;
    let omitted = omitted_stdout.into_iter().chain(omitted_stderr).min();
    let read_more_at = omitted.or_else(|| final_cursor.is_none().then_some(cursor));
    Ok(OutputData {
        stdout,
        stderr,
        final_cursor,
        cursor: final_cursor.is_none().then_some(Cursor(cursor)),
        gaps,
        read_more_command: None,
        read_more_at,
        missing,
    })
}

/// What a log that ends at `log_end` lacks of what its receipt says was logged, where no gap states it.
pub(crate) fn missing_end(receipt: &Receipt, gaps: &[GapData], log_end: u64) -> Option<GapData> {
    let end = receipt.output.final_cursor.0;
    let covers = |from: u64, to: Option<u64>| from <= log_end && to.is_none_or(|to| to >= end);
    let stated = gaps.iter().any(|gap| covers(gap.from, gap.to))
        || receipt.output.gaps.iter().any(|gap| covers(gap.from.0, gap.to.map(|to| to.0)));
    (log_end < end && !stated).then(|| GapData { from: log_end, to: Some(end), cause: "lost".to_owned() })
}

/// The same of a job's log, for an answer that does not read it.
pub(crate) fn missing_in(job: &Job, receipt: &Receipt) -> Option<GapData> {
    let end = receipt.output.final_cursor.0;
    let mut log_end = 0;
    let mut gaps = Vec::new();
    if let (Some(mut cursor), Ok(mut log)) = (end.checked_sub(1), job.log()) {
        while let Ok(outcome) = log.read_from(Cursor(cursor), CHUNK) {
            log_end = outcome.end;
            gaps.extend(outcome.items.iter().filter_map(|item| match item {
                Item::Gap(gap) => Some(GapData::from(gap)),
                Item::Data { .. } => None,
            }));
            if log_end >= end || outcome.tail != Tail::More || outcome.next <= cursor {
                break;
            }
            cursor = outcome.next;
        }
    }
    missing_end(receipt, &gaps, log_end)
}

/// What the caller should know of output that cannot be had: `missing`, a log that cannot be read, and one that could
/// not be written.
pub(crate) fn warnings(
    receipt: Option<&Receipt>,
    missing: Option<&GapData>,
    unreadable: Option<&str>,
) -> Vec<Warning> {
    let warning =
        |message: String, context| Warning { code: "OUTPUT_UNAVAILABLE".to_owned(), message, context };
    let mut warnings = Vec::new();
    if let Some(gap) = missing {
        let to = gap.to.map_or_else(|| "the end".to_owned(), |to| to.to_string());
        warnings.push(warning(
            format!(
                "the output from cursor {} to {to} was logged and is lost: the log ends before it",
                gap.from
            ),
            Some(serde_json::json!(gap)),
        ));
    }
    if let Some(why) = unreadable.filter(|_| receipt.is_some()) {
        warnings.push(warning(format!("the output cannot be read: {why}"), None));
    }
    if let Some(Drain::StorageFailed { why }) = receipt.map(|receipt| &receipt.output.drain) {
        warnings.push(warning(format!("the output could not be kept to its end: {why}"), None));
    }
    warnings
}

fn place(stream: Stream) -> usize {
    match stream {
        Stream::Stdout => 0,
        Stream::Stderr => 1,
    }
}

/// What is shown of a stream, and the cursor of the first byte that is not.
fn show(gathered: Gathered, bytes: Option<u64>, limit: usize) -> (StreamData, Option<u64>) {
    let total = gathered.window.total();
    let head_limit = (limit - limit / 2) as u64;
    let omitted_from = gathered.cursor_of(head_limit.min(total));
    let shown = gathered.window.shown(limit, masks::hide_tokens);
    let (mut text, mut lossy) = text_of(&shown.head);
    if shown.truncated {
        let kept = (shown.head.len() + shown.tail.len()) as u64;
        let marker = match bytes.and_then(|bytes| bytes.checked_sub(kept)) {
            Some(omitted) => format!("\n[… {omitted} bytes left out …]\n"),
            None => "\n[… more left out …]\n".to_owned(),
        };
        let (tail, tail_lossy) = text_of(&shown.tail);
        text = [text, marker, tail].concat();
        lossy |= tail_lossy;
    }
    let data = StreamData { text: Some(text), bytes, truncated: shown.truncated, lossy };
    (data, shown.truncated.then(|| omitted_from.unwrap_or(0)))
}

/// The output of a job for an answer of at most `limit` bytes. What cannot be read is said, not left out.
pub(crate) fn of_job(job: &Job, receipt: Option<&Receipt>, limit: usize) -> Result<OutputData, String> {
    let mut log = job.log().map_err(|error| error.to_string())?;
    let committed = job.committed().map_or(0, |cursor| cursor.0);
    gather(receipt, committed, limit, |cursor, most| log.read_from(Cursor(cursor), most))
        .map_err(|error| error.to_string())
}

/// How far a job's output goes by now, what is not yet committed included: what it wrote a moment ago counts.
pub(crate) fn end_of(job: &Job) -> Result<Cursor, String> {
    let mut end = job.committed().map_err(|error| error.to_string())?;
    // Where the log cannot be read, what is committed is known all the same.
    let Ok(mut log) = job.log() else { return Ok(end) };
    // Bounded, for a command may write as fast as this reads.
    for _ in 0..READS_TO_THE_END {
        let Ok(outcome) = log.read_from(end, CHUNK) else { break };
        let moved = outcome.next > end.0;
        end = Cursor(outcome.next.max(end.0));
        if outcome.tail != Tail::More || !moved {
            break;
        }
    }
    Ok(end)
}

/// The last `limit` bytes of text that a job wrote, both streams together.
pub(crate) fn tail_of(output: &OutputData, limit: usize) -> Option<String> {
    let all = [&output.stdout, &output.stderr].map(|stream| stream.text.as_deref().unwrap_or(""));
    let chosen = if all[1].is_empty() { all[0] } else { all[1] };
    let from = chosen.len().saturating_sub(limit);
    let from = (from..=chosen.len()).find(|at| chosen.is_char_boundary(*at)).unwrap_or(chosen.len());
    Some(chosen[from..].to_owned()).filter(|tail| !tail.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log of these pieces, each an item.
    fn log(pieces: &[(Stream, &[u8])]) -> impl FnMut(u64, usize) -> Result<ReadOutcome, Error> {
        let mut items = Vec::new();
        let mut end = 0;
        for (stream, bytes) in pieces {
            items.push(Item::Data { stream: *stream, offset: end, time_us: 0, bytes: bytes.to_vec() });
            end += bytes.len() as u64;
        }
        move |cursor, _| {
            let from = |item: &&Item| matches!(item, Item::Data { offset, .. } if *offset >= cursor);
            let items = items.iter().filter(from).cloned().collect();
            Ok(ReadOutcome { items, next: end, end, tail: Tail::Open { torn: 0 } })
        }
    }

    #[test]
    fn both_streams_are_shown_whole_when_they_fit() {
        let output = gather(
            None,
            0,
            100,
            log(&[(Stream::Stdout, b"a"), (Stream::Stderr, b"b"), (Stream::Stdout, b"c")]),
        );
        let output = output.unwrap();
        assert_eq!(output.stdout.text.as_deref(), Some("ac"));
        assert_eq!(output.stderr.text.as_deref(), Some("b"));
        assert_eq!((output.stdout.bytes, output.stderr.bytes), (Some(2), Some(1)));
        assert!(!output.stdout.truncated && !output.stderr.truncated);
        assert_eq!(output.read_more_at, Some(3), "it still runs: what follows begins here");
    }

    #[test]
    fn what_is_left_out_is_counted_and_found() {
        let long = vec![b'x'; 1000];
        let output = gather(None, 0, 10, log(&[(Stream::Stderr, b"e"), (Stream::Stdout, &long)])).unwrap();
        let text = output.stdout.text.unwrap();
        assert!(text.starts_with("xxxxx\n[… 991 bytes left out …]\n"), "{text}");
        assert!(output.stdout.truncated && !output.stderr.truncated);
        assert_eq!(output.read_more_at, Some(1 + 5));
    }

    #[test]
    fn bytes_that_are_no_text_are_told() {
        let output = gather(None, 0, 100, log(&[(Stream::Stdout, b"a\xff")])).unwrap();
        assert_eq!(output.stdout.text.as_deref(), Some("a\u{fffd}"));
        assert!(output.stdout.lossy && !output.stderr.lossy);
    }

    #[test]
    fn a_tail_is_cut_between_characters() {
        let output = gather(None, 0, 100, log(&[(Stream::Stdout, "aé".as_bytes())])).unwrap();
        assert_eq!(tail_of(&output, 2).as_deref(), Some("é"));
        assert_eq!(tail_of(&output, 1), None);
    }
}
