//! The tree of a script. Every span counts bytes of the text the analysis was given, also for what was
//! found inside a string that is itself a script.

use std::rc::Rc;

/// A range of bytes in the analysed text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

impl Span {
    pub(crate) fn new(start: usize, end: usize) -> Self {
        Self { start, end: end.max(start) }
    }
}

/// Bytes that stand in the script, each with the place it came from, after quotes are taken away.
#[derive(Clone, Debug, Default)]
pub(crate) struct Derived {
    pub(crate) bytes: Vec<u8>,
    /// One entry per byte.
    pub(crate) places: Vec<usize>,
}

impl Derived {
    pub(crate) fn push(&mut self, byte: u8, place: usize) {
        self.bytes.push(byte);
        self.places.push(place);
    }

    pub(crate) fn append(&mut self, other: &Self) {
        self.bytes.extend_from_slice(&other.bytes);
        self.places.extend_from_slice(&other.places);
    }

    /// Text that has no place of its own, put at that of the last byte (or at 0).
    pub(crate) fn push_glue(&mut self, byte: u8) {
        let place = self.places.last().map_or(0, |place| place + 1);
        self.push(byte, place);
    }
}

#[derive(Debug)]
pub(crate) struct List {
    pub(crate) items: Vec<Item>,
}

/// An and-or list with what ended it.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) and_or: AndOr,
    /// The place of the `&`, if it was ended by one.
    pub(crate) background: Option<usize>,
}

#[derive(Debug)]
pub(crate) struct AndOr {
    pub(crate) first: Pipeline,
    /// What follows `&&` or `||`; either way it may be skipped.
    pub(crate) rest: Vec<Pipeline>,
}

impl AndOr {
    pub(crate) fn pipelines(&self) -> impl Iterator<Item = &Pipeline> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    pub(crate) fn span(&self) -> Span {
        let end = self.rest.last().unwrap_or(&self.first).span.end;
        Span::new(self.first.span.start, end)
    }
}

#[derive(Debug)]
pub(crate) struct Pipeline {
    pub(crate) negated: bool,
    pub(crate) stages: Vec<Command>,
    pub(crate) span: Span,
}

#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) kind: Kind,
    pub(crate) redirects: Vec<Redirect>,
    pub(crate) span: Span,
}

#[derive(Debug)]
pub(crate) enum Kind {
    Simple {
        assignments: Vec<Word>,
        words: Vec<Word>,
    },
    Brace(List),
    Subshell(List),
    If {
        arms: Vec<(List, List)>,
        otherwise: Option<List>,
    },
    Loop {
        condition: List,
        body: List,
    },
    For {
        variable: Vec<u8>,
        words: Vec<Word>,
        body: List,
    },
    ArithmeticFor {
        parts: Vec<Part>,
        body: List,
    },
    Case {
        subject: Word,
        arms: Vec<Arm>,
    },
    /// The body is shared with the walk, which enters it at each call.
    Function {
        name: Vec<u8>,
        body: Rc<Command>,
    },
    Coprocess {
        name: Option<Vec<u8>>,
        body: Box<Command>,
    },
    /// `(( … ))`: nothing runs but the substitutions in it.
    Arithmetic(Vec<Part>),
    /// `[[ … ]]`: likewise.
    Test(Vec<Word>),
}

#[derive(Debug)]
pub(crate) struct Arm {
    pub(crate) patterns: Vec<Word>,
    pub(crate) body: List,
    /// The pattern is a bare `*`, so one arm is always taken.
    pub(crate) catches_all: bool,
    /// Ended by `;&` or `;;&`: the next arm may run as well.
    pub(crate) falls_through: bool,
}

#[derive(Debug)]
pub(crate) struct Redirect {
    /// Reads into the command's standard input.
    pub(crate) feeds_stdin: bool,
    pub(crate) target: Target,
}

#[derive(Debug)]
pub(crate) enum Target {
    Word(Word),
    HereString(Word),
    /// An index into [`Script::documents`].
    HereDocument(usize),
}

#[derive(Debug, Default)]
pub(crate) struct Word {
    pub(crate) parts: Vec<Part>,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

impl Word {
    pub(crate) fn span(&self) -> Span {
        Span::new(self.start, self.end)
    }

    /// The word as it will be after quotes are taken away, if the text alone fixes it.
    pub(crate) fn literal(&self) -> Option<Derived> {
        let mut whole = Derived::default();
        for part in &self.parts {
            match part {
                Part::Literal { text, .. } => whole.append(text),
                _ => return None,
            }
        }
        Some(whole)
    }

    /// The word's text with expansions left as they stand: what a shell given this word would read, as far
    /// as the text tells.
    pub(crate) fn as_script(&self) -> Derived {
        script_of(&self.parts)
    }

    /// Whether the word begins like an assignment, and to which name.
    pub(crate) fn assigned_name(&self) -> Option<&[u8]> {
        let Some(Part::Literal { text, quoted: false }) = self.parts.first() else { return None };
        let bytes = &text.bytes;
        let length = bytes.iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b'_').count();
        if length == 0 || bytes[0].is_ascii_digit() {
            return None;
        }
        match bytes.get(length) {
            Some(b'=') => Some(&bytes[..length]),
            Some(b'+') if bytes.get(length + 1) == Some(&b'=') => Some(&bytes[..length]),
            // `name[subscript]=`: the subscript is a part of its own.
            None if length == bytes.len() => {
                let [_, Part::Glob { raw, .. }, Part::Literal { text, quoted: false }, ..] = &self.parts[..]
                else {
                    return None;
                };
                let signs = text.bytes.starts_with(b"=") || text.bytes.starts_with(b"+=");
                (signs && raw.bytes.starts_with(b"[")).then(|| &bytes[..length])
            }
            _ => None,
        }
    }
}

/// See [`Word::as_script`].
pub(crate) fn script_of(parts: &[Part]) -> Derived {
    let mut whole = Derived::default();
    for part in parts {
        match part {
            Part::Literal { text, .. } => whole.append(text),
            Part::Parameter { raw, .. }
            | Part::Command { raw, .. }
            | Part::Arithmetic { raw, .. }
            | Part::Process { raw, .. }
            | Part::Glob { raw, .. } => whole.append(raw),
            Part::Array(_) => {}
        }
    }
    whole
}

#[derive(Debug)]
pub(crate) enum Part {
    Literal { text: Derived, quoted: bool },
    Parameter { name: Vec<u8>, inner: Vec<Part>, raw: Derived },
    Command { list: List, raw: Derived },
    Arithmetic { inner: Vec<Part>, raw: Derived },
    Process { list: List, raw: Derived },
    Glob { inner: Vec<Part>, raw: Derived },
    Array(Vec<Word>),
}

/// The body of a here-document.
#[derive(Debug, Default)]
pub(crate) struct Document {
    pub(crate) parts: Vec<Part>,
}

/// A whole script.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) list: List,
    pub(crate) documents: Vec<Document>,
}
