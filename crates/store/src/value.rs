//! What goes into a statement and comes out of it: whole numbers, text, bytes, nothing.
//!
//! Columns have no other types, so that both databases mean the same: times are microseconds, flags 0 or 1, lists and
//! documents JSON text.

use crate::error::StoreError;

/// One value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Nothing.
    Null,
    /// A whole number.
    Int(i64),
    /// Text.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
}

macro_rules! from {
    ($($type:ty => |$value:ident| $into:expr;)*) => {
        $(impl From<$type> for Value {
            fn from($value: $type) -> Value {
                $into
            }
        })*
    };
}

from! {
    i64 => |value| Value::Int(value);
    u32 => |value| Value::Int(i64::from(value));
    // Counters, cursors and times of this program are far below 2^63.
    u64 => |value| Value::Int(i64::try_from(value).unwrap_or(i64::MAX));
    bool => |value| Value::Int(i64::from(value));
    &str => |value| Value::Text(value.to_owned());
    String => |value| Value::Text(value);
    &String => |value| Value::Text(value.clone());
    Vec<u8> => |value| Value::Bytes(value);
    &[u8] => |value| Value::Bytes(value.to_vec());
    outlast_core::time::UnixMicros => |value| value.0.into();
    outlast_core::id::Cursor => |value| value.0.into();
    outlast_core::id::Generation => |value| value.0.into();
    outlast_core::id::SandboxGeneration => |value| value.0.into();
    outlast_core::id::Attempt => |value| value.0.get().into();
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Value {
        value.map_or(Value::Null, Into::into)
    }
}

/// A document as its column has it.
///
/// # Errors
/// [`StoreError::Refused`] for what JSON cannot say.
pub fn document(value: &(impl serde::Serialize + ?Sized)) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| StoreError::Refused(error.into()))
}

/// The values of a statement's `$1`, `$2`, ….
#[macro_export]
macro_rules! values {
    ($($value:expr),* $(,)?) => { &[$($crate::value::Value::from($value)),*] };
}

/// One row of an answer, read by the number of the column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// For errors.
    pub(crate) table: &'static str,
    pub(crate) columns: Vec<Value>,
}

impl Row {
    fn wrong<T>(&self, column: usize, wanted: &str) -> Result<T, StoreError> {
        let kind = match self.columns.get(column) {
            None => "no such column",
            Some(Value::Null) => "nothing",
            Some(Value::Int(_)) => "a number",
            Some(Value::Text(_)) => "text",
            Some(Value::Bytes(_)) => "bytes",
        };
        Err(StoreError::Damaged {
            table: self.table,
            what: format!("column {column} holds {kind}, not {wanted}"),
        })
    }

    /// Whether a column holds nothing.
    #[must_use]
    pub fn is_null(&self, column: usize) -> bool {
        matches!(self.columns.get(column), None | Some(Value::Null))
    }

    /// A whole number.
    ///
    /// # Errors
    /// [`StoreError::Damaged`].
    pub fn int(&self, column: usize) -> Result<i64, StoreError> {
        match self.columns.get(column) {
            Some(Value::Int(value)) => Ok(*value),
            _ => self.wrong(column, "a number"),
        }
    }

    /// A whole number that is not negative.
    ///
    /// # Errors
    /// [`StoreError::Damaged`].
    pub fn count(&self, column: usize) -> Result<u64, StoreError> {
        u64::try_from(self.int(column)?).or_else(|_| self.wrong(column, "a count"))
    }

    /// A flag.
    ///
    /// # Errors
    /// [`StoreError::Damaged`].
    pub fn flag(&self, column: usize) -> Result<bool, StoreError> {
        Ok(self.int(column)? != 0)
    }

    /// Text.
    ///
    /// # Errors
    /// [`StoreError::Damaged`].
    pub fn text(&self, column: usize) -> Result<String, StoreError> {
        match self.columns.get(column) {
            Some(Value::Text(value)) => Ok(value.clone()),
            _ => self.wrong(column, "text"),
        }
    }

    /// Bytes.
    ///
    /// # Errors
    /// [`StoreError::Damaged`].
    pub fn bytes(&self, column: usize) -> Result<Vec<u8>, StoreError> {
        match self.columns.get(column) {
            Some(Value::Bytes(value)) => Ok(value.clone()),
            _ => self.wrong(column, "bytes"),
        }
    }

    /// What `read` reads, or nothing where nothing is.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn option<T>(
        &self,
        column: usize,
        read: impl FnOnce(&Row, usize) -> Result<T, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        if self.is_null(column) { Ok(None) } else { read(self, column).map(Some) }
    }

    /// Text that is something's name.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], where `T` refuses it.
    pub fn named<T>(&self, column: usize) -> Result<T, StoreError>
    where
        T: TryFrom<String>,
        T::Error: std::fmt::Display,
    {
        T::try_from(self.text(column)?).map_err(|error| StoreError::Damaged {
            table: self.table,
            what: format!("column {column}: {error}"),
        })
    }

    /// A JSON document.
    ///
    /// # Errors
    /// [`StoreError::Damaged`].
    pub fn json<T: serde::de::DeserializeOwned>(&self, column: usize) -> Result<T, StoreError> {
        serde_json::from_str(&self.text(column)?).map_err(|error| StoreError::Damaged {
            table: self.table,
            what: format!("column {column}: {error}"),
        })
    }
}
