use std::ops::Range;

/// How many bytes are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GapLength {
    /// This many bytes, each of which has a cursor of its own.
    Known(u64),
    /// Some bytes, perhaps none, that were read from the job and lost before they were counted. They
    /// have no cursors: the gap lies between two neighbouring bytes of the log.
    Unknown,
}

/// Why bytes are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GapCause {
    /// Dropped by the size limit of the log: the first bytes and the newest were kept.
    Limit,
    /// A write or a sync failed, and these bytes were not committed before it.
    StorageFailed,
    /// The writer died with bytes it had read from the job and not yet written.
    WriterLost,
    /// Bytes were announced or written, and the storage no longer has them.
    Lost,
    /// The file that holds these bytes fails its checks. It is kept as it is.
    Damaged,
    /// A code that this version of the software does not know.
    Other(u8),
}

impl GapCause {
    /// The code in a gap record.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            GapCause::Limit => 1,
            GapCause::StorageFailed => 2,
            GapCause::WriterLost => 3,
            GapCause::Lost => 4,
            GapCause::Damaged => 5,
            GapCause::Other(code) => code,
        }
    }

    /// The cause that a code in a gap record stands for.
    #[must_use]
    pub fn from_code(code: u8) -> GapCause {
        match code {
            1 => GapCause::Limit,
            2 => GapCause::StorageFailed,
            3 => GapCause::WriterLost,
            4 => GapCause::Lost,
            5 => GapCause::Damaged,
            other => GapCause::Other(other),
        }
    }
}

/// A statement that bytes are missing, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Gap {
    /// The cursor of the first missing byte.
    pub from: u64,
    /// How many are missing.
    pub length: GapLength,
    /// Why.
    pub cause: GapCause,
}

impl Gap {
    /// A gap of known length. The range's end is not before its start.
    #[must_use]
    pub fn known(range: Range<u64>, cause: GapCause) -> Gap {
        Gap { from: range.start, length: GapLength::Known(range.end - range.start), cause }
    }

    /// The cursor of the first byte after the gap; equal to `from` where the length is unknown.
    #[must_use]
    pub fn to(&self) -> u64 {
        match self.length {
            GapLength::Known(n) => self.from.saturating_add(n),
            GapLength::Unknown => self.from,
        }
    }
}
