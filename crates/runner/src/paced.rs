//! A stream whose other end must keep taking what is written to it: a reader that vanished without a word, or that never
//! reads, is cut off and holds no memory for ever.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// When a connection last moved, in milliseconds since the runner started.
#[derive(Debug, Clone)]
pub(crate) struct Moved {
    since: Instant,
    at: Arc<AtomicU64>,
}

impl Moved {
    pub(crate) fn new(since: Instant) -> Moved {
        let moved = Moved { since, at: Arc::default() };
        moved.note();
        moved
    }

    fn note(&self) {
        let now = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.at.store(now, Ordering::Relaxed);
    }

    pub(crate) fn at(&self) -> u64 {
        self.at.load(Ordering::Relaxed)
    }
}

/// The stream.
pub(crate) struct Paced<S> {
    stream: S,
    stalled_after: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
    moved: Moved,
}

impl<S> Paced<S> {
    /// Fails with `TimedOut` once a write has waited for `stalled_after`.
    pub(crate) fn new(stream: S, stalled_after: Duration, moved: Moved) -> Paced<S> {
        Paced { stream, stalled_after, stalled: None, moved }
    }

    fn pace<T>(&mut self, context: &mut Context<'_>, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.stalled = None;
            self.moved.note();
            return result;
        }
        let after = self.stalled_after;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(after)));
        match stalled.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_read(context, buffer);
        if result.is_ready() {
            self.moved.note();
        }
        result
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.pace(context, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.pace(context, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(context);
        self.pace(context, result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_shutdown(context);
        self.pace(context, result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[test]
    fn who_does_not_read_is_cut_off_and_who_does_is_not() {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let (ours, mut theirs) = tokio::io::duplex(16);
            let mut paced = Paced::new(ours, Duration::from_secs(30), Moved::new(Instant::now()));
            let error = paced.write_all(&[0; 64]).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);

            let (ours, theirs_slow) = tokio::io::duplex(16);
            theirs.shutdown().await.unwrap();
            let mut theirs = theirs_slow;
            let mut paced = Paced::new(ours, Duration::from_secs(30), Moved::new(Instant::now()));
            let writing = tokio::spawn(async move { paced.write_all(&[0; 64]).await });
            for _ in 0..64 {
                tokio::time::sleep(Duration::from_secs(1)).await;
                theirs.read_u8().await.unwrap();
            }
            writing.await.unwrap().unwrap();
        });
    }
}
