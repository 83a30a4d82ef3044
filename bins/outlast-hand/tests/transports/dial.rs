//! A hand that dials: the brain listens, and is the client all the same.

use crate::ground::{Ground, LONG};
use crate::support::*;
use outlast_core::id::Scope;
use outlast_wire::address::{Address, DialError, DialOptions, HandListener, dial};
use outlast_wire::attach::{Asking, AttachError};
use outlast_wire::call;
use outlast_wire::client::{Client, Until};
use outlast_wire::tls::{Clients, Identity, Trust};
use std::time::{Duration, Instant};

/// A brain that takes hands with this token.
fn brain(at: &str, identity: &Identity, token: &'static str) -> HandListener {
    let judge = move |asking: &Asking| asking.token.as_deref() == Some(token);
    HandListener::bind(at.parse().unwrap(), identity, &Clients::None, judge).unwrap()
}

fn port_of(listener: &HandListener) -> u16 {
    match listener.address() {
        Address::Listen(at) => at.port(),
        other => panic!("{other}"),
    }
}

/// A runner that dials, and listens on its socket too, so that it can be seen to be there.
fn dialler(ground: &Ground, port: u16, pin: &str, token: &str, options: &[&str]) -> Runner {
    let file = ground.file("dial-token");
    std::fs::write(&file, format!("{token}\n")).unwrap();
    let (to, file) = (format!("127.0.0.1:{port}"), file.display().to_string());
    let dial = ["--listen", "unix", "--dial", &to, "--dial-pin", pin, "--dial-token", &file];
    Runner::serve(ground, &[&dial, options].concat())
}

async fn attached(listener: &mut HandListener) -> (Asking, Client) {
    let (asking, stream) = tokio::time::timeout(2 * LONG, listener.accept()).await.unwrap().unwrap();
    let (http, scope) = (stream.http(), Scope::new(call::DEFAULT_SCOPE).unwrap());
    (asking, Client::begin(stream, http, None, scope).await.unwrap())
}

#[test]
fn the_brain_is_the_client_of_a_hand_that_dials_and_of_the_next_connection_too() {
    let ground = Ground::new("dial");
    let identity = certificate(&ground, "brain");
    play(async {
        let mut listener = brain("127.0.0.1:0", &identity, "t");
        let port = port_of(&listener);
        let runner = dialler(&ground, port, &identity.fingerprint().to_string(), "t", &[]);
        let (asking, client) = attached(&mut listener).await;
        let hello = client.hello();
        assert_eq!((&asking.sandbox, asking.sandbox_generation), (&hello.sandbox, hello.sandbox_generation));
        // All of the protocol, with calls beside one that waits.
        let id = started(&client, &sh(&ground.file("work"), "k", &pieces(40, 100_000, "0.05"))).await.job_id;
        let mut reader = Reader::default();
        let (waited, read) = tokio::join!(
            client.job(id, Until::Settled, Duration::from_millis(300)),
            reader.read(&client, id, 200_000)
        );
        assert!(waited.unwrap().receipt.is_none());
        read.unwrap();
        // The brain goes away and comes back: the hand dials again, the job has gone on, the reader continues.
        drop((client, listener));
        tokio::time::sleep(Duration::from_millis(200)).await;
        let mut listener = brain(&format!("127.0.0.1:{port}"), &identity, "t");
        let (again, client) = attached(&mut listener).await;
        assert_eq!(again, asking);
        reader.read(&client, id, usize::MAX).await.unwrap();
        reader.is_whole(&settled(&client, id).await);
        // The listening brain of one line, as `dial` gives it.
        drop((client, listener));
        let options = DialOptions {
            identity: Some(identity.clone()),
            token: Some("t".into()),
            ..DialOptions::default()
        };
        let at = Address::Listen(format!("127.0.0.1:{port}").parse().unwrap());
        let stream = tokio::time::timeout(2 * LONG, dial(&at, &options)).await.unwrap().unwrap();
        let http = stream.http();
        let client = Client::begin(stream, http, None, Scope::new("default").unwrap()).await.unwrap();
        assert_eq!(client.list(None, 10).await.unwrap().jobs.len(), 1);
        drop(client);
        runner.end();
    });
}

#[test]
fn a_hand_that_reaches_nobody_dials_again_with_growing_pauses() {
    let ground = Ground::new("dial-pauses");
    let identity = certificate(&ground, "brain");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let runner = dialler(&ground, port, &identity.fingerprint().to_string(), "t", &[]);
    // Answers each dial with an end.
    let dialled: Vec<Instant> = (0..6)
        .map(|_| {
            drop(listener.accept().unwrap());
            Instant::now()
        })
        .collect();
    let gaps: Vec<Duration> = dialled.windows(2).map(|pair| pair[1] - pair[0]).collect();
    for (gap, longest) in gaps.iter().zip([500, 1000, 2000, 4000, 8000]) {
        let longest = Duration::from_millis(longest);
        assert!(*gap >= longest / 2 && *gap < longest + Duration::from_secs(2), "{gaps:?}");
    }
    assert!(runner.errors().contains("handshake"), "{}", runner.errors());
    // It is there all the same, and ends at once in the midst of a pause.
    play(async { Way::unix(&ground).client().await });
    let began = Instant::now();
    runner.end();
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
}

#[test]
fn a_wrong_token_is_refused_until_the_file_holds_another() {
    let ground = Ground::new("dial-token");
    let identity = certificate(&ground, "brain");
    play(async {
        let mut listener = brain("127.0.0.1:0", &identity, "right");
        let pin = identity.fingerprint().to_string();
        let runner = dialler(&ground, port_of(&listener), &pin, "wrong", &[]);
        let refused = tokio::time::timeout(LONG, listener.accept()).await.unwrap().unwrap_err();
        assert!(matches!(refused, DialError::Attach { error: AttachError::Refused(_), .. }), "{refused}");
        until("what the hand says", || runner.errors().contains("401").then_some(())).await;
        assert!(!runner.errors().contains("wrong"), "the token is in what it says: {}", runner.errors());
        std::fs::write(ground.file("dial-token"), "right").unwrap();
        let client = loop {
            // Those of the wrong token may still come.
            if let Ok((_, stream)) = tokio::time::timeout(LONG, listener.accept()).await.unwrap() {
                let http = stream.http();
                break Client::begin(stream, http, None, Scope::new("default").unwrap()).await.unwrap();
            }
        };
        client.list(None, 1).await.unwrap();
        drop(client);
        runner.end();
    });
}

#[test]
fn a_hand_attaches_to_no_other_certificate_than_the_pinned_one() {
    let ground = Ground::new("dial-pin");
    let (identity, other) = (certificate(&ground, "brain"), certificate(&ground, "other"));
    play(async {
        let mut listener = brain("127.0.0.1:0", &identity, "t");
        let runner = dialler(&ground, port_of(&listener), &other.fingerprint().to_string(), "t", &[]);
        let refused = tokio::time::timeout(LONG, listener.accept()).await.unwrap().unwrap_err();
        assert!(matches!(refused, DialError::Handshake { .. }), "{refused}");
        let seen = identity.fingerprint().to_string();
        until("what the hand says", || runner.errors().contains(&seen).then_some(())).await;
        runner.end();
    });
}

#[test]
fn a_brain_may_require_the_certificate_of_a_hand() {
    let ground = Ground::new("dial-mtls");
    let identity = certificate(&ground, "brain");
    let hand = certificate(&ground, "hand");
    let file = |name: &str| ground.file("hand").join("tls").join(name).display().to_string();
    let (chain, key) = (file("cert.pem"), file("key.pem"));
    play(async {
        let pins = Clients::Required(Trust::Pins(vec![hand.fingerprint()]));
        let mut listener =
            HandListener::bind("127.0.0.1:0".parse().unwrap(), &identity, &pins, |_| true).unwrap();
        let (port, pin) = (port_of(&listener), identity.fingerprint().to_string());
        // Without it: refused, and the hand says why.
        let runner = dialler(&ground, port, &pin, "t", &[]);
        let refused = tokio::time::timeout(LONG, listener.accept()).await.unwrap().unwrap_err();
        assert!(matches!(refused, DialError::Handshake { .. }), "{refused}");
        until("what the hand says", || {
            runner.errors().contains("wants this end to show a certificate").then_some(())
        })
        .await;
        runner.end();
        let runner = dialler(&ground, port, &pin, "t", &["--tls-cert", &chain, "--tls-key", &key]);
        let client = loop {
            if let Ok((_, stream)) = tokio::time::timeout(LONG, listener.accept()).await.unwrap() {
                let http = stream.http();
                break Client::begin(stream, http, None, Scope::new("default").unwrap()).await.unwrap();
            }
        };
        client.list(None, 1).await.unwrap();
        drop(client);
        runner.end();
    });
}
