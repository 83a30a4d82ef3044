use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use thiserror::Error;

/// The longest name, in bytes: with a prefix it still fits a key of S3.
pub const NAME_AT_MOST: usize = 512;
/// The longest segment of a name, in bytes: it fits a file name of every file system, with a letter to spare.
pub const SEGMENT_AT_MOST: usize = 200;
/// The most segments of a name: each is a folder to go through.
pub const SEGMENTS_AT_MOST: usize = 32;

/// The name of an object.
///
/// Segments of `a` to `z`, `0` to `9`, `.`, `_` and `-`, joined by `/`. No segment is empty or `.`, and `..` occurs
/// nowhere. So a name means the same to every file system, in a URL and in a shell, and it leads out of nothing. Names
/// order by their bytes, as lists do.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

/// A text that is no name of an object.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{text}` is no name of an object: {problem}")]
pub struct BadName {
    /// The text, or its beginning.
    pub text: String,
    /// What is wrong with it, and what would be right.
    pub problem: &'static str,
}

impl Name {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its segments, of which there is at least one.
    pub fn segments(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.0.split('/')
    }

    /// The name of `rest` below this one.
    ///
    /// # Errors
    /// [`BadName`] where the two joined by `/` are none.
    pub fn join(&self, rest: &str) -> Result<Name, BadName> {
        format!("{self}/{rest}").parse()
    }

    /// Whether this name lies below `folder`, by whole segments.
    #[must_use]
    pub fn is_below(&self, folder: &Name) -> bool {
        self.0.strip_prefix(&*folder.0).is_some_and(|rest| rest.starts_with('/'))
    }
}

fn problem_of(text: &str) -> Option<&'static str> {
    if text.is_empty() {
        return Some("it is empty");
    }
    if text.len() > NAME_AT_MOST {
        return Some("it is longer than 512 bytes");
    }
    if text.contains("..") {
        return Some("it contains `..`");
    }
    let mut segments = 0;
    for segment in text.split('/') {
        segments += 1;
        if segment.is_empty() {
            return Some("a segment is empty: names neither begin nor end with `/`, nor have two in a row");
        }
        if segment == "." {
            return Some("a segment is `.`");
        }
        if segment.len() > SEGMENT_AT_MOST {
            return Some("a segment is longer than 200 bytes");
        }
        if !segment.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-')) {
            return Some("segments consist of a-z, 0-9, `.`, `_` and `-`, joined by `/`");
        }
    }
    (segments > SEGMENTS_AT_MOST).then_some("it has more than 32 segments")
}

impl FromStr for Name {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Name, BadName> {
        match problem_of(text) {
            None => Ok(Name(text.into())),
            Some(problem) => Err(BadName { text: text.chars().take(100).collect(), problem }),
        }
    }
}

impl TryFrom<&str> for Name {
    type Error = BadName;

    fn try_from(text: &str) -> Result<Name, BadName> {
        text.parse()
    }
}

impl TryFrom<String> for Name {
    type Error = BadName;

    fn try_from(text: String) -> Result<Name, BadName> {
        text.parse()
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_are_segments_of_a_small_alphabet() {
        for good in
            ["a", "output/job-1/000001.seg", ".hidden", "a.b_c-d", "-", "-rf/x", "0", "con", "a.", "a/b/c"]
        {
            assert_eq!(good.parse::<Name>().unwrap().as_str(), good);
        }
        for bad in [
            "", "/", "/a", "a/", "a//b", ".", "..", "a/..", "../a", "a/./b", "a..b", "A", "ä", "a b", "a\0b",
            "a\nb", "a\\b", "a:b", "a+b", "a%2fb", "~", "$HOME", "a?b", "a*",
        ] {
            assert!(bad.parse::<Name>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn each_bound_is_named() {
        let at_bound =
            [["a"; SEGMENT_AT_MOST].concat(), ["b"; SEGMENT_AT_MOST].concat(), ["c"; 110].concat()];
        let longest = at_bound.join("/");
        assert_eq!(longest.len(), NAME_AT_MOST);
        assert!(longest.parse::<Name>().is_ok());
        assert!(format!("{longest}c").parse::<Name>().unwrap_err().problem.contains("512"));
        assert!("a".repeat(201).parse::<Name>().unwrap_err().problem.contains("200"));
        assert!(["a"; 32].join("/").parse::<Name>().is_ok());
        assert!(["a"; 33].join("/").parse::<Name>().unwrap_err().problem.contains("32"));
    }

    #[test]
    fn below_goes_by_whole_segments() {
        let name = |text: &str| text.parse::<Name>().unwrap();
        assert!(name("a/b").is_below(&name("a")));
        assert!(!name("ab").is_below(&name("a")));
        assert!(!name("a").is_below(&name("a")));
        assert_eq!(name("a").join("b/c").unwrap(), name("a/b/c"));
        assert!(name("a").join("../b").is_err());
    }

    proptest! {
        #[test]
        fn no_text_becomes_a_name_that_leads_elsewhere(text in "[a-zA-Z./_ \\\\-]{0,40}") {
            if let Ok(name) = text.parse::<Name>() {
                let path = std::path::Path::new(name.as_str());
                prop_assert!(path.components().all(|c| matches!(c, std::path::Component::Normal(_))));
                prop_assert_eq!(path.components().count(), name.segments().count());
            }
        }
    }
}
