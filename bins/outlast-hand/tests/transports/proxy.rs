//! A TCP proxy that misbehaves as it is told. It ends with its value.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What it does to a connection.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Manners {
    /// A connection on which nothing moved for so long is forgotten: nothing is passed on any more, and nobody is told.
    pub(crate) forgets_after: Option<Duration>,
    /// Bytes that are passed on at once, and the pause after them.
    pub(crate) trickles: Option<(usize, Duration)>,
    /// What it does after so many bytes.
    pub(crate) after: Option<(Direction, u64, Deed)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the client to the runner.
    Up,
    /// From the runner to the client.
    Down,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deed {
    /// Closes both sides.
    Cut,
    /// Resets both sides.
    Reset,
    /// Says that no more comes in this direction, and passes on the other.
    HalfClose,
}

/// The proxy.
pub(crate) struct Proxy {
    pub(crate) at: SocketAddr,
    /// Connections there were.
    pub(crate) connections: Arc<AtomicUsize>,
    ended: watch::Sender<bool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Proxy {
    /// Starts on a thread of its own; `manners` tells those of each connection by its number.
    pub(crate) fn start(to: SocketAddr, manners: impl Fn(usize) -> Manners + Send + 'static) -> Proxy {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let at = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let (ended, mut ends) = watch::channel(false);
        let count = Arc::clone(&connections);
        let serve = async move {
            let listener = TcpListener::from_std(listener).unwrap();
            loop {
                tokio::select! {
                    accepted = listener.accept() => {
                        let (client, _) = accepted.unwrap();
                        let number = count.fetch_add(1, Ordering::SeqCst);
                        tokio::spawn(pass(client, to, manners(number)));
                    }
                    _ = ends.changed() => return,
                }
            }
        };
        let thread = std::thread::spawn(move || {
            tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(serve);
        });
        Proxy { at, connections, ended, thread: Some(thread) }
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.ended.send(true);
        drop(self.thread.take().map(std::thread::JoinHandle::join));
    }
}

/// Both directions of a connection.
struct Passed {
    manners: Manners,
    began: Instant,
    /// When anything moved last, in milliseconds since it began.
    moved: AtomicU64,
}

impl Passed {
    fn note(&self) {
        self.moved.store(u64::try_from(self.began.elapsed().as_millis()).unwrap(), Ordering::SeqCst);
    }

    fn is_forgotten(&self) -> bool {
        let idle = self.began.elapsed() - Duration::from_millis(self.moved.load(Ordering::SeqCst));
        self.manners.forgets_after.is_some_and(|after| idle >= after)
    }
}

async fn pass(client: TcpStream, to: SocketAddr, manners: Manners) {
    let Ok(runner) = TcpStream::connect(to).await else { return };
    if let Some((.., Deed::Reset)) = manners.after {
        for stream in [&client, &runner] {
            rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO)).unwrap();
        }
    }
    client.set_nodelay(true).unwrap();
    runner.set_nodelay(true).unwrap();
    let passed = Passed { manners, began: Instant::now(), moved: AtomicU64::new(0) };
    let ((from_client, to_client), (from_runner, to_runner)) = (client.into_split(), runner.into_split());
    let up = one_way(from_client, to_runner, Direction::Up, &passed);
    let down = one_way(from_runner, to_client, Direction::Down, &passed);
    let (mut up, mut down) = (std::pin::pin!(up), std::pin::pin!(down));
    // Where one direction is over the other goes on, unless it was cut.
    tokio::select! {
        is_cut = &mut up => if !is_cut { down.await; },
        is_cut = &mut down => if !is_cut { up.await; },
    }
}

/// Passes one direction on until it is over; whether all of the connection is.
async fn one_way(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    direction: Direction,
    passed: &Passed,
) -> bool {
    let mut buffer = vec![0; 64 << 10];
    let mut total: u64 = 0;
    loop {
        let most = passed.manners.trickles.map_or(buffer.len(), |(most, _)| most);
        let Ok(count @ 1..) = from.read(&mut buffer[..most]).await else { break };
        if passed.is_forgotten() {
            // For good, and without a word.
            std::future::pending::<()>().await;
        }
        passed.note();
        let mut count = count;
        let deed = passed.manners.after.filter(|after| after.0 == direction);
        if let Some((_, after, _)) = deed {
            count = count.min(usize::try_from(after.saturating_sub(total)).unwrap());
        }
        total += count as u64;
        if to.write_all(&buffer[..count]).await.is_err() {
            return true;
        }
        match deed {
            Some((_, after, Deed::HalfClose)) if total >= after => break,
            Some((_, after, _)) if total >= after => return true,
            _ => {}
        }
        if let Some((_, pause)) = passed.manners.trickles {
            tokio::time::sleep(pause).await;
        }
    }
    let _ = to.shutdown().await;
    false
}
