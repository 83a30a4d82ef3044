//! What only a bucket can do wrong: credentials, wrong places, servers that are gone.

use std::error::Error as _;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use outlast_objects::{Backend as _, Credentials, Location, ObjectError, Objects, S3};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::name;
use crate::stores::{KEY, SECRET, Server};

/// An error with all its sources, as a log and as a debugger would show it.
fn all_of(error: &ObjectError) -> String {
    let mut text = format!("{error} {error:?}");
    let mut source = error.source();
    while let Some(next) = source {
        text.push_str(&format!(" {next}"));
        source = next.source();
    }
    text
}

#[tokio::test]
async fn wrong_credentials_are_denied_and_not_told() {
    let server = Server::start().await;
    for (key, secret) in [(KEY, "wrong-secret"), ("AKIAUNKNOWN", SECRET)] {
        let backend =
            server.open("bucket", Credentials::new(key, secret, Some("session-token-9".to_owned())));
        let debug = format!("{backend:?}");
        let objects = Objects::new(backend);
        let errors = [
            objects.check().await.unwrap_err(),
            objects.put(&name("a"), Bytes::from_static(b"x")).await.unwrap_err(),
            objects.get(&name("a")).await.unwrap_err(),
            objects.head(&name("a")).await.unwrap_err(),
            objects.delete(&name("a")).await.unwrap_err(),
        ];
        for error in &errors {
            assert!(matches!(error, ObjectError::Denied { .. }), "{error:?}");
            let text = all_of(error) + &debug;
            for hidden in [key, secret, "session-token-9"] {
                assert!(!text.contains(hidden), "{hidden} in {text}");
            }
        }
    }
}

#[tokio::test]
async fn prefixes_of_one_bucket_do_not_see_each_other() {
    let server = Server::start().await;
    let credentials = Credentials::new(KEY, SECRET, None);
    let [a, ab, whole] = ["bucket/a", "bucket/ab", "bucket"]
        .map(|place| Objects::new(server.open(place, credentials.clone())));
    a.put(&name("x"), Bytes::from_static(b"a")).await.unwrap();
    ab.put(&name("x"), Bytes::from_static(b"ab")).await.unwrap();
    assert_eq!(a.get(&name("x")).await.unwrap(), "a");
    let names =
        |page: outlast_objects::Page| page.entries.iter().map(|e| e.name.to_string()).collect::<Vec<_>>();
    assert_eq!(names(a.list(None, None, 10).await.unwrap()), ["x"]);
    assert_eq!(names(whole.list(None, None, 10).await.unwrap()), ["a/x", "ab/x"]);
}

#[tokio::test]
async fn a_server_that_is_gone_is_unavailable_for_now() {
    let server = Server::start().await;
    let backend = server.open("bucket", Credentials::new(KEY, SECRET, None));
    drop(server);
    // Time passes by itself while it waits between its tries.
    tokio::time::pause();
    let error = backend.head(&name("a")).await.unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
}

#[tokio::test]
async fn credentials_come_from_the_environment_and_are_asked_for_by_name() {
    let location: Location = "s3://bucket?region=eu-1".parse().unwrap();
    // Nothing here sets them; where somebody's environment does, there is nothing to see.
    if std::env::var_os("AWS_ACCESS_KEY_ID").is_none() {
        let error = Objects::open(&location).await.unwrap_err();
        assert!(matches!(error, ObjectError::Denied { .. }));
        assert!(all_of(&error).contains("AWS_ACCESS_KEY_ID"), "{error:?}");
    }
}

/// A server that gives each request the next of its answers, and the last of them for ever.
async fn scripted(answers: Vec<Response>) -> (Objects, Arc<Mutex<Vec<String>>>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (answers, seen) = (Arc::new(answers), asked.clone());
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (answers, seen) = (answers.clone(), seen.clone());
            let service = service_fn(move |request: Request<Incoming>| {
                let (answers, seen) = (answers.clone(), seen.clone());
                async move {
                    let condition = request.headers().contains_key("if-none-match");
                    let turn = {
                        let mut seen = seen.lock().unwrap();
                        seen.push(format!("{} {} {condition}", request.method(), request.uri()));
                        seen.len() - 1
                    };
                    request.into_body().collect().await.unwrap();
                    let (status, headers, body) = &answers[turn.min(answers.len() - 1)];
                    let mut response = hyper::Response::builder().status(*status);
                    for (key, value) in *headers {
                        response = response.header(*key, *value);
                    }
                    Ok::<_, hyper::Error>(
                        response.body(Full::new(Bytes::from_static(body.as_bytes()))).unwrap(),
                    )
                }
            });
            tokio::spawn(async move {
                let _ = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    });
    let location = format!("s3://bucket?endpoint=http://{address}&path_style=true");
    let Location::S3(bucket) = location.parse().unwrap() else { panic!("{location}") };
    (Objects::new(S3::open(&bucket, Credentials::new(KEY, SECRET, None)).unwrap()), asked)
}

type Response = (u16, &'static [(&'static str, &'static str)], &'static str);

const HEADERS: &[(&str, &str)] =
    &[("etag", "\"e\""), ("last-modified", "Mon, 02 Jan 2006 15:04:05 GMT"), ("x-amz-version-id", "v-7")];
const UNVERSIONED: &[(&str, &str)] =
    &[("etag", "\"e\""), ("last-modified", "Mon, 02 Jan 2006 15:04:05 GMT"), ("x-amz-version-id", "null")];

#[tokio::test]
async fn versions_of_a_bucket_are_told_and_asked_for() {
    let (objects, asked) = scripted(vec![(200, HEADERS, "")]).await;
    let put = objects.put(&name("a"), Bytes::from_static(b"x")).await.unwrap();
    assert_eq!(put.version.as_deref(), Some("v-7"));
    assert_eq!(asked.lock().unwrap()[0], "PUT /bucket/a true");

    let (objects, asked) = scripted(vec![(200, HEADERS, "x")]).await;
    assert_eq!(objects.get_version(&name("a"), "v-7").await.unwrap(), "x");
    assert_eq!(asked.lock().unwrap()[0], "GET /bucket/a?versionId=v-7 false");
    // A server that passes over what it does not know answers with what it has.
    let other = objects.get_version(&name("a"), "v-8").await;
    assert!(matches!(other, Err(ObjectError::NotFound { .. })), "{other:?}");

    let (objects, _) = scripted(vec![(200, UNVERSIONED, "x")]).await;
    assert!(matches!(objects.get_version(&name("a"), "null").await, Err(ObjectError::NoVersions)));
    assert_eq!(objects.put(&name("a"), Bytes::from_static(b"x")).await.unwrap().version, None);
}

#[tokio::test]
async fn a_creation_that_meets_itself_is_a_success() {
    // The first answer is a failure of a server that had stored it; the repetition finds the name taken.
    let (objects, asked) = scripted(vec![(500, &[], ""), (412, &[], ""), (200, HEADERS, "x")]).await;
    let put = objects.put(&name("a"), Bytes::from_static(b"x")).await.unwrap();
    assert!(put.existed);
    assert_eq!(put.version.as_deref(), Some("v-7"));
    let asked = asked.lock().unwrap();
    assert_eq!(*asked, ["PUT /bucket/a true", "PUT /bucket/a true", "GET /bucket/a false"]);
}

#[tokio::test]
async fn a_conflict_with_a_creation_under_way_is_waited_out() {
    let script = vec![(409, NONE, ""), (404, NONE, "NoSuchKey"), (409, NONE, ""), (200, HEADERS, "y")];
    let (objects, _) = scripted(script).await;
    let put = objects.put(&name("a"), Bytes::from_static(b"x")).await;
    assert!(matches!(put, Err(ObjectError::Different { .. })), "{put:?}");
}

const NONE: &[(&str, &str)] = &[];

#[tokio::test]
async fn refusals_are_told_apart() {
    let kind = |answer: Response| async move {
        let (objects, _) = scripted(vec![answer]).await;
        match objects.get(&name("a")).await.unwrap_err() {
            ObjectError::NotFound { .. } => "missing",
            ObjectError::Denied { .. } => "denied",
            ObjectError::Unavailable { retryable: true, .. } => "later",
            ObjectError::Unavailable { retryable: false, .. } => "never",
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(kind((404, NONE, "<Code>NoSuchKey</Code>")).await, "missing");
    assert_eq!(kind((404, NONE, "<Code>NoSuchBucket</Code>")).await, "never");
    assert_eq!(kind((403, NONE, "<Code>AccessDenied</Code>")).await, "denied");
    assert_eq!(kind((401, NONE, "")).await, "denied");
    assert_eq!(kind((400, NONE, "<Code>ExpiredToken</Code>")).await, "denied");
    assert_eq!(kind((400, NONE, "<Code>InvalidRequest</Code>")).await, "never");
    // Of another region.
    assert_eq!(kind((301, NONE, "<Code>PermanentRedirect</Code>")).await, "never");
    assert_eq!(kind((503, NONE, "<Code>SlowDown</Code>")).await, "later");
}

/// A server that gives each connection the next of its answers as they are, and closes it.
async fn raw(answers: &'static [(&'static str, u64, &'static str)]) -> Objects {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let location = format!("s3://bucket?endpoint=http://{}&path_style=true", listener.local_addr().unwrap());
    let Location::S3(bucket) = location.parse().unwrap() else { panic!("{location}") };
    tokio::spawn(async move {
        for (status, len, body) in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 4096];
            assert!(stream.read(&mut request).await.unwrap() > 0);
            let facts = "etag: \"e\"\r\nlast-modified: Mon, 02 Jan 2006 15:04:05 GMT";
            let answer = format!("HTTP/1.1 {status}\r\n{facts}\r\ncontent-length: {len}\r\n\r\n{body}");
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    Objects::new(S3::open(&bucket, Credentials::new(KEY, SECRET, None)).unwrap())
}

#[tokio::test]
async fn an_object_that_is_too_large_is_not_read() {
    let objects = raw(&[("200 OK", 70_000_000_000, "the beginning")]).await;
    let read = objects.get(&name("a")).await;
    assert!(matches!(read, Err(ObjectError::TooLarge { len: 70_000_000_000, .. })), "{read:?}");

    let objects =
        raw(&[("412 Precondition Failed", 0, ""), ("200 OK", 70_000_000_000, "the beginning")]).await;
    let put = objects.put(&name("a"), Bytes::from_static(b"the beginning")).await;
    assert!(matches!(put, Err(ObjectError::Different { .. })), "{put:?}");
}

#[tokio::test]
async fn an_answer_that_is_cut_is_asked_for_again() {
    let objects = raw(&[("200 OK", 5, "who"), ("200 OK", 5, "whole")]).await;
    assert_eq!(objects.get(&name("a")).await.unwrap(), "whole");
}
