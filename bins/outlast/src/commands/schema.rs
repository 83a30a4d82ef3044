//! `outlast schema`.

use crate::done::Done;
use crate::envelope::Answer;

/// The schema that every answer keeps to.
pub(crate) const SCHEMA: &str = include_str!("../../../../schemas/envelope.schema.json");

/// Prints the schema; it is a document of its own, whatever the form of other answers.
pub(crate) fn run() -> Done {
    Done {
        answer: Answer { text: SCHEMA.as_bytes().to_vec(), ..Answer::default() },
        raw: true,
        ..Done::default()
    }
}
