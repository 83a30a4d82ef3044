//! The stores that the suite is run over.

use std::any::Any;
use std::sync::Arc;

use outlast_objects::{Backend, Directory, Hostile, Memory, OBJECT_AT_MOST, Objects, Plan};

/// A store, and what it cannot help being.
pub(crate) struct Store {
    pub(crate) objects: Objects,
    pub(crate) backend: Arc<dyn Backend>,
    /// Whether it keeps versions.
    pub(crate) versions: bool,
    /// Whether `a` and `a/b` can both be objects, a name as long as may be is stored, and no deletion disturbs a creation.
    /// That holds of S3, but not of the server that stands for it here, which keeps objects as plain files.
    pub(crate) nests: bool,
    /// A large object, in bytes.
    pub(crate) big: usize,
    _kept: Box<dyn Any + Send>,
}

fn store(backend: Arc<dyn Backend>, kept: impl Any + Send) -> Store {
    Store {
        objects: Objects::new(backend.clone()),
        backend,
        versions: false,
        nests: true,
        big: OBJECT_AT_MOST as usize,
        _kept: Box::new(kept),
    }
}

pub(crate) async fn directory() -> Store {
    let dir = tempfile::tempdir().unwrap();
    store(Arc::new(Directory::open(dir.path().join("objects")).await.unwrap()), dir)
}

pub(crate) async fn memory() -> Store {
    store(Arc::new(Memory::new()), ())
}

pub(crate) async fn memory_versioned() -> Store {
    Store { versions: true, ..store(Arc::new(Memory::versioned()), ()) }
}

pub(crate) async fn hostile_at_rest() -> Store {
    store(Arc::new(Hostile::new(Memory::new(), Plan::listed([]))), ())
}

#[cfg(feature = "s3")]
pub(crate) use bucket::*;

#[cfg(feature = "s3")]
mod bucket {
    use std::net::SocketAddr;

    use hyper::service::service_fn;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use outlast_objects::{Credentials, Location, S3};
    use s3s::auth::SimpleAuth;
    use s3s::service::S3ServiceBuilder;
    use tokio::net::TcpListener;
    use tokio::sync::Mutex;
    use tokio::task::AbortHandle;

    use super::*;

    pub(crate) const KEY: &str = "AKIAFORTHISTEST";
    pub(crate) const SECRET: &str = "the-secret-of-this-test";

    /// A server of S3 with one bucket, `bucket`, on a port of the loopback.
    pub(crate) struct Server {
        pub(crate) address: SocketAddr,
        accepting: AbortHandle,
        _dir: tempfile::TempDir,
    }

    impl Drop for Server {
        fn drop(&mut self) {
            self.accepting.abort();
        }
    }

    impl Server {
        pub(crate) async fn start() -> Server {
            let dir = tempfile::tempdir().unwrap();
            std::fs::create_dir(dir.path().join("bucket")).unwrap();
            let mut service = S3ServiceBuilder::new(s3s_fs::FileSystem::new(dir.path()).unwrap());
            service.set_auth(SimpleAuth::from_single(KEY, SECRET));
            let service = service.build();
            // It looks whether an object is there and then writes it, which is not what S3 promises; one at a time it is.
            let writing = Arc::new(Mutex::new(()));
            let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
                let (service, writing) = (service.clone(), writing.clone());
                async move {
                    let writes = request.method() == hyper::Method::PUT;
                    let _turn = if writes { Some(writing.lock().await) } else { None };
                    service.call(request.map(s3s::Body::from)).await
                }
            });
            let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
            let address = listener.local_addr().unwrap();
            let accepting = tokio::spawn(async move {
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    let service = service.clone();
                    tokio::spawn(async move {
                        let http = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                        let _ = http.serve_connection(TokioIo::new(stream), service).await;
                    });
                }
            });
            Server { address, accepting: accepting.abort_handle(), _dir: dir }
        }

        pub(crate) fn open(&self, place: &str, credentials: Credentials) -> S3 {
            let location = format!("s3://{place}?endpoint=http://{}&path_style=true", self.address);
            let Location::S3(bucket) = location.parse().unwrap() else { panic!("{location}") };
            S3::open(&bucket, credentials).unwrap()
        }
    }

    pub(crate) async fn s3() -> Store {
        let server = Server::start().await;
        let backend = server.open("bucket/some/prefix", Credentials::new(KEY, SECRET, None));
        // Built without optimization, the server takes seconds for what is at the bound.
        Store { nests: false, big: 9 * 1024 * 1024 + 1, ..store(Arc::new(backend), server) }
    }
}
