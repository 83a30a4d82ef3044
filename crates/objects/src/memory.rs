use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::objects::OBJECT_AT_MOST;
use crate::{Backend, Created, Doing, Entry, Found, Meta, Name, ObjectError, Page, Span};

/// A store in memory, for tests. Nothing of it is durable.
#[derive(Debug, Default)]
pub struct Memory {
    versioned: bool,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    current: BTreeMap<Name, (u64, Bytes)>,
    /// Every object there ever was, by the number of its creation: as a bucket with versions has them.
    versions: BTreeMap<(Name, u64), Bytes>,
    created: u64,
}

impl Memory {
    /// An empty store without versions.
    #[must_use]
    pub fn new() -> Memory {
        Memory::default()
    }

    /// An empty store with versions. What was deleted can still be read by its version.
    #[must_use]
    pub fn versioned() -> Memory {
        Memory { versioned: true, ..Memory::default() }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // No code that can panic runs under the lock.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn version(&self, number: u64) -> Option<String> {
        self.versioned.then(|| format!("v{number}"))
    }

    fn create(&self, name: &Name, bytes: Bytes) -> Created {
        let mut kept = self.kept();
        if kept.current.contains_key(name) {
            return Created::Exists;
        }
        kept.created += 1;
        let number = kept.created;
        if self.versioned {
            kept.versions.insert((name.clone(), number), bytes.clone());
        }
        kept.current.insert(name.clone(), (number, bytes));
        Created::New { version: self.version(number) }
    }

    fn read(&self, name: &Name, version: Option<&str>, span: Option<Span>) -> Result<Found, ObjectError> {
        let missing = || ObjectError::NotFound { name: name.clone() };
        let (number, bytes) = match version {
            None => self.kept().current.get(name).cloned().ok_or_else(missing)?,
            Some(_) if !self.versioned => return Err(ObjectError::NoVersions),
            Some(version) => {
                let number = version.strip_prefix('v').and_then(|digits| digits.parse().ok());
                let number: u64 = number.ok_or_else(missing)?;
                let bytes = self.kept().versions.get(&(name.clone(), number)).cloned();
                (number, bytes.ok_or_else(missing)?)
            }
        };
        let len = bytes.len() as u64;
        let meta = Meta { len, version: self.version(number) };
        let range = within(name, len, span)?;
        Ok(Found { bytes: bytes.slice(range.start as usize..range.end as usize), meta })
    }

    fn list(&self, folder: Option<&Name>, after: Option<&Name>, limit: usize) -> Page {
        let kept = self.kept();
        // Names below a folder are together in this order, but what is not below it may be first.
        let from = match (folder, after) {
            (Some(folder), Some(after)) => Bound::Excluded(folder.max(after)),
            (Some(only), None) | (None, Some(only)) => Bound::Excluded(only),
            (None, None) => Bound::Unbounded,
        };
        let mut entries: Vec<Entry> = kept
            .current
            .range::<Name, _>((from, Bound::Unbounded))
            .filter(|(name, _)| folder.is_none_or(|folder| name.is_below(folder)))
            .take(limit + 1)
            .map(|(name, (_, bytes))| Entry { name: name.clone(), len: bytes.len() as u64 })
            .collect();
        let more = entries.len() > limit;
        entries.truncate(limit);
        Page { entries, more }
    }
}

/// The part of an object of `len` bytes that a read is to return.
pub(crate) fn within(name: &Name, len: u64, span: Option<Span>) -> Result<std::ops::Range<u64>, ObjectError> {
    let span = span.unwrap_or(Span { start: 0, len });
    if span.start > len {
        return Err(ObjectError::OutOfRange { name: name.clone(), start: span.start, len });
    }
    let end = span.start.saturating_add(span.len).min(len);
    if end - span.start > OBJECT_AT_MOST {
        return Err(ObjectError::TooLarge {
            name: name.clone(),
            len: end - span.start,
            limit: OBJECT_AT_MOST,
        });
    }
    Ok(span.start..end)
}

impl Backend for Memory {
    fn create<'a>(&'a self, name: &'a Name, bytes: Bytes) -> Doing<'a, Created> {
        Box::pin(async move { Ok(Memory::create(self, name, bytes)) })
    }

    fn read<'a>(&'a self, name: &'a Name, version: Option<&'a str>, span: Option<Span>) -> Doing<'a, Found> {
        Box::pin(async move { Memory::read(self, name, version, span) })
    }

    fn head<'a>(&'a self, name: &'a Name) -> Doing<'a, Option<Meta>> {
        Box::pin(async move {
            let found = self.kept().current.get(name).map(|(number, bytes)| (*number, bytes.len() as u64));
            Ok(found.map(|(number, len)| Meta { len, version: self.version(number) }))
        })
    }

    fn list<'a>(
        &'a self,
        folder: Option<&'a Name>,
        after: Option<&'a Name>,
        limit: usize,
    ) -> Doing<'a, Page> {
        Box::pin(async move { Ok(Memory::list(self, folder, after, limit)) })
    }

    fn delete<'a>(&'a self, name: &'a Name) -> Doing<'a, ()> {
        Box::pin(async move {
            self.kept().current.remove(name);
            Ok(())
        })
    }
}
