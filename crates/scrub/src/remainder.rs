//! The rest of a secret whose beginning nobody here has seen.
//!
//! Who takes a stream over from a reader that was lost does not know what that one had read last. If it was the beginning
//! of a secret, the end of it comes first now, and no masker would know it. So the first bytes are masked as far as they
//! are the end of a value. A few bytes that look like one by chance are masked as well: better than showing a secret.

use crate::MASK;

/// What a stream that was taken over may begin with.
#[derive(Clone, Default)]
pub struct Remainder {
    values: Vec<Vec<u8>>,
    /// Ends of values that fit all bytes so far: which value, and from where on the rest of it is to come.
    candidates: Vec<(usize, usize)>,
}

impl std::fmt::Debug for Remainder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Remainder({} candidates)", self.candidates.len())
    }
}

/// An end shorter than this gives too little away, and is found by chance too often.
const SHORTEST: usize = 4;

impl Remainder {
    /// Looks for the ends of these values.
    #[must_use]
    pub fn new(values: &[Vec<u8>]) -> Remainder {
        let ends = |(which, value): (usize, &Vec<u8>)| {
            (1..value.len().saturating_sub(SHORTEST - 1)).map(move |from| (which, from))
        };
        Remainder { values: values.to_vec(), candidates: values.iter().enumerate().flat_map(ends).collect() }
    }

    /// Masks what of the stream's next bytes is the end of a value, in place. Does nothing once that is decided.
    pub fn mask(&mut self, bytes: &mut [u8]) {
        if self.candidates.is_empty() || bytes.is_empty() {
            return;
        }
        let values = &self.values;
        let ends = self.candidates.iter().map(|(which, from)| &values[*which][*from..]);
        let whole = ends.clone().filter(|end| bytes.starts_with(end)).map(<[u8]>::len).max();
        let is_begun = |end: &[u8]| end.len() > bytes.len() && end.starts_with(bytes);
        let begun = ends.clone().any(is_begun);
        let hidden = if begun { bytes.len() } else { whole.unwrap_or(0) };
        self.candidates.retain(|(which, from)| is_begun(&values[*which][*from..]));
        for (_, from) in &mut self.candidates {
            *from += bytes.len();
        }
        bytes[..hidden].fill(MASK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(value: &str, chunks: &[&str]) -> String {
        let mut remainder = Remainder::new(&[value.as_bytes().to_vec()]);
        let mut out = Vec::new();
        for chunk in chunks {
            let mut bytes = chunk.as_bytes().to_vec();
            remainder.mask(&mut bytes);
            out.extend(bytes);
        }
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_end_of_a_secret_is_masked_however_it_comes() {
        for at in 1..13 {
            let (value, rest) = ("hunter2-hunter4!", &"hunter2-hunter4!"[at..]);
            let stars = "*".repeat(rest.len());
            assert_eq!(masked(value, &[&format!("{rest}\nafter")]), format!("{stars}\nafter"), "{at}");
            let singly: Vec<String> = format!("{rest}\nafter").chars().map(String::from).collect();
            let singly: Vec<&str> = singly.iter().map(String::as_str).collect();
            assert_eq!(masked(value, &singly), format!("{stars}\nafter"), "{at}");
        }
    }

    #[test]
    fn other_output_is_left_alone() {
        assert_eq!(masked("hunter2-hunter4!", &["all is well\n", "nter4!"]), "all is well\nnter4!");
        assert_eq!(Remainder::new(&[]).candidates.len(), 0);
    }
}
