//! A runner behind a proxy that misbehaves.

use crate::ground::Ground;
use crate::proxy::{Deed, Direction, Manners, Proxy};
use crate::support::*;
use outlast_wire::client::{Until, request_id};
use std::time::{Duration, Instant};

/// Plays a scene with a runner behind a proxy.
fn behind(
    name: &str,
    manners: impl Fn(usize) -> Manners + Send + 'static,
    scene: impl AsyncFnOnce(&Ground, &Proxy, Way),
) {
    let ground = Ground::new(name);
    let token = new_token(&ground, &[]);
    let tokens = ground.file("tokens").display().to_string();
    let runner =
        Runner::serve(&ground, &["--listen", "tls:127.0.0.1:0", "--listen", "unix", "--token-file", &tokens]);
    let proxy = Proxy::start(runner.tls(), manners);
    let way = Way::tls(proxy.at, runner.pin(), Some(&token));
    play(scene(&ground, &proxy, way));
    drop(proxy);
    runner.end();
}

/// The common limit of proxies.
const COMMON: Duration = Duration::from_secs(60);

#[test]
fn an_idle_connection_outlives_60_s_of_silence_and_one_that_is_forgotten_is_given_up() {
    all_at_once(&[
        ("kept", &pings_keep_an_idle_connection_alive_where_60_s_of_silence_end_it),
        ("forgotten", &a_connection_that_is_forgotten_is_given_up_and_the_call_repeated),
    ]);
}

fn pings_keep_an_idle_connection_alive_where_60_s_of_silence_end_it() {
    let manners = Manners { forgets_after: Some(COMMON), ..Manners::default() };
    behind(
        "proxy-idle",
        move |_| manners,
        async |ground, proxy, way| {
            let client = way.client().await;
            let id = started(&client, &sh(&ground.file("work"), "k", "exec sleep 600")).await.job_id;
            // Nobody calls; what moves is the connection's own.
            tokio::time::sleep(COMMON + Duration::from_secs(4)).await;
            let began = Instant::now();
            let view = client.job(id, Until::Now, Duration::ZERO).await.unwrap();
            assert!(
                view.receipt.is_none() && began.elapsed() < Duration::from_secs(5),
                "{:?}",
                began.elapsed()
            );
            stop_now(&client, id).await;
            assert_eq!(proxy.connections(), 1, "it is the same connection");
        },
    );
}

fn a_connection_that_is_forgotten_is_given_up_and_the_call_repeated() {
    // Forgotten while idle, before any ping could prevent it. (Also the proof that this proxy does forget.)
    let manners = |number| match number {
        0 => Manners { forgets_after: Some(Duration::from_secs(1)), ..Manners::default() },
        _ => Manners::default(),
    };
    behind("proxy-forgets", manners, async |ground, proxy, way| {
        let client = way.client().await;
        tokio::time::sleep(Duration::from_millis(1500)).await;
        let admission = sh(&ground.file("work"), "k", "exec sleep 600");
        let (id, began) = (request_id().unwrap(), Instant::now());
        let lost = client.admit(&id, &admission, Until::Now, Duration::ZERO).await.unwrap_err();
        assert!(lost.is_of_connection(), "{lost}");
        assert!(began.elapsed() < Duration::from_secs(45), "{:?}", began.elapsed());
        let client = way.client().await;
        let view = client.admit(&id, &admission, Until::Started, Duration::from_secs(20)).await.unwrap();
        assert_eq!(client.list(None, 10).await.unwrap().jobs.len(), 1);
        stop_now(&client, view.job_id).await;
        assert_eq!(proxy.connections(), 2);
    });
}

#[test]
fn a_trickle_is_slow_and_whole() {
    let manners = Manners { trickles: Some((97, Duration::from_micros(200))), ..Manners::default() };
    behind(
        "proxy-trickles",
        move |_| manners,
        async |ground, proxy, way| {
            let client = way.client().await;
            let script = "head -c 150000 /dev/urandom";
            let id = started(&client, &sh(&ground.file("work"), "k", script)).await.job_id;
            let mut reader = Reader::default();
            reader.read(&client, id, usize::MAX).await.unwrap();
            reader.is_whole(&settled(&client, id).await);
            assert_eq!(proxy.connections(), 1);
        },
    );
}

/// Reads 6 MiB through connections that end in every phase of one, each after more bytes.
fn reads_through(name: &'static str, deed: Deed, direction: Direction) {
    let after: &[u64] = match direction {
        // The handshake's first bytes, its last ones, hello's answer, the first answers, the midst of the output.
        Direction::Down => &[1, 700, 1_200, 2_500, 4_000, 20_000, 300_000, 1_500_000, 2_000_000],
        Direction::Up => &[1, 300, 500, 700, 1_000, 1_100, 1_200, 1_500, 2_000],
    };
    let manners = move |number: usize| {
        // The first one admits.
        let after = number.checked_sub(1).and_then(|at| after.get(at));
        Manners { after: after.map(|after| (direction, *after, deed)), ..Manners::default() }
    };
    behind(name, manners, async move |ground, proxy, way| {
        let client = way.client().await;
        let id =
            started(&client, &sh(&ground.file("work"), "k", &pieces(24, 256 << 10, "0.02"))).await.job_id;
        drop(client);
        let mut reader = Reader::default();
        let failures = reader.read_through(&way, id).await;
        let client = Way::unix(ground).client().await;
        reader.is_whole(&settled(&client, id).await);
        // Reading may need fewer bytes upwards than the last rows let pass.
        let least = if direction == Direction::Down { after.len() } else { 4 };
        assert!(failures.len() >= least && proxy.connections() > least, "{failures:#?}");
    });
}

#[test]
fn a_reader_continues_over_connections_that_are_cut() {
    all_at_once(&[
        ("cut down", &|| reads_through("proxy-cut-down", Deed::Cut, Direction::Down)),
        ("cut up", &|| reads_through("proxy-cut-up", Deed::Cut, Direction::Up)),
        ("reset down", &|| reads_through("proxy-reset-down", Deed::Reset, Direction::Down)),
        ("reset up", &|| reads_through("proxy-reset-up", Deed::Reset, Direction::Up)),
    ]);
}

#[test]
fn a_reader_continues_over_connections_that_are_half_closed() {
    all_at_once(&[
        ("down", &|| reads_through("proxy-half-down", Deed::HalfClose, Direction::Down)),
        ("up", &|| reads_through("proxy-half-up", Deed::HalfClose, Direction::Up)),
    ]);
}
