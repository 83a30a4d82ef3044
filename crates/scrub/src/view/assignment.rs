//! Values given to names that speak of secrets: `API_KEY=…`, `"client_secret": "…"`, `dbPassword: …`.

use super::{Open, is_word};

/// How much of a name is looked at: its end.
const NAME_LEN: usize = 64;

/// The most blanks, quotes and backslashes between name, sign and value.
const MAX_BETWEEN: u8 = 6;

/// How many characters of a value may be read without knowing.
const MAX_UNDECIDED: u64 = 64;

/// What a name says of its value.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Kind {
    /// How long a value must be.
    min: u64,
    /// Whether a colon gives it too. Colons follow many a word that is no name.
    colon: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Machine {
    state: State,
    /// The word being read, or read last. Beside the state, for every word of the text goes through it.
    name: Name,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    #[default]
    Idle,
    Name,
    /// After a name that matters, before `=` or `:`.
    AfterName {
        kind: Kind,
        between: u8,
    },
    /// After the sign, before the value.
    AfterSign {
        sign: u8,
        kind: Kind,
        between: u8,
    },
    Value(Value),
    /// In a value that is masked to its end.
    Masking,
}

#[derive(Clone, Debug)]
struct Name {
    bytes: [u8; NAME_LEN],
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Value {
    from: u64,
    min: u64,
    digit: bool,
    lower: bool,
    upper: bool,
    /// Holds a slash or a dot, as paths, calls and versions do.
    parted: bool,
}

impl Machine {
    #[inline]
    pub(super) fn hold(&self) -> Option<u64> {
        if let State::Value(value) = self.state { Some(value.from) } else { None }
    }

    #[inline]
    pub(super) fn step(&mut self, at: u64, byte: u8, begins: bool, open: &mut Open) {
        let next = match self.state {
            State::Idle => State::Idle,
            State::Name if is_word(byte) && !begins => {
                self.name.push(byte);
                return;
            }
            State::Name => match kind_of(self.name.as_bytes()) {
                Some(kind) => after_name(kind, 0, byte),
                None => State::Idle,
            },
            State::AfterName { kind, between } => after_name(kind, between, byte),
            State::AfterSign { sign, kind, between } => after_sign(sign, kind, between, at, byte),
            State::Value(value) => in_value(value, at, byte, open),
            State::Masking if is_value(byte) => {
                open.mask(at, at + 1);
                State::Masking
            }
            State::Masking => State::Idle,
        };
        self.state = match next {
            State::Idle if begins => {
                self.name.len = 0;
                self.name.push(byte);
                State::Name
            }
            next => next,
        };
    }
}

fn after_name(kind: Kind, between: u8, byte: u8) -> State {
    match byte {
        b'=' | b':' => State::AfterSign { sign: byte, kind, between: 0 },
        b' ' | b'"' | b'\'' | b'\\' if between < MAX_BETWEEN => {
            State::AfterName { kind, between: between + 1 }
        }
        _ => State::Idle,
    }
}

fn after_sign(sign: u8, kind: Kind, between: u8, at: u64, byte: u8) -> State {
    match (byte, sign) {
        // `:=` and `=>` assign; `==` and `::` do not.
        (b'=', b':') | (b'>', b'=') if between == 0 => State::AfterSign { sign: b'=', kind, between: 1 },
        (b' ' | b'"' | b'\'' | b'\\', _) if between < MAX_BETWEEN => {
            State::AfterSign { sign, kind, between: between + 1 }
        }
        (_, sign) if begins_value(byte) && (sign == b'=' || kind.colon) => {
            let mut value =
                Value { from: at, min: kind.min, digit: false, lower: false, upper: false, parted: false };
            value.read(byte);
            State::Value(value)
        }
        _ => State::Idle,
    }
}

fn in_value(mut value: Value, at: u64, byte: u8, open: &mut Open) -> State {
    if !is_value(byte) || at - value.from >= MAX_UNDECIDED {
        return State::Idle;
    }
    value.read(byte);
    if at + 1 - value.from >= value.min && value.looks_random() {
        open.mask(value.from, at + 1);
        return State::Masking;
    }
    State::Value(value)
}

impl Default for Name {
    fn default() -> Self {
        Self { bytes: [0; NAME_LEN], len: 0 }
    }
}

impl Name {
    fn push(&mut self, byte: u8) {
        if self.len == NAME_LEN {
            self.bytes.rotate_left(1);
            self.len -= 1;
        }
        self.bytes[self.len] = byte;
        self.len += 1;
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Value {
    fn read(&mut self, byte: u8) {
        self.digit |= byte.is_ascii_digit();
        self.lower |= byte.is_ascii_lowercase();
        self.upper |= byte.is_ascii_uppercase();
        self.parted |= matches!(byte, b'/' | b'.');
    }

    /// Not a word, not a number; and not a path or a call either.
    fn looks_random(&self) -> bool {
        self.digit && (self.lower || self.upper) && (!self.parted || (self.lower && self.upper))
    }
}

/// Not a path, a variable, a placeholder or a call.
fn begins_value(byte: u8) -> bool {
    is_value(byte) && !matches!(byte, b'/' | b'.' | b'~' | b'$' | b'{' | b'[' | b'(' | b'%' | b'*' | b'=')
}

fn is_value(byte: u8) -> bool {
    byte.is_ascii_graphic()
        && !matches!(
            byte,
            b'"' | b'\''
                | b'`'
                | b','
                | b';'
                | b':'
                | b'&'
                | b'|'
                | b'('
                | b')'
                | b'{'
                | b'}'
                | b'['
                | b']'
                | b'<'
                | b'>'
                | b'\\'
        )
}

/// Judges a name by its last word, and that by the word before. Words are parted by `_`, `-` or a capital;
/// digits at the end (`KEY_2`) do not count.
fn kind_of(name: &[u8]) -> Option<Kind> {
    let end = name.iter().rposition(|byte| byte.is_ascii_alphabetic())? + 1;
    // The last letters of the words below, to be done at once with most of a text.
    if !matches!(name[end - 1].to_ascii_lowercase(), b'd' | b'e' | b't' | b'n' | b'y') {
        return None;
    }
    let (before, last) = split_last_word(&name[..end]);
    let (_, before) = split_last_word(before);
    let ends = |endings: &[&[u8]]| {
        endings.iter().any(|ending| {
            last.len() >= ending.len() && last[last.len() - ending.len()..].eq_ignore_ascii_case(ending)
        })
    };
    let is = |word: &[u8], list: &[&[u8]]| list.iter().any(|entry| word.eq_ignore_ascii_case(entry));

    if ends(&[b"password", b"passwd", b"passphrase", b"secret"]) || is(last, &[b"pwd"]) {
        return Some(Kind { min: 6, colon: true });
    }
    if ends(&[b"token"]) {
        let harmless = is(before, &[b"next", b"page", b"continuation", b"sync"]);
        return (!harmless).then_some(Kind { min: 16, colon: true });
    }
    let secret: &[&[u8]] = &[
        b"api",
        b"access",
        b"secret",
        b"private",
        b"auth",
        b"account",
        b"signing",
        b"encryption",
        b"master",
        b"token",
    ];
    let joined: &[&[u8]] =
        &[b"apikey", b"accesskey", b"secretkey", b"privatekey", b"authkey", b"signingkey", b"encryptionkey"];
    if ends(joined) {
        return Some(Kind { min: 16, colon: true });
    }
    if is(last, &[b"key"]) {
        let harmless: &[&[u8]] = &[
            b"public",
            b"primary",
            b"foreign",
            b"cache",
            b"sort",
            b"partition",
            b"idempotency",
            b"object",
            b"group",
            b"lock",
            b"row",
            b"unique",
            b"dedup",
        ];
        return (!is(before, harmless)).then_some(Kind { min: 16, colon: is(before, secret) });
    }
    None
}

/// Splits off the last word: what follows the last `_` or `-`, or begins with the capital after the last
/// small letter.
fn split_last_word(name: &[u8]) -> (&[u8], &[u8]) {
    let end = name.iter().rposition(|byte| byte.is_ascii_alphanumeric()).map_or(0, |at| at + 1);
    let name = &name[..end];
    let border = (1..name.len()).rev().find(|at| {
        let (left, right) = (name[at - 1], name[*at]);
        matches!(left, b'_' | b'-') || (left.is_ascii_lowercase() && right.is_ascii_uppercase())
    });
    name.split_at(border.unwrap_or(0))
}
