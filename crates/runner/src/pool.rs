//! Threads for what blocks.
//!
//! They are made when the runner starts and kept: under a fork bomb none can be made. They are in lanes, so that a stop
//! never waits behind an admission that waits for a disk.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use tokio::sync::oneshot;

/// Stack of a thread: nothing here recurses deeper than a folder tree that is removed.
const STACK: usize = 512 << 10;

type Work = Box<dyn FnOnce() + Send>;

struct Queue {
    waiting: Mutex<VecDeque<Work>>,
    came: Condvar,
    most: usize,
}

/// Threads of one purpose.
#[derive(Clone)]
pub(crate) struct Lane {
    queue: Arc<Queue>,
}

/// Why work was not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotDone {
    /// Too much waits already.
    Full,
    /// It panicked. The thread goes on.
    Failed,
}

impl Lane {
    /// Starts `threads` threads that do what is given to them; `most` pieces may wait.
    pub(crate) fn start(name: &str, threads: usize, most: usize) -> io::Result<Lane> {
        let queue = Arc::new(Queue { waiting: Mutex::new(VecDeque::new()), came: Condvar::new(), most });
        for number in 0..threads {
            let queue = Arc::clone(&queue);
            std::thread::Builder::new()
                .name(format!("{name}-{number}"))
                .stack_size(STACK)
                .spawn(move || work_off(&queue))?;
        }
        Ok(Lane { queue })
    }

    /// Has `work` done on a thread of this lane. It is done even where nobody waits for it any more.
    pub(crate) async fn run<T, F>(&self, work: F) -> Result<T, NotDone>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let (done, result) = oneshot::channel();
        let work: Work = Box::new(move || drop(done.send(work())));
        {
            let mut waiting = self.queue.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            if waiting.len() >= self.queue.most {
                return Err(NotDone::Full);
            }
            waiting.push_back(work);
        }
        self.queue.came.notify_one();
        result.await.map_err(|_| NotDone::Failed)
    }
}

fn work_off(queue: &Queue) {
    loop {
        let work = {
            let mut waiting = queue.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            loop {
                match waiting.pop_front() {
                    Some(work) => break work,
                    None => waiting = queue.came.wait(waiting).unwrap_or_else(PoisonError::into_inner),
                }
            }
        };
        // Where panics unwind (release builds end the process), a fault in one piece of work is the answer to one call.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
    }
}

/// All lanes.
#[derive(Clone)]
pub(crate) struct Lanes {
    /// Stops, input, window sizes: short, and never behind anything else.
    pub(crate) urgent: Lane,
    /// Admissions, fences: what waits for a disk.
    pub(crate) work: Lane,
    /// Looks and reads.
    pub(crate) read: Lane,
    /// Settling: what may wait for processes to end.
    pub(crate) settle: Lane,
}

impl Lanes {
    pub(crate) fn start() -> io::Result<Lanes> {
        Ok(Lanes {
            urgent: Lane::start("urgent", 4, 1024)?,
            // More than cores: most of the time they wait for the disk, which takes their syncs together.
            work: Lane::start("work", 8, 4096)?,
            read: Lane::start("read", 3, 4096)?,
            settle: Lane::start("settle", 4, 65_536)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    #[test]
    fn a_panic_is_one_answer() {
        let lane = Lane::start("test", 1, 10).unwrap();
        block_on(async {
            assert_eq!(lane.run(|| panic!("as the test wants")).await, Err::<(), _>(NotDone::Failed));
            assert_eq!(lane.run(|| 7).await, Ok(7));
        });
    }

    #[test]
    fn what_waits_is_bounded() {
        let lane = Lane::start("test", 1, 1).unwrap();
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let (began, begun) = std::sync::mpsc::channel::<()>();
        block_on(async {
            let mut first = Box::pin(lane.run(move || {
                began.send(()).unwrap();
                wait.recv().unwrap();
            }));
            assert!(futures_poll(first.as_mut()).is_none());
            begun.recv().unwrap();
            let mut second = Box::pin(lane.run(|| 2));
            assert!(futures_poll(second.as_mut()).is_none());
            assert_eq!(lane.run(|| 3).await, Err(NotDone::Full));
            go.send(()).unwrap();
            assert_eq!(first.await, Ok(()));
            assert_eq!(second.await, Ok(2));
        });
    }

    fn futures_poll<F: Future + ?Sized>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match future.poll(&mut context) {
            std::task::Poll::Ready(value) => Some(value),
            std::task::Poll::Pending => None,
        }
    }
}
