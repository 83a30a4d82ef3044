//! Progress that a command reports through the file `OUTLAST_PROGRESS` names.

use serde::{Deserialize, Serialize};

/// How far a command has come, in its own units.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Progress {
    /// Units done; never falls from one answer to the next.
    pub done: u64,
    /// Units in all, where the command knows.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub total: Option<u64>,
    /// What is counted.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub unit: Option<String>,
}

/// A unit's name is cut to this many bytes, at a character.
const UNIT_LIMIT: usize = 64;

/// The last whole line of `text` that is a progress report, with the largest `done` of all of them. Lines that are
/// no report are passed over: the file belongs to the command, which may write anything.
#[must_use]
pub fn last_report(text: &[u8]) -> Option<Progress> {
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(&text[..0], |end| &text[..end]);
    let mut last: Option<Progress> = None;
    for line in whole.split(|byte| *byte == b'\n') {
        let Ok(mut report) = serde_json::from_slice::<Progress>(line) else { continue };
        if let Some(unit) = &mut report.unit {
            let cut =
                (0..=UNIT_LIMIT.min(unit.len())).rev().find(|at| unit.is_char_boundary(*at)).unwrap_or(0);
            unit.truncate(cut);
        }
        report.done = report.done.max(last.as_ref().map_or(0, |earlier| earlier.done));
        last = Some(report);
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_whole_line_counts_and_done_never_falls() {
        let text =
            b"{\"done\":1}\nnoise\n{\"done\":7,\"total\":9,\"unit\":\"files\"}\n{\"done\":3}\n{\"done\":8";
        assert_eq!(last_report(text), Some(Progress { done: 7, total: None, unit: None }));
        assert_eq!(last_report(b"{\"done\":1}"), None);
        assert_eq!(last_report(b""), None);
        assert_eq!(last_report(b"\xff\xfe\n\n"), None);
    }
}
