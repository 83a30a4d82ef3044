use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::{Meta, Name, ObjectError, Page};

/// What a backend's verbs return: a future in a box, so that a door can have any backend behind it.
pub type Doing<'a, T> = Pin<Box<dyn Future<Output = Result<T, ObjectError>> + Send + 'a>>;

/// What came of creating an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Created {
    /// It is stored, whole and durable, and was not there before.
    New {
        /// Its version, where the store has them.
        version: Option<String>,
    },
    /// The store says that the name is taken, and whatever is there is durable. It may have been taken by this very call:
    /// a request whose answer was lost is sent again, and then it meets itself. So nothing follows from this without a
    /// look at the bytes.
    Exists,
}

/// A range of bytes that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Where it begins.
    pub start: u64,
    /// How many bytes it has at most.
    pub len: u64,
}

/// Bytes that were read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The whole object, or the part of it that was asked for.
    pub bytes: Bytes,
    /// Facts about the whole object.
    pub meta: Meta,
}

/// Something that keeps objects.
///
/// [`Objects`](crate::Objects) sees to what is the same for all of them: bounds, and what it means that a name is taken.
/// A future that is dropped before it is ready leaves the object whole or absent, as an error does.
pub trait Backend: fmt::Debug + Send + Sync {
    /// Stores `bytes` under `name` if nothing is there. Two calls never both answer [`Created::New`] for one object.
    fn create<'a>(&'a self, name: &'a Name, bytes: Bytes) -> Doing<'a, Created>;

    /// Reads an object: all of it or a span of it, as it is now or in one exact version.
    ///
    /// Fails with `NotFound`, with `OutOfRange` where the span begins beyond the end, with `TooLarge` where more than
    /// [`OBJECT_AT_MOST`](crate::OBJECT_AT_MOST) bytes would have to be read, and with `NoVersions` where a version is
    /// asked of a store that has none. A span may begin at the end, and reach beyond it.
    fn read<'a>(&'a self, name: &'a Name, version: Option<&'a str>, span: Option<Span>) -> Doing<'a, Found>;

    /// Facts about an object; nothing where there is none.
    fn head<'a>(&'a self, name: &'a Name) -> Doing<'a, Option<Meta>>;

    /// The first `limit` (at least 1) objects below `folder` (all, without) that come after `after`, ordered by the bytes
    /// of their full names. What is stored there under other texts than names is passed over.
    fn list<'a>(&'a self, folder: Option<&'a Name>, after: Option<&'a Name>, limit: usize)
    -> Doing<'a, Page>;

    /// Removes an object, durably; success where there is none.
    fn delete<'a>(&'a self, name: &'a Name) -> Doing<'a, ()>;

    /// Removes what writers that were interrupted at least `older_than` ago left, and says how many there were. No object
    /// and no writer that is at work is touched.
    fn tidy(&self, older_than: Duration) -> Doing<'_, u64> {
        let _ = older_than;
        Box::pin(async { Ok(0) })
    }
}

impl<B: Backend + ?Sized> Backend for Arc<B> {
    fn create<'a>(&'a self, name: &'a Name, bytes: Bytes) -> Doing<'a, Created> {
        (**self).create(name, bytes)
    }
    fn read<'a>(&'a self, name: &'a Name, version: Option<&'a str>, span: Option<Span>) -> Doing<'a, Found> {
        (**self).read(name, version, span)
    }
    fn head<'a>(&'a self, name: &'a Name) -> Doing<'a, Option<Meta>> {
        (**self).head(name)
    }
    fn list<'a>(
        &'a self,
        folder: Option<&'a Name>,
        after: Option<&'a Name>,
        limit: usize,
    ) -> Doing<'a, Page> {
        (**self).list(folder, after, limit)
    }
    fn delete<'a>(&'a self, name: &'a Name) -> Doing<'a, ()> {
        (**self).delete(name)
    }
    fn tidy(&self, older_than: Duration) -> Doing<'_, u64> {
        (**self).tidy(older_than)
    }
}
