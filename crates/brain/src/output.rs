//! The command log, read back: what a task wrote, from any cursor.

use crate::Brain;
use outlast_core::id::{Attempt, Cursor};
use outlast_objects::{Name, ObjectError};
use outlast_store::StoreError;
use outlast_store::ids::{TaskId, TenantId};
use outlast_store::tables::segments::{Behind, Place};
use outlast_wire::records::{Head, Stream, records};
use thiserror::Error;

/// Segments that are looked at for one answer.
const SEGMENTS: u32 = 64;

/// Why output cannot be read.
#[derive(Debug, Error)]
pub enum OutputError {
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The objects.
    #[error("a segment of the output cannot be had")]
    Object(#[source] ObjectError),
    /// It is not what was written.
    #[error("the segment of the output that begins at {0} is damaged")]
    Damaged(Cursor),
}

/// A piece of output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The cursor behind them.
    pub next: Cursor,
    /// Ranges that the hand's log does not keep, with their causes.
    pub gaps: Vec<(Cursor, Option<Cursor>, String)>,
}

/// Reads what is in the command log from a cursor on: at most about `max` bytes, of one stream or of both.
///
/// # Errors
/// [`OutputError`].
pub async fn read(
    brain: &Brain,
    tenant: &TenantId,
    task: &TaskId,
    attempt: Attempt,
    from: Cursor,
    max: usize,
    stream: Option<Stream>,
) -> Result<Piece, OutputError> {
    let mut piece = Piece { bytes: Vec::new(), next: from, gaps: Vec::new() };
    loop {
        let behind =
            Behind { tenant: tenant.clone(), task: task.clone(), attempt, from: piece.next, limit: SEGMENTS };
        let segments = brain.store.read(behind).await?;
        let more = segments.len() == SEGMENTS as usize;
        for segment in segments {
            let bytes = match segment.place {
                Place::Inline(bytes) => bytes,
                Place::Object { name, .. } => {
                    let name = Name::try_from(name).map_err(|_| OutputError::Damaged(segment.begins))?;
                    brain.objects.get(&name).await.map_err(OutputError::Object)?.to_vec()
                }
            };
            if blake3::hash(&bytes).to_hex().as_str() != segment.blake3 {
                return Err(OutputError::Damaged(segment.begins));
            }
            for record in records(&bytes) {
                let (head, payload) = record.map_err(|_| OutputError::Damaged(segment.begins))?;
                if !take(&mut piece, head, payload, max, stream) {
                    return Ok(piece);
                }
            }
            piece.next = piece.next.max(segment.ends);
        }
        if !more {
            return Ok(piece);
        }
    }
}

/// Takes what of a record lies behind the cursor; `false` once enough is there.
fn take(piece: &mut Piece, head: Head, payload: &[u8], max: usize, stream: Option<Stream>) -> bool {
    match head {
        Head::Gap { from, to, .. } => {
            if to.is_none_or(|to| to > piece.next) {
                let cause = String::from_utf8_lossy(payload).into_owned();
                piece.gaps.push((from.max(piece.next), to, cause));
                piece.next = to.unwrap_or(from).max(piece.next);
            }
            true
        }
        Head::Data { stream: written, offset, .. } => {
            let skip = usize::try_from(piece.next.0.saturating_sub(offset.0)).unwrap_or(usize::MAX);
            let Some(rest) = payload.get(skip..).filter(|rest| !rest.is_empty()) else { return true };
            let room = max.saturating_sub(piece.bytes.len());
            let wanted = stream.is_none_or(|stream| stream == written);
            let rest = if wanted { &rest[..rest.len().min(room)] } else { rest };
            if rest.is_empty() {
                return false;
            }
            if wanted {
                piece.bytes.extend_from_slice(rest);
            }
            piece.next = Cursor(offset.0 + skip as u64 + rest.len() as u64);
            piece.bytes.len() < max
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_cut_where_the_reader_stands() {
        let out = |offset, length| Head::Data {
            stream: Stream::Stdout,
            offset: Cursor(offset),
            time_us: 0,
            length,
        };
        let mut piece = Piece { bytes: Vec::new(), next: Cursor(2), gaps: Vec::new() };
        assert!(take(&mut piece, out(0, 4), b"abcd", 100, None));
        assert_eq!((piece.bytes.as_slice(), piece.next), (&b"cd"[..], Cursor(4)));
        assert!(take(&mut piece, out(0, 4), b"abcd", 100, None), "it lies before");
        let gap = Head::Gap { from: Cursor(4), to: Some(Cursor(9)), length: 3 };
        assert!(take(&mut piece, gap, b"why", 100, None));
        assert_eq!(piece.gaps, [(Cursor(4), Some(Cursor(9)), "why".to_owned())]);
        assert!(!take(&mut piece, out(9, 5), b"efghi", 4, None), "it is enough");
        assert_eq!((piece.bytes.as_slice(), piece.next), (&b"cdef"[..], Cursor(11)));
        let mut errors = Piece { bytes: Vec::new(), next: Cursor(0), gaps: Vec::new() };
        assert!(take(&mut errors, out(0, 4), b"abcd", 100, Some(Stream::Stderr)));
        assert_eq!((errors.bytes.len(), errors.next), (0, Cursor(4)));
    }
}
