//! Two machines' networks, and what happens between them: a cut, a link that goes down, a reset, one direction that goes
//! nowhere. The runner is in one network namespace, the client in another, TLS between them.
//!
//! The namespaces have no names: each is held by a process, and goes with it.

use crate::ground::{Ground, LONG, wait_for};
use crate::support::*;
use outlast_core::status::State;
use outlast_wire::address::DialOptions;
use outlast_wire::client::{Read, Until, request_id};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::os::fd::AsFd;
use std::process::Command;
use std::time::{Duration, Instant};

const RUNNER: &str = "10.77.0.1";
const CLIENT: &str = "10.77.0.2";

/// The longest that either end takes to notice that the other is out of reach: a ping after 20 s, its answer 20 s later;
/// what was sent is given up after 30 s.
const NOTICED_WITHIN: Duration = Duration::from_secs(45);

/// Two networks with a cable between them.
struct Networks {
    runner: Held,
    client: Held,
}

impl Networks {
    fn new() -> Networks {
        let held = || {
            let mut sleep = tool("unshare");
            sleep.args(["--net", "sleep", "infinity"]);
            Held::start(&mut mortal(&sleep))
        };
        let networks = Networks { runner: held(), client: held() };
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        for held in [&networks.runner, &networks.client] {
            wait_for("a network namespace", || {
                (std::fs::read_link(format!("/proc/{}/ns/net", held.id())).ok()? != own).then_some(())
            });
        }
        let other = networks.client.id().to_string();
        networks.runner("ip", &["link", "add", "r0", "type", "veth", "peer", "name", "c0", "netns", &other]);
        for (held, address, device) in [(&networks.runner, RUNNER, "r0"), (&networks.client, CLIENT, "c0")] {
            inside(held, "ip", &["addr", "add", &format!("{address}/24"), "dev", device]);
            inside(held, "ip", &["link", "set", device, "up"]);
            inside(held, "ip", &["link", "set", "lo", "up"]);
        }
        networks
    }

    /// Runs a command in the runner's network.
    fn runner(&self, name: &str, words: &[&str]) {
        inside(&self.runner, name, words);
    }

    fn rule(&self, words: &str) {
        let words: Vec<&str> = words.split(' ').collect();
        self.runner("iptables", &[&["-w"], &words[..]].concat());
    }

    fn heal(&self) {
        self.rule("-F");
    }

    /// Connections to the runner that its kernel holds for good.
    fn established(&self) -> usize {
        let table = std::fs::read_to_string(format!("/proc/{}/net/tcp", self.runner.id())).unwrap();
        table.lines().filter(|line| line.split_whitespace().nth(3) == Some("01")).count()
    }
}

fn within(held: &Held, name: &str) -> Command {
    let mut command = tool("nsenter");
    command.args(["--net", "--target", &held.id().to_string()]).arg(find(name).unwrap());
    command
}

fn inside(held: &Held, name: &str, words: &[&str]) {
    done(within(held, name).args(words));
}

/// Plays a scene in the client's network, with a runner in the other.
fn apart(name: &str, scene: impl AsyncFnOnce(&Ground, &Networks, &Way)) {
    let ground = Ground::new(name);
    let networks = Networks::new();
    let token = new_token(&ground, &[]);
    let mut serve = within(&networks.runner, "env");
    serve.arg(PROGRAM).args(["serve", "--home"]).arg(ground.home.path());
    serve.args(["--listen", &format!("tls:{RUNNER}:7443"), "--token-file"]).arg(ground.file("tokens"));
    let runner = Runner::start(serve, &ground.file("runner.err"));
    let way = Way::tls(runner.tls(), runner.pin(), Some(&token));
    // This thread alone moves; its sockets are made there.
    let namespace = std::fs::File::open(format!("/proc/{}/ns/net", networks.client.id())).unwrap();
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    play(scene(&ground, &networks, &way));
    runner.end();
}

/// Every line of a count from 1 is there, once.
#[track_caller]
fn counted(reader: &Reader) -> usize {
    let text = String::from_utf8_lossy(&reader.bytes);
    for (at, line) in text.lines().enumerate() {
        assert_eq!(line.parse(), Ok(at + 1), "{text}");
    }
    text.lines().count()
}

const COUNTS: &str = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.1; done";

#[test]
fn what_the_network_does_ends_calls_in_time_and_nothing_else() {
    needs(&["unshare", "nsenter", "setpriv", "ip", "iptables"]);
    all_at_once(&[
        ("cut", &a_cut_both_ways),
        ("cut while idle", &a_cut_while_the_client_waits),
        ("cut while idle, HTTP/1.1", &a_cut_where_nothing_pings),
        ("link down", &a_link_that_goes_down),
        ("reset", &a_reset),
        ("no way there", &no_way_to_the_runner),
        ("no way back", &no_way_back_to_the_client),
    ]);
}

/// Everything is dropped while output flows.
fn a_cut_both_ways() {
    apart("net-cut", async |ground, networks, way| {
        let client = way.client().await;
        let id = started(&client, &sh(&ground.file("work"), "k", COUNTS)).await.job_id;
        let mut reader = Reader::default();
        reader.read(&client, id, 20).await.unwrap();
        assert_eq!(networks.established(), 1);
        networks.rule("-A INPUT -j DROP");
        networks.rule("-A OUTPUT -j DROP");
        let began = Instant::now();
        let lost = reader.read(&client, id, usize::MAX).await.unwrap_err();
        assert!(
            lost.is_of_connection() && began.elapsed() < NOTICED_WITHIN,
            "{:?}: {}",
            began.elapsed(),
            chain(&lost)
        );
        // The connection is over at once for every other call.
        let began_again = Instant::now();
        assert!(client.list(None, 1).await.unwrap_err().is_of_connection());
        assert!(began_again.elapsed() < Duration::from_secs(1));
        let read_before = counted(&reader);
        // The runner has let go, too.
        until_dropped(networks, began).await;
        networks.heal();
        let client = way.client_again(LONG).await;
        assert_eq!(client.job(id, Until::Now, Duration::ZERO).await.unwrap().state, State::Running);
        let mut receipt = None;
        if reader.read(&client, id, reader.bytes.len() + 1).await.is_ok() {
            receipt = Some(stop_now(&client, id).await);
        }
        reader.read(&client, id, usize::MAX).await.unwrap();
        reader.is_whole(&receipt.expect("reading goes on"));
        // It went on counting while nobody could reach it.
        assert!(counted(&reader) > read_before + 100, "{read_before}, {}", counted(&reader));
    });
}

async fn until_dropped(networks: &Networks, began: Instant) {
    while networks.established() > 0 {
        assert!(
            began.elapsed() < NOTICED_WITHIN + Duration::from_secs(5),
            "the runner keeps a dead connection"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Everything is dropped while nothing is under way but a call that waits.
fn a_cut_while_the_client_waits() {
    apart("net-idle", async |ground, networks, way| {
        let client = way.client().await;
        let id = started(&client, &sh(&ground.file("work"), "k", "exec sleep 600")).await.job_id;
        networks.rule("-A INPUT -j DROP");
        networks.rule("-A OUTPUT -j DROP");
        let began = Instant::now();
        let lost = client.job(id, Until::Settled, Duration::from_secs(50)).await.unwrap_err();
        assert!(
            lost.is_of_connection() && began.elapsed() < NOTICED_WITHIN,
            "{:?}: {}",
            began.elapsed(),
            chain(&lost)
        );
        until_dropped(networks, began).await;
        networks.heal();
        stop_now(&way.client_again(LONG).await, id).await;
    });
}

/// The same with HTTP/1.1, where the kernel alone asks whether the other end is still there.
fn a_cut_where_nothing_pings() {
    apart("net-http1", async |ground, networks, way| {
        let options = DialOptions { http_1_only: true, ..way.options.clone() };
        let way = Way { address: way.address.clone(), options, scope: way.scope };
        let client = way.client().await;
        let id = started(&client, &sh(&ground.file("work"), "k", "exec sleep 600")).await.job_id;
        networks.rule("-A INPUT -j DROP");
        networks.rule("-A OUTPUT -j DROP");
        let began = Instant::now();
        let lost = client.job(id, Until::Settled, Duration::from_secs(50)).await.unwrap_err();
        assert!(
            lost.is_of_connection() && began.elapsed() < NOTICED_WITHIN,
            "{:?}: {}",
            began.elapsed(),
            chain(&lost)
        );
        until_dropped(networks, began).await;
        networks.heal();
        stop_now(&way.client_again(LONG).await, id).await;
    });
}

/// The cable is pulled.
fn a_link_that_goes_down() {
    apart("net-link", async |ground, networks, way| {
        let client = way.client().await;
        let id = started(&client, &sh(&ground.file("work"), "k", COUNTS)).await.job_id;
        let mut reader = Reader::default();
        reader.read(&client, id, 20).await.unwrap();
        networks.runner("ip", &["link", "set", "r0", "down"]);
        let began = Instant::now();
        let lost = reader.read(&client, id, usize::MAX).await.unwrap_err();
        assert!(
            lost.is_of_connection() && began.elapsed() < NOTICED_WITHIN,
            "{:?}: {}",
            began.elapsed(),
            chain(&lost)
        );
        until_dropped(networks, began).await;
        networks.runner("ip", &["link", "set", "r0", "up"]);
        let client = way.client_again(LONG).await;
        let receipt = stop_now(&client, id).await;
        reader.read(&client, id, usize::MAX).await.unwrap();
        reader.is_whole(&receipt);
        counted(&reader);
    });
}

/// A firewall resets what comes in.
fn a_reset() {
    apart("net-reset", async |ground, networks, way| {
        let client = way.client().await;
        let id = started(&client, &sh(&ground.file("work"), "k", "exec sleep 600")).await.job_id;
        networks.rule("-A INPUT -p tcp -j REJECT --reject-with tcp-reset");
        let began = Instant::now();
        let lost = client.list(None, 1).await.unwrap_err();
        assert!(lost.is_of_connection() && began.elapsed() < Duration::from_secs(2), "{}", chain(&lost));
        let refused = way.try_client().await.unwrap_err();
        assert!(refused.0.contains("refused") && began.elapsed() < Duration::from_secs(4), "{refused:?}");
        networks.heal();
        let client = way.client_again(LONG).await;
        assert_eq!(client.job(id, Until::Now, Duration::ZERO).await.unwrap().state, State::Running);
        stop_now(&client, id).await;
    });
}

/// What the client sends is dropped; what the runner sends arrives.
fn no_way_to_the_runner() {
    apart("net-there", async |ground, networks, way| {
        let client = way.client().await;
        let id = started(&client, &sh(&ground.file("work"), "k", COUNTS)).await.job_id;
        networks.rule("-A INPUT -j DROP");
        let began = Instant::now();
        // Not done: no answer to it is a lie, and none comes.
        let lost = client.stop(&request_id().unwrap(), id, &stop("lost")).await.unwrap_err();
        assert!(
            lost.is_of_connection() && began.elapsed() < NOTICED_WITHIN,
            "{:?}: {}",
            began.elapsed(),
            chain(&lost)
        );
        // Nor can one connect, and that is said within its own time.
        let connecting = Instant::now();
        let refused = way.try_client().await.unwrap_err();
        assert!(refused.0.contains("10 s") || refused.0.contains("no answer"), "{refused:?}");
        assert!(connecting.elapsed() < Duration::from_secs(12), "{:?}", connecting.elapsed());
        until_dropped(networks, began).await;
        networks.heal();
        let client = way.client_again(LONG).await;
        let output = client.read(id, Read::default()).await.unwrap();
        assert!(output.next.0 > 0);
        assert_eq!(client.job(id, Until::Now, Duration::ZERO).await.unwrap().state, State::Running);
        stop_now(&client, id).await;
    });
}

/// What the client sends arrives; the answers are dropped.
fn no_way_back_to_the_client() {
    apart("net-back", async |ground, networks, way| {
        let client = way.client().await;
        networks.rule("-A OUTPUT -j DROP");
        let began = Instant::now();
        let admission = sh(&ground.file("work"), "k", "echo ran >>ran; exec sleep 600");
        let id = request_id().unwrap();
        let lost = client.admit(&id, &admission, Until::Now, Duration::ZERO).await.unwrap_err();
        assert!(
            lost.is_of_connection() && began.elapsed() < NOTICED_WITHIN,
            "{:?}: {}",
            began.elapsed(),
            chain(&lost)
        );
        // The command runs, though who asked was never told.
        let ran = ground.file("work").join("ran");
        until("the command", || ran.exists().then_some(())).await;
        until_dropped(networks, began).await;
        networks.heal();
        // The same call finds it, and starts nothing.
        let client = way.client_again(LONG).await;
        let view = client.admit(&id, &admission, Until::Started, LONG).await.unwrap();
        assert_eq!(view.arrival, Some(outlast_wire::view::Arrival::Existing));
        assert_eq!(client.list(None, 10).await.unwrap().jobs.len(), 1);
        stop_now(&client, view.job_id).await;
        assert_eq!(std::fs::read_to_string(&ran).unwrap(), "ran\n");
    });
}
