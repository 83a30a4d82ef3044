//! A hand behind `ssh`: a daemon of its own, with keys and configuration of its own.

use crate::ground::{Ground, LONG, all_processes, lives, wait_for};
use crate::support::*;
use outlast_core::status::State;
use outlast_wire::address::{Address, dial};
use outlast_wire::client::{Read, Tail, Until};
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// An `ssh` daemon on a port of its own. Who logs in finds `outlast-hand`, and the ground's home as his own.
struct Daemon {
    _process: Held,
    folder: PathBuf,
}

impl Daemon {
    #[track_caller]
    fn start(ground: &Ground) -> Daemon {
        needs(&["sshd", "ssh", "ssh-keygen", "unshare", "setpriv", "mount"]);
        let folder = ground.file("ssh");
        std::fs::create_dir(&folder).unwrap();
        for name in ["host", "user"] {
            done(tool("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(folder.join(name)));
        }
        std::fs::copy(folder.join("user.pub"), folder.join("authorized")).unwrap();
        // A port that is free now; another may take it before the daemon does, and then it says so.
        (0..5).find_map(|_| Daemon::on(ground, &folder, free_port())).unwrap_or_else(|| {
            panic!("sshd: {}", std::fs::read_to_string(folder.join("log")).unwrap_or_default())
        })
    }

    fn on(ground: &Ground, folder: &std::path::Path, port: u16) -> Option<Daemon> {
        let at = |name: &str| folder.join(name).display().to_string();
        let bin = PathBuf::from(PROGRAM).parent().unwrap().display().to_string();
        let server = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\n\
             PidFile none\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\n\
             MaxStartups 100\nSetEnv PATH={bin}:{PATH} OUTLAST_HOME={}\n",
            at("host"),
            at("authorized"),
            ground.home.path().display()
        );
        let host_key = std::fs::read_to_string(folder.join("host.pub")).unwrap();
        std::fs::write(folder.join("known"), format!("[127.0.0.1]:{port} {host_key}")).unwrap();
        let client = format!(
            "Host box\nHostName 127.0.0.1\nPort {port}\nUser root\nIdentityFile {}\nIdentitiesOnly yes\n\
             UserKnownHostsFile {}\nGlobalKnownHostsFile none\nStrictHostKeyChecking yes\n",
            at("user"),
            at("known")
        );
        std::fs::write(folder.join("server"), server).unwrap();
        std::fs::write(folder.join("client"), client).unwrap();
        let log = std::fs::OpenOptions::new().create(true).append(true).open(folder.join("log")).unwrap();
        // Its folder for privilege separation, and its notes on who logged in, are not this machine's.
        let script = "mount -t tmpfs none /run && mount -t tmpfs none /var/log && mkdir -m 755 /run/sshd && \
                      exec \"$1\" -D -e -f \"$2\"";
        let mut sshd = tool("unshare");
        sshd.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]);
        sshd.arg(find("sshd").unwrap()).arg(folder.join("server"));
        let mut process = Held::start(mortal(&sshd).stderr(log));
        let is_up = crate::ground::wait_within(LONG, &mut || {
            let ended = process.0.try_wait().unwrap().is_some();
            let up = std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
            (ended || up).then_some(up && !ended)
        });
        (is_up == Some(true)).then(|| Daemon { _process: process, folder: folder.to_owned() })
    }

    /// By `ssh` with the configuration of its own; notes the process in the file `pids`.
    fn way(&self) -> Way {
        let script = r#"echo $$ >>"$1"; exec ssh -F "$2" -T box outlast-hand connect"#;
        let (pids, client) = (self.folder.join("pids"), self.folder.join("client"));
        let words = ["sh", "-c", script, "sh"].map(std::ffi::OsString::from);
        Way::to(Address::exec(words.into_iter().chain([pids.into(), client.into()])).unwrap())
    }

    /// The last `ssh` that was started.
    fn last_pid(&self) -> Pid {
        let pids = std::fs::read_to_string(self.folder.join("pids")).unwrap();
        Pid::from_raw(pids.lines().last().unwrap().parse().unwrap()).unwrap()
    }
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The processes of `outlast-hand connect` on a home.
fn connects(ground: &Ground) -> Vec<Pid> {
    let home = [b"OUTLAST_HOME=", ground.home.path().as_os_str().as_bytes()].concat();
    let is_one = |process: &Pid| {
        let read = |name: &str| std::fs::read(format!("/proc/{process}/{name}")).unwrap_or_default();
        let words = read("cmdline");
        let words: Vec<&[u8]> = words.split(|byte| *byte == 0).collect();
        words.first().is_some_and(|word| word.ends_with(b"outlast-hand"))
            && words.get(1) == Some(&&b"connect"[..])
            && read("environ").split(|byte| *byte == 0).any(|entry| entry == home)
    };
    all_processes().filter(is_one).collect()
}

async fn no_session(ground: &Ground) {
    until("the end of the session", || connects(ground).is_empty().then_some(())).await;
}

#[test]
fn many_calls_go_through_one_ssh_to_a_runner_that_it_started() {
    let ground = Ground::new("ssh");
    let daemon = Daemon::start(&ground);
    let way = daemon.way();
    play(async {
        assert!(!ground.home.path().join("runner.sock").exists(), "no runner serves yet");
        let client = way.client().await;
        let runner = Orphan::of(&client);
        // 64 MiB, each of them.
        const BYTES: usize = 64 << 20;
        let work = ground.file("work");
        let id = started(&client, &sh(&work, "much", &format!("head -c {BYTES} /dev/urandom"))).await.job_id;
        let mut reader = Reader::default();
        let began = Instant::now();
        reader.read(&client, id, usize::MAX).await.unwrap();
        eprintln!("64 MiB through ssh in {:?}", began.elapsed());
        let receipt = settled(&client, id).await;
        assert_eq!(receipt.output.final_cursor.0, BYTES as u64);
        reader.is_whole(&receipt);

        // Calls beside two that wait, all on one stream.
        let id = started(&client, &sh(&work, "waits", "exec sleep 600")).await.job_id;
        let long = Duration::from_secs(40);
        let waits = async { client.job(id, Until::Settled, long).await.unwrap() };
        let reads = async { client.read(id, Read { wait: long, ..Read::default() }).await.unwrap() };
        let others = async {
            let began = Instant::now();
            for _ in 0..50 {
                assert_eq!(client.list(None, 10).await.unwrap().jobs.len(), 2);
            }
            assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
            stop_now(&client, id).await;
        };
        let began = Instant::now();
        let (view, output, ()) = tokio::join!(waits, reads, others);
        assert!(view.receipt.is_some() && output.tail == Tail::Ended, "{view:?} {output:?}");
        assert!(began.elapsed() < Duration::from_secs(20), "those that wait are told: {:?}", began.elapsed());

        // The session's end is not the runner's, nor a job's.
        let id = started(&client, &sh(&work, "stays", "exec sleep 600")).await.job_id;
        drop(client);
        no_session(&ground).await;
        assert!(lives(runner.pid()));
        let client = way.client().await;
        assert_eq!(client.hello().runner_pid.to_string(), runner.pid().to_string());
        assert_eq!(client.job(id, Until::Now, Duration::ZERO).await.unwrap().state, State::Running);
        stop_now(&client, id).await;
        drop(client);
        no_session(&ground).await;
        runner.end();
        assert!(!ground.home.path().join("runner.sock").exists());
    });
}

#[test]
fn whoever_is_killed_on_the_way_the_reader_continues() {
    let ground = Ground::new("ssh-killed");
    let daemon = Daemon::start(&ground);
    let way = daemon.way();
    play(async {
        let client = way.client().await;
        let runner = Orphan::of(&client);
        let script = pieces(60, 200_000, "0.05");
        let id = started(&client, &sh(&ground.file("work"), "k", &script)).await.job_id;
        drop(client);
        let mut reader = Reader::default();
        for kill_there in [false, true] {
            let client = way.client().await;
            reader.read(&client, id, reader.bytes.len() + 400_000).await.unwrap();
            let victims = if kill_there { connects(&ground) } else { vec![daemon.last_pid()] };
            assert!(!victims.is_empty());
            for victim in victims {
                let _ = kill_process(victim, Signal::KILL);
            }
            let began = Instant::now();
            let lost = reader.read(&client, id, usize::MAX).await.unwrap_err();
            assert!(
                lost.is_of_connection() && began.elapsed() < Duration::from_secs(10),
                "{:?}",
                began.elapsed()
            );
            eprintln!("killed there: {kill_there}, after {:?}: {}", began.elapsed(), chain(&lost));
        }
        assert!(!reader.ended, "the job ended too soon for this test");
        let client = way.client().await;
        assert_eq!(client.hello().runner_pid.to_string(), runner.pid().to_string());
        reader.read(&client, id, usize::MAX).await.unwrap();
        reader.is_whole(&settled(&client, id).await);
        drop(client);
        no_session(&ground).await;
        runner.end();
    });
}

#[test]
fn a_runner_that_nobody_uses_ends_and_connect_starts_another() {
    let ground = Ground::new("ssh-idle");
    let daemon = Daemon::start(&ground);
    // (`connect` gives it 600 s.)
    let mut runner = Runner::serve(&ground, &["--idle-exit", "1"]);
    let way = daemon.way();
    play(async {
        let client = way.client().await;
        assert_eq!(
            client.hello().runner_pid.to_string(),
            runner.pid().to_string(),
            "the one that serves is used"
        );
        let epoch = client.hello().runner_epoch;
        // Not idle while somebody is connected, however silent.
        tokio::time::sleep(Duration::from_secs(3)).await;
        client.list(None, 1).await.unwrap();
        // Nor while a job runs, though nobody is connected.
        let id = started(&client, &sh(&ground.file("work"), "k", "exec sleep 4")).await.job_id;
        drop(client);
        no_session(&ground).await;
        assert!(runner.wait().expect("an idle runner ends").success());
        assert!(!ground.home.path().join("runner.sock").exists());
        let client = way.client().await;
        let other = Orphan::of(&client);
        assert!(client.hello().runner_epoch > epoch);
        assert_eq!(client.job(id, Until::Now, Duration::ZERO).await.unwrap().state, State::Settled);
        drop(client);
        no_session(&ground).await;
        other.end();
    });
}

/// What the first read of a connection says, where it is none.
async fn first_read(words: &[&std::ffi::OsStr]) -> String {
    use tokio::io::AsyncReadExt as _;
    let way = Way::to(Address::exec(words.iter().copied()).unwrap());
    let mut stream = dial(&way.address, &way.options).await.unwrap();
    assert!(way.try_client().await.is_err());
    stream.read_u8().await.unwrap_err().to_string()
}

#[test]
fn what_connect_says_is_what_the_caller_is_told() {
    let ground = Ground::new("connect");
    let home = ground.home.path().as_os_str();
    let connect = |last: &'static [&'static str]| {
        let first = [PROGRAM.as_ref(), "connect".as_ref(), "--home".as_ref(), home];
        first.into_iter().chain(last.iter().map(std::ffi::OsStr::new)).collect::<Vec<_>>()
    };
    play(async {
        let told = first_read(&connect(&["--no-start"])).await;
        assert!(told.contains("exit status: 1") && told.contains("--no-start was given"), "{told}");
        let told = first_read(&["sh", "-c", "outlast-hand-elsewhere connect"].map(AsRef::as_ref)).await;
        assert!(told.contains("exit status: 127") && told.contains("not found"), "{told}");
        // One that has no socket: nothing can be joined, and no second one can be started.
        new_token(&ground, &[]);
        let tokens = ground.file("tokens").display().to_string();
        let runner = Runner::serve(&ground, &["--listen", "tls:127.0.0.1:0", "--token-file", &tokens]);
        let told = first_read(&connect(&[])).await;
        assert!(told.contains("start it with `--listen unix`"), "{told}");
        runner.end();
    });
}

/// The variable by which the test below knows that its `ssh` is the one beside this file.
const INSIDE: &str = "OUTLAST_TEST_SSH_HOME";

#[test]
fn the_address_of_ssh_reaches_a_home_whatever_its_name() {
    if let Some(home) = std::env::var_os(INSIDE) {
        let home = home.into_string().unwrap();
        play(async {
            let way = Way::to(format!("ssh:box:{home}").parse().unwrap());
            let client = way.client().await;
            let runner = Orphan::of(&client);
            let work = PathBuf::from(&home).join("..").canonicalize().unwrap();
            let id = started(&client, &sh(&work, "k", "echo through")).await.job_id;
            settled(&client, id).await;
            let output = client.read(id, Read::default()).await.unwrap();
            assert_eq!(&output.body[..], b"through\n");
            drop(client);
            runner.end();
            // What `ssh` says where it cannot log in is what the caller is told.
            let nobody = Way::to("ssh:no-such-user@box".parse().unwrap()).try_client().await.unwrap_err();
            assert!(nobody.0.contains("ssh ended with") && nobody.0.contains("denied"), "{nobody:?}");
        });
        return;
    }
    let ground = Ground::new("ssh-address");
    let daemon = Daemon::start(&ground);
    // The address has no place for options: they go into the configuration, here by an `ssh` that is first on the path.
    let bin = ground.file("bin");
    std::fs::create_dir(&bin).unwrap();
    let script = format!(
        "#!/bin/sh\nexec {} -F '{}' \"$@\"\n",
        find("ssh").unwrap().display(),
        daemon.folder.join("client").display()
    );
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o755).open(bin.join("ssh")).unwrap();
    std::io::Write::write_all(&mut file, script.as_bytes()).unwrap();
    drop(file);
    std::fs::set_permissions(bin.join("ssh"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let home = ground.file("a home's $(folder)");
    let mut inside = std::process::Command::new(std::env::current_exe().unwrap());
    inside.args(["--exact", "ssh::the_address_of_ssh_reaches_a_home_whatever_its_name", "--nocapture"]);
    inside.env(INSIDE, &home).env("PATH", format!("{}:{PATH}", bin.display()));
    let told = done(&mut inside);
    assert!(told.contains("1 passed"), "{told}");
    assert!(home.join("jobs").exists());
    wait_for("the end of its keepers", || {
        let of_home = |process: &Pid| {
            let words = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
            lives(*process)
                && words.windows(home.as_os_str().len()).any(|part| part == home.as_os_str().as_bytes())
        };
        (all_processes().find(of_home).is_none()).then_some(())
    });
}
