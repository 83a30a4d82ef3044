use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::{Backend, Created, Digest, Directory, Location, Name, ObjectError, Span, Verb};

/// The largest object, in bytes: 64 MiB. Objects pass through memory whole.
pub const OBJECT_AT_MOST: u64 = 64 * 1024 * 1024;

/// The most entries of one [`Page`].
pub const LIST_AT_MOST: usize = 1000;

/// How often a name is tried that a store calls both taken and absent. Each round but the first means that somebody
/// deleted the object between two calls, that a bucket has another creation of it under way, or that the store lies.
const ROUNDS: u32 = 4;

/// How long is waited before the second round; before each that follows, four times as long.
const ROUND_AFTER: Duration = Duration::from_millis(10);

/// A store of immutable objects.
///
/// A handle: its clones are the same store. See the [crate](crate) for what holds of all stores. Calls may overlap in any
/// number; the directory does some at a time and has the rest wait. They are made in a runtime of tokio with time.
#[derive(Debug, Clone)]
pub struct Objects {
    backend: Arc<dyn Backend>,
}

/// What came of [`Objects::put`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Put {
    /// The version under which the store has these bytes, where it has versions.
    pub version: Option<String>,
    /// Whether these bytes were there already. A call that was repeated because its answer was lost may find its own.
    pub existed: bool,
}

/// Facts about an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    /// Its length in bytes.
    pub len: u64,
    /// Its version, where the store has them.
    pub version: Option<String>,
}

/// One object of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its full name.
    pub name: Name,
    /// Its length in bytes.
    pub len: u64,
}

/// A part of a list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Page {
    /// In the order of the bytes of their full names.
    pub entries: Vec<Entry>,
    /// Whether there may be more after the last of them.
    pub more: bool,
}

impl Objects {
    /// Opens the store at a location.
    ///
    /// A directory is made where it is missing. For a bucket the credentials are those of the environment, and nothing is
    /// asked of it yet: [`Objects::check`] does that.
    ///
    /// # Errors
    /// [`ObjectError::Denied`] without credentials or rights; [`ObjectError::Unavailable`] where the directory cannot be
    /// made or opened, or what is built does not include the backend.
    pub async fn open(location: &Location) -> Result<Objects, ObjectError> {
        match location {
            Location::Directory(path) => Ok(Objects::new(Directory::open(path).await?)),
            #[cfg(feature = "s3")]
            Location::S3(bucket) => {
                let credentials = crate::Credentials::from_env()?;
                Ok(Objects::new(crate::S3::open(bucket, credentials)?))
            }
            #[cfg(not(feature = "s3"))]
            Location::S3(_) => {
                Err(ObjectError::unavailable(Verb::Open, false, "this program was built without S3"))
            }
        }
    }

    /// The door before a backend.
    pub fn new(backend: impl Backend + 'static) -> Objects {
        Objects { backend: Arc::new(backend) }
    }

    /// Asks the store for something small, so that a wrong address, bucket or credential shows now.
    ///
    /// # Errors
    /// As of [`Objects::list`].
    pub async fn check(&self) -> Result<(), ObjectError> {
        self.backend.list(None, None, 1).await.map(drop)
    }

    /// Stores an object, if nothing has its name.
    ///
    /// Once this has returned, the object is durable, whoever stored it.
    ///
    /// # Errors
    /// - [`ObjectError::Different`]: other bytes have the name. Final.
    /// - [`ObjectError::TooLarge`]: more than [`OBJECT_AT_MOST`] bytes. Nothing was asked of the store.
    /// - Others: the object is stored whole or not at all, and the same call again finds out.
    pub async fn put(&self, name: &Name, bytes: Bytes) -> Result<Put, ObjectError> {
        let len = bytes.len() as u64;
        if len > OBJECT_AT_MOST {
            return Err(ObjectError::TooLarge { name: name.clone(), len, limit: OBJECT_AT_MOST });
        }
        for round in 0..ROUNDS {
            if round > 0 {
                tokio::time::sleep(ROUND_AFTER * 4_u32.pow(round - 1)).await;
            }
            match self.backend.create(name, bytes.clone()).await? {
                Created::New { version } => return Ok(Put { version, existed: false }),
                Created::Exists => {}
            }
            match self.backend.read(name, None, None).await {
                Ok(found) if found.bytes == bytes => {
                    return Ok(Put { version: found.meta.version, existed: true });
                }
                // What was too large to be read was too large to be put.
                Ok(_) | Err(ObjectError::TooLarge { .. }) => {
                    return Err(ObjectError::Different { name: name.clone() });
                }
                Err(ObjectError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Err(ObjectError::unavailable(
            Verb::Put,
            true,
            "the store calls the name taken, and then finds nothing there",
        ))
    }

    /// Reads an object.
    ///
    /// # Errors
    /// [`ObjectError::NotFound`]; [`ObjectError::TooLarge`] for one that was not stored by this; and the storage's.
    pub async fn get(&self, name: &Name) -> Result<Bytes, ObjectError> {
        self.backend.read(name, None, None).await.map(|found| found.bytes)
    }

    /// Reads an object of which the digest is known.
    ///
    /// # Errors
    /// [`ObjectError::Damaged`] where its bytes have another; else as [`Objects::get`].
    pub async fn get_exact(&self, name: &Name, digest: &Digest) -> Result<Bytes, ObjectError> {
        let bytes = self.get(name).await?;
        if Digest::of(&bytes) != *digest {
            return Err(ObjectError::Damaged {
                name: name.clone(),
                problem: "its bytes have another digest",
            });
        }
        Ok(bytes)
    }

    /// Reads `len` bytes of an object from byte `start`, or what there is of them before the end.
    ///
    /// # Errors
    /// [`ObjectError::OutOfRange`] where `start` is beyond the end (at the end, there are no bytes and no error);
    /// [`ObjectError::TooLarge`] where more than [`OBJECT_AT_MOST`] bytes would be read; else as [`Objects::get`].
    pub async fn get_range(&self, name: &Name, start: u64, len: u64) -> Result<Bytes, ObjectError> {
        self.backend.read(name, None, Some(Span { start, len })).await.map(|found| found.bytes)
    }

    /// Reads one exact version of an object, as [`Put::version`] or [`Meta::version`] named it.
    ///
    /// # Errors
    /// [`ObjectError::NotFound`] where the object or that version of it is not there; [`ObjectError::NoVersions`] where
    /// the store keeps none; else as [`Objects::get`].
    pub async fn get_version(&self, name: &Name, version: &str) -> Result<Bytes, ObjectError> {
        self.backend.read(name, Some(version), None).await.map(|found| found.bytes)
    }

    /// Facts about an object, or nothing where there is none.
    ///
    /// # Errors
    /// The storage's.
    pub async fn head(&self, name: &Name) -> Result<Option<Meta>, ObjectError> {
        self.backend.head(name).await
    }

    /// Lists objects, in the order of the bytes of their full names.
    ///
    /// Those below `folder` (by whole segments: `a` has `a/b` below it, and neither `a` nor `ab`), or all; only those after
    /// `after`, which need not exist; at most `limit` (at least 1), and never more than [`LIST_AT_MOST`]. The next page
    /// begins after the last entry of this one. What is stored or deleted meanwhile may be listed or not; all else is
    /// listed once.
    ///
    /// # Errors
    /// The storage's.
    pub async fn list(
        &self,
        folder: Option<&Name>,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Page, ObjectError> {
        self.backend.list(folder, after, limit.clamp(1, LIST_AT_MOST)).await
    }

    /// Removes an object; success where there is none.
    ///
    /// Once this has returned, the removal is durable. A store with versions may keep the old ones.
    ///
    /// # Errors
    /// The storage's; the object is then there whole or gone.
    pub async fn delete(&self, name: &Name) -> Result<(), ObjectError> {
        self.backend.delete(name).await
    }

    /// Removes what writers that were interrupted at least `older_than` ago left, and says how many there were.
    ///
    /// They take room and can be seen by no other call. No writer that is at work is disturbed.
    ///
    /// # Errors
    /// The storage's; some may then have been removed.
    pub async fn tidy(&self, older_than: Duration) -> Result<u64, ObjectError> {
        self.backend.tidy(older_than).await
    }
}
