//! Tokens that begin with their maker's mark.

use super::{Open, is_word};

/// One kind of token.
struct Shape {
    prefix: &'static [u8],
    /// How much of the prefix stays readable; the rest is the token's.
    shown: usize,
    body: fn(u8) -> bool,
    min: usize,
    rule: Rule,
}

#[derive(Clone, Copy, PartialEq)]
enum Rule {
    /// So many characters or more.
    Min,
    /// So many, and then no more.
    Exact,
    /// So many or more, among them a digit and a capital: the prefix alone is found in ordinary names too.
    Mixed,
}

fn alphanumeric(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
}

fn upper_alphanumeric(byte: u8) -> bool {
    byte.is_ascii_uppercase() || byte.is_ascii_digit()
}

const fn shape(prefix: &'static [u8], body: fn(u8) -> bool, min: usize, rule: Rule) -> Shape {
    Shape { prefix, shown: prefix.len(), body, min, rule }
}

#[rustfmt::skip]
const SHAPES: [Shape; 27] = [
    // GitHub
    shape(b"ghp_", alphanumeric, 36, Rule::Min),
    shape(b"gho_", alphanumeric, 36, Rule::Min),
    shape(b"ghu_", alphanumeric, 36, Rule::Min),
    shape(b"ghs_", alphanumeric, 36, Rule::Min),
    shape(b"ghr_", alphanumeric, 36, Rule::Min),
    shape(b"github_pat_", is_word, 40, Rule::Min),
    // AWS
    shape(b"AKIA", upper_alphanumeric, 16, Rule::Exact),
    shape(b"ASIA", upper_alphanumeric, 16, Rule::Exact),
    // Slack
    shape(b"xoxa-", is_word, 20, Rule::Min),
    shape(b"xoxb-", is_word, 20, Rule::Min),
    shape(b"xoxe-", is_word, 20, Rule::Min),
    shape(b"xoxp-", is_word, 20, Rule::Min),
    shape(b"xoxr-", is_word, 20, Rule::Min),
    shape(b"xoxs-", is_word, 20, Rule::Min),
    // OpenAI and those who do as they do; Anthropic
    shape(b"sk-", is_word, 20, Rule::Mixed),
    shape(b"sk-ant-", is_word, 20, Rule::Min),
    // Google
    shape(b"AIza", is_word, 35, Rule::Min),
    // GitLab
    shape(b"glpat-", is_word, 20, Rule::Min),
    // npm
    shape(b"npm_", alphanumeric, 36, Rule::Min),
    // PyPI: what follows the dash is base64 that begins alike for all.
    Shape { prefix: b"pypi-AgE", shown: 5, body: is_word, min: 40, rule: Rule::Min },
    // Stripe
    shape(b"sk_live_", alphanumeric, 16, Rule::Min),
    shape(b"sk_test_", alphanumeric, 16, Rule::Min),
    shape(b"rk_live_", alphanumeric, 16, Rule::Min),
    shape(b"rk_test_", alphanumeric, 16, Rule::Min),
    // Hugging Face, DigitalOcean, Shopify
    shape(b"hf_", alphanumeric, 34, Rule::Min),
    shape(b"dop_v1_", alphanumeric, 64, Rule::Min),
    shape(b"shpat_", alphanumeric, 32, Rule::Min),
];

/// For each byte the shapes that begin with it, a bit for each.
const BEGINNING: [u32; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < SHAPES.len() {
        table[SHAPES[index].prefix[0] as usize] |= 1 << index;
        index += 1;
    }
    table
};

/// How long a token of the mixed rule may be undecided.
const MAX_UNDECIDED: usize = 64;

#[derive(Clone, Debug, Default)]
pub(super) enum Machine {
    #[default]
    Idle,
    /// A word has begun that some shapes fit so far.
    Reading { start: u64, len: usize, fits: u32, digit: bool, capital: bool },
    /// In a token that is masked to its end.
    Masking { shape: usize },
}

impl Machine {
    #[inline]
    pub(super) fn hold(&self) -> Option<u64> {
        match self {
            Self::Reading { start, len, fits, .. } => {
                // Prefixes go out; only a body is undecided.
                let shown = fitting(*fits).map(|shape| SHAPES[shape].shown).min().unwrap_or(0);
                (*len > shown).then(|| start + shown as u64)
            }
            Self::Idle | Self::Masking { .. } => None,
        }
    }

    #[inline]
    pub(super) fn step(&mut self, at: u64, byte: u8, begins: bool, open: &mut Open) {
        if let Self::Masking { shape } = self {
            if (SHAPES[*shape].body)(byte) {
                open.mask(at, at + 1);
                return;
            }
            *self = Self::Idle;
        }
        if begins {
            let fits = BEGINNING[usize::from(byte)];
            if fits == 0 {
                *self = Self::Idle;
                return;
            }
            *self = Self::Reading { start: at, len: 0, fits, digit: false, capital: false };
        }
        let Self::Reading { start, len, fits, digit, capital } = self else { return };
        // The shortest prefix's place; longer ones need no mixture.
        if *len >= 3 {
            *digit |= byte.is_ascii_digit();
            *capital |= byte.is_ascii_uppercase();
        }
        let (mixed, read, first) = (*digit && *capital, *len, *start);
        for index in fitting(*fits) {
            let shape = &SHAPES[index];
            let fit = match shape.prefix.get(read) {
                Some(expected) => fit_if(byte == *expected),
                None => body_fit(shape, read - shape.prefix.len(), byte, mixed),
            };
            match fit {
                Fit::Undecided => {}
                Fit::No => *fits &= !(1 << index),
                Fit::Token { with_byte } => {
                    // Of marks that begin alike (`sk-`, `sk-ant-`) the longest tells most.
                    let read_whole = |index: &usize| SHAPES[*index].prefix.len() <= read;
                    let shown = fitting(*fits).filter(read_whole).map(|index| SHAPES[index].shown).max();
                    open.mask(first + shown.unwrap_or(shape.shown) as u64, at + u64::from(with_byte));
                    *self = if with_byte { Self::Masking { shape: index } } else { Self::Idle };
                    return;
                }
            }
        }
        *len += 1;
        if *fits == 0 {
            *self = Self::Idle;
        }
    }

    /// A token of exact length may stand at the very end.
    pub(super) fn end(&mut self, open: &mut Open) {
        if let Self::Reading { start, len, fits, .. } = self {
            for index in fitting(*fits) {
                let shape = &SHAPES[index];
                if shape.rule == Rule::Exact && *len == shape.prefix.len() + shape.min {
                    open.mask(*start + shape.shown as u64, *start + *len as u64);
                }
            }
        }
        *self = Self::Idle;
    }
}

fn fitting(fits: u32) -> impl Iterator<Item = usize> {
    let mut rest = fits;
    std::iter::from_fn(move || {
        let index = rest.trailing_zeros();
        rest &= rest.wrapping_sub(1);
        (index < u32::BITS).then_some(index as usize)
    })
}

enum Fit {
    Undecided,
    No,
    /// It is one, of which this byte is a part or not.
    Token {
        with_byte: bool,
    },
}

fn fit_if(fits: bool) -> Fit {
    if fits { Fit::Undecided } else { Fit::No }
}

/// Judges a byte that follows a prefix and `before` bytes of the body.
fn body_fit(shape: &Shape, before: usize, byte: u8, mixed: bool) -> Fit {
    let inside = (shape.body)(byte);
    match shape.rule {
        Rule::Exact if before == shape.min && !is_word(byte) => Fit::Token { with_byte: false },
        Rule::Exact => fit_if(inside && before < shape.min),
        Rule::Min | Rule::Mixed if !inside => Fit::No,
        Rule::Min if before + 1 >= shape.min => Fit::Token { with_byte: true },
        Rule::Mixed if before + 1 >= shape.min && mixed => Fit::Token { with_byte: true },
        Rule::Mixed => fit_if(before < MAX_UNDECIDED),
        Rule::Min => Fit::Undecided,
    }
}
