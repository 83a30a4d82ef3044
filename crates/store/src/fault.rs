//! Failures at will: what a store does to whoever uses it when disks, databases and processes fail.

use std::fmt;

/// Where in an operation a fault may happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Point {
    /// Before anything was done.
    Begin,
    /// Everything was done, nothing is committed.
    BeforeCommit,
    /// It is committed, and nobody has been told.
    AfterCommit,
}

/// What happens there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The connection is lost: what was not committed is not there, and after the commit its answer is lost.
    Lost,
    /// The process is killed, as by `kill -9`.
    Kill,
}

/// Decides about faults.
pub trait Faults: Send + Sync {
    /// What is to happen at `point` of the operation called `name`.
    fn at(&self, name: &'static str, point: Point) -> Option<Fault>;
}

/// Where there are none.
impl fmt::Debug for dyn Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faults")
    }
}

/// Ends this process at once.
pub(crate) fn kill() -> ! {
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    loop {
        std::thread::park();
    }
}
