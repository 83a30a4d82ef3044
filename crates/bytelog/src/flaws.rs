//! Deliberate defects, switched on by the crash tests to show that they would be seen.
//!
//! Outside tests every switch is a constant `false`, so none of them exists in a built program.

pub(crate) use switches::*;

#[cfg(not(test))]
mod switches {
    pub(crate) const fn unchecked() -> bool {
        false
    }
    pub(crate) const fn unchained() -> bool {
        false
    }
    pub(crate) const fn drop_before_record() -> bool {
        false
    }
    pub(crate) const fn reopen_trusts_uncommitted() -> bool {
        false
    }
    pub(crate) const fn recover_skips_sync() -> bool {
        false
    }
}

#[cfg(test)]
mod switches {
    use std::cell::Cell;

    #[derive(Debug, Clone, Copy, Default)]
    pub(crate) struct Flaws {
        /// Accept frames whatever their checksum says.
        pub(crate) unchecked: bool,
        /// Checksum each frame by itself.
        pub(crate) unchained: bool,
        /// Remove the middle of the log before the record of it is durable.
        pub(crate) drop_before_record: bool,
        /// After a failed sync, go on behind bytes that it may have lost.
        pub(crate) reopen_trusts_uncommitted: bool,
        /// Serve what recovery read without making it durable.
        pub(crate) recover_skips_sync: bool,
    }

    thread_local! {
        static FLAWS: Cell<Flaws> = Cell::new(Flaws::default());
    }

    pub(crate) fn set(flaws: Flaws) {
        FLAWS.with(|cell| cell.set(flaws));
    }
    pub(crate) fn unchecked() -> bool {
        FLAWS.with(Cell::get).unchecked
    }
    pub(crate) fn unchained() -> bool {
        FLAWS.with(Cell::get).unchained
    }
    pub(crate) fn drop_before_record() -> bool {
        FLAWS.with(Cell::get).drop_before_record
    }
    pub(crate) fn reopen_trusts_uncommitted() -> bool {
        FLAWS.with(Cell::get).reopen_trusts_uncommitted
    }
    pub(crate) fn recover_skips_sync() -> bool {
        FLAWS.with(Cell::get).recover_skips_sync
    }
}
