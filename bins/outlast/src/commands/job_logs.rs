//! `outlast job logs`.

use crate::args::job::{LogsArgs, Which};
use crate::budget::Budget;
use crate::context::Context;
use crate::done::Done;
use crate::envelope::{Answer, CallFacts, Data};
use crate::failure::{self, Failure};
use crate::live::{Form, Selection};
use crate::masks;
use crate::outlet::Ears;
use crate::output::{self, GapData};
use crate::result::Look;
use crate::settling;
use crate::vigil::{End, Ended, LEAVE_ALONE, Streaming, Until, Vigil, take_signals};
use crate::window::{end_of_last_whole_character, text_of};
use outlast_bytelog::{Gap, GapLength, Item, Stream, Tail};
use outlast_core::id::Cursor;
use outlast_hand::clock;
use outlast_hand::home::Home;
use outlast_hand::job::Job;
use outlast_sys::signals::SignalFd;
use serde::Serialize;

/// One piece of output in an answer, in the order in which it was drained.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Chunk {
    stream: &'static str,
    cursor: u64,
    bytes: u64,
    text: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    lossy: bool,
}

/// A part of a job's output.
#[derive(Debug)]
struct Page {
    chunks: Vec<Chunk>,
    gaps: Vec<GapData>,
    /// Where to go on.
    next: u64,
    /// Whether there is more already.
    more: bool,
    /// Where the log ends, as far as was seen.
    log_end: u64,
}

/// Reads a job's output from a cursor on.
pub(crate) fn run(context: &Context, args: &LogsArgs) -> Result<Done, Failure> {
    let budget = if args.follow { context.budget(args.budget)? } else { Budget::Absent };
    let signals = take_signals()?;
    let (home, job) = context.find(&args.job)?;
    settling::if_due(&home, &job, Some(clock::mono_now().plus(settling::IN_PASSING)))?;
    if args.raw || !context.json() {
        return written(context, args, &home, &job, budget, signals);
    }
    paged(context, args, &home, &job, budget, signals)
}

fn selected(which: Which) -> Option<Stream> {
    match which {
        Which::Stdout => Some(Stream::Stdout),
        Which::Stderr => Some(Stream::Stderr),
        Which::Both => None,
    }
}

/// Output written to this call's own streams.
fn written(
    context: &Context,
    args: &LogsArgs,
    home: &Home,
    job: &Job,
    budget: Budget,
    signals: SignalFd,
) -> Result<Done, Failure> {
    let form = if args.raw {
        Form::Raw
    } else {
        Form::View { stdout_terminal: context.terminals.stdout, stderr_terminal: context.terminals.stderr }
    };
    let selection = Selection { from: args.cursor, stream: selected(args.stream), form };
    let until = if args.follow { Until::Settled } else { Until::Written };
    let vigil = vigil(context, home, job, until, budget, Streaming::AsItComes, selection);
    let ended = vigil.wait(&signals)?;
    let look = Look::at(job)?;
    let error = match &ended.write_failed {
        Some(error) => Some(
            Failure::new(failure::UNAVAILABLE, "writing the output to standard output failed")
                .because_of(error)
                .fix("go on with", go_on(context, args, job, ended.cursor)),
        ),
        None => not_all(context, args, job, &ended, ended.cursor),
    };
    let facts =
        CallFacts { budget_ms: budget.millis(), timeout_ms: look.timeout_ms(), ..CallFacts::default() };
    let receipt = look.facts.receipt.as_ref();
    let missing = receipt
        .and_then(|receipt| output::missing_in(job, receipt))
        .filter(|gap| gap.to.is_none_or(|to| to > args.cursor));
    let warnings = output::warnings(receipt, missing.as_ref(), None);
    Ok(Done {
        answer: Answer { error, warnings, facts, ..Answer::default() },
        ears: Some(Ears::new(signals, false)),
        until: budget.ends_at(context.started),
        raw: true,
        ..Done::default()
    })
}

/// Output as a page of an answer.
fn paged(
    context: &Context,
    args: &LogsArgs,
    home: &Home,
    job: &Job,
    budget: Budget,
    signals: SignalFd,
) -> Result<Done, Failure> {
    let limit = usize::try_from(args.max_output).unwrap_or(usize::MAX);
    let mut ended = None;
    if args.follow {
        let full = args.cursor.saturating_add(args.max_output.max(1));
        let selection = Selection { from: args.cursor, ..Selection::ALL };
        let vigil = vigil(context, home, job, Until::Cursor(full), budget, Streaming::Never, selection);
        ended = Some(vigil.wait(&signals)?);
    }
    // Read before the log: what comes between the two is then not taken for missing.
    let receipt = job.receipt().map_err(|error| failure::of_system("reading the receipt", &error))?;
    let mut page = page(job, args.cursor, limit, selected(args.stream))
        .map_err(|why| Failure::new(failure::UNAVAILABLE, "reading the output failed").detail(why))?;
    let missing = receipt
        .as_ref()
        .filter(|_| !page.more)
        .and_then(|receipt| output::missing_end(receipt, &page.gaps, page.log_end))
        .map(|gap| GapData { from: gap.from.max(args.cursor), ..gap })
        .filter(|gap| gap.to.is_none_or(|to| to > gap.from));
    if let Some(gap) = &missing {
        // Nothing lies in it to be read.
        page.next = page.next.max(gap.to.unwrap_or(0));
        page.gaps.push(gap.clone());
    }
    let warnings = output::warnings(receipt.as_ref(), missing.as_ref(), None);
    let look = Look::at(job)?;
    let settled = look.is_final();
    let error = ended.filter(|_| page.more || !settled).map(|ended| {
        not_all(context, args, job, &ended, page.next)
            .unwrap_or_else(|| incomplete(context, args, job, page.next, "there is more"))
    });
    let more = page.more || !settled;
    let next = page.next;
    let mut data = serde_json::json!({
        "job_id": job.id(),
        "state": look.state(),
        "cursor": args.cursor,
        "next_cursor": next,
        "more": more,
        "chunks": page.chunks,
        "gaps": page.gaps,
        "final_cursor": look.facts.receipt.as_ref().map(|receipt| receipt.output.final_cursor),
    });
    if missing.is_some()
        && let Some(object) = data.as_object_mut()
    {
        object.insert("truncated".to_owned(), true.into());
    }
    if more && let Some(object) = data.as_object_mut() {
        object.insert("continue_command".to_owned(), go_on(context, args, job, next).into());
    }
    let facts =
        CallFacts { budget_ms: budget.millis(), timeout_ms: look.timeout_ms(), ..CallFacts::default() };
    Ok(Done {
        answer: Answer { data: Some(Data::Other(data)), error, warnings, facts, ..Answer::default() },
        ears: Some(Ears::new(signals, false)),
        until: budget.ends_at(context.started),
        ..Done::default()
    })
}

fn vigil<'a>(
    context: &'a Context,
    home: &'a Home,
    job: &'a Job,
    until: Until,
    budget: Budget,
    streaming: Streaming,
    selection: Selection,
) -> Vigil<'a> {
    let policy = LEAVE_ALONE;
    Vigil {
        context,
        home,
        job,
        watch: None,
        until,
        policy,
        budget,
        streaming,
        selection,
        keys: false,
        progress: false,
        stopping: None,
    }
}

/// With `--follow`, why the reading ended before the job did; `None` where it did not.
fn not_all(context: &Context, args: &LogsArgs, job: &Job, ended: &Ended, next: u64) -> Option<Failure> {
    match ended.end {
        End::Early(crate::conduct::Early::Budget) => {
            Some(incomplete(context, args, job, next, "the call's budget is over"))
        }
        End::Early(_) | End::Leave => {
            Some(incomplete(context, args, job, next, "the reading was interrupted"))
        }
        End::Result | End::Lost | End::Reached => None,
    }
}

fn incomplete(context: &Context, args: &LogsArgs, job: &Job, next: u64, why: &str) -> Failure {
    Failure::new(failure::INCOMPLETE, format!("{why}; output was read up to cursor {next}"))
        .fix("go on with", go_on(context, args, job, next))
}

fn go_on(context: &Context, args: &LogsArgs, job: &Job, next: u64) -> String {
    let next = next.to_string();
    let mut rest = vec!["--cursor", &next];
    if args.follow {
        rest.push("--follow");
    }
    match args.stream {
        Which::Both => {}
        Which::Stdout => rest.extend(["--stream", "stdout"]),
        Which::Stderr => rest.extend(["--stream", "stderr"]),
    }
    if args.raw {
        rest.push("--raw");
    }
    context.follow_up.job("logs", job.id(), &rest)
}

/// Reads a page. It is read with a margin at either end, so that a token which straddles them is recognised.
fn page(job: &Job, from: u64, limit: usize, stream: Option<Stream>) -> Result<Page, String> {
    let mut log = job.log().map_err(|error| error.to_string())?;
    let margin = masks::MARGIN as u64;
    let mut cursor = from.saturating_sub(margin);
    let end = from.saturating_add(limit as u64);
    let mut items = Vec::new();
    let mut more = false;
    let mut log_end = 0;
    while cursor < end.saturating_add(margin) {
        let most = usize::try_from(end.saturating_add(margin) - cursor).unwrap_or(usize::MAX).min(256 << 10);
        let outcome = log.read_from(Cursor(cursor), most).map_err(|error| error.to_string())?;
        let moved = outcome.next > cursor;
        cursor = cursor.max(outcome.next);
        items.extend(outcome.items);
        log_end = outcome.end;
        more = outcome.tail == Tail::More;
        if !more || !moved {
            break;
        }
    }
    Ok(Page { log_end, ..cut(items, from, end, stream, cursor, more) })
}

/// Whether a gap lies at a cursor or behind it, and not wholly before.
fn is_ahead(gap: &Gap, from: u64) -> bool {
    match gap.length {
        GapLength::Known(_) => gap.to() > from,
        GapLength::Unknown => gap.from >= from,
    }
}

/// The part of these items between two cursors, tokens hidden.
fn cut(items: Vec<Item>, from: u64, end: u64, stream: Option<Stream>, read_to: u64, more: bool) -> Page {
    let mut whole: [Vec<u8>; 2] = [Vec::new(), Vec::new()];
    let place = |stream: Stream| usize::from(stream == Stream::Stderr);
    for item in &items {
        if let Item::Data { stream, bytes, .. } = item {
            whole[place(*stream)].extend_from_slice(bytes);
        }
    }
    whole.iter_mut().for_each(|bytes| masks::hide_tokens(bytes));
    let mut taken = [0, 0];
    let mut pieces: Vec<(Stream, u64, Vec<u8>)> = Vec::new();
    let mut gaps = Vec::new();
    let mut next = read_to.min(end).max(from);
    for item in &items {
        match item {
            Item::Gap(gap) if gap.from < end && is_ahead(gap, from) => {
                gaps.push(GapData { from: gap.from.max(from), ..GapData::from(gap) });
                // Nothing lies in it to be read: the next page begins behind it.
                next = next.max(gap.to());
            }
            Item::Gap(_) => {}
            Item::Data { stream: own, offset, bytes, .. } => {
                let at = taken[place(*own)];
                taken[place(*own)] += bytes.len();
                let first = offset.max(&from) - offset;
                let last = (offset + bytes.len() as u64).min(end).saturating_sub(*offset);
                if first >= last || stream.is_some_and(|wanted| wanted != *own) {
                    continue;
                }
                // Both lie within the item.
                let shown = &whole[place(*own)][at + first as usize..at + last as usize];
                match pieces.last_mut() {
                    Some((stream, start, so_far))
                        if stream == own && *start + so_far.len() as u64 == offset + first =>
                    {
                        so_far.extend_from_slice(shown);
                    }
                    _ => pieces.push((*own, offset + first, shown.to_vec())),
                }
            }
        }
    }
    // A character that the page would cut begins the next one instead.
    if let Some((_, start, bytes)) = pieces.last_mut()
        && *start + bytes.len() as u64 == next
        && (more || read_to > end)
    {
        let whole = end_of_last_whole_character(bytes);
        if whole > 0 {
            bytes.truncate(whole);
            next = *start + whole as u64;
        }
    }
    let chunks = pieces
        .into_iter()
        .map(|(stream, cursor, bytes)| {
            let (text, lossy) = text_of(&bytes);
            let stream = if stream == Stream::Stdout { "stdout" } else { "stderr" };
            Chunk { stream, cursor, bytes: bytes.len() as u64, text, lossy }
        })
        .collect();
    Page { chunks, gaps, next, more: more || read_to > next, log_end: read_to }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(pieces: &[(Stream, &str)]) -> (Vec<Item>, u64) {
        let mut offset = 0;
        let mut items = Vec::new();
        for (stream, text) in pieces {
            items.push(Item::Data { stream: *stream, offset, time_us: 0, bytes: text.as_bytes().to_vec() });
            offset += text.len() as u64;
        }
        (items, offset)
    }

    fn shown(page: &Page) -> Vec<(&str, u64, &str)> {
        page.chunks.iter().map(|chunk| (chunk.stream, chunk.cursor, chunk.text.as_str())).collect()
    }

    #[test]
    fn streams_keep_their_order() {
        use Stream::{Stderr, Stdout};
        let (all, end) = items(&[(Stdout, "ab"), (Stdout, "cd"), (Stderr, "e"), (Stdout, "f")]);
        let page = cut(all.clone(), 0, 100, None, end, false);
        assert_eq!(shown(&page), [("stdout", 0, "abcd"), ("stderr", 4, "e"), ("stdout", 5, "f")]);
        assert_eq!((page.next, page.more), (6, false));
        let page = cut(all.clone(), 1, 100, Some(Stderr), end, false);
        assert_eq!(shown(&page), [("stderr", 4, "e")]);
        let page = cut(all, 3, 5, None, end, false);
        assert_eq!(shown(&page), [("stdout", 3, "d"), ("stderr", 4, "e")]);
        assert_eq!((page.next, page.more), (5, true));
    }

    #[test]
    fn a_page_ends_between_characters() {
        let (all, end) = items(&[(Stream::Stdout, "aé€b")]);
        let page = cut(all.clone(), 0, 5, None, end, false);
        assert_eq!(shown(&page), [("stdout", 0, "aé")]);
        assert_eq!((page.next, page.more), (3, true));
        let page = cut(all, 3, 5, None, end, false);
        assert_eq!(page.next, 5, "a page that holds no whole character still gets on");
    }

    #[test]
    fn a_token_across_the_edge_is_hidden_on_both_sides() {
        let token = "ghp_0123456789abcdefghijABCDEFGHIJ012345";
        let (all, end) = items(&[(Stream::Stdout, &format!("x {token} y"))]);
        for edge in 10..35 {
            let first = cut(all.clone(), 0, edge, None, end, false);
            let second = cut(all.clone(), edge, 100, None, end, false);
            let both = format!("{}{}", first.chunks[0].text, second.chunks[0].text);
            assert!(!both.contains("abcdefghij"), "{edge}: {both}");
            assert_eq!(both.len() as u64, end);
        }
    }
}
