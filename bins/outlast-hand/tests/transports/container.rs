//! A hand in a container: `podman exec -i BOX outlast-hand connect` is the connection.
//!
//! The image is made here, of `busybox` and the program under test. Podman refuses machines with cgroups of both
//! generations ("cgroups in hybrid mode not supported"), so it gets a mount namespace of its own, in which only the second
//! is mounted; its state lies in the ground's folder and in file systems that go with the namespace.

use crate::ground::{Ground, LONG, all_processes, lives, wait_for};
use crate::support::*;
use outlast_core::status::State;
use outlast_wire::address::Address;
use outlast_wire::client::{Until, request_id};
use outlast_wire::verbs::Settle;
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Where the home is inside.
const HOME: &str = "/outlast/home";

/// Podman on an engine of its own, with one image.
struct Engine {
    /// Holds the mount namespace.
    held: Held,
    folder: PathBuf,
    group: String,
}

static ENGINES: AtomicU32 = AtomicU32::new(0);

impl Engine {
    #[track_caller]
    fn start(ground: &Ground) -> Engine {
        needs(&[
            "podman", "crun", "conmon", "busybox", "tar", "unshare", "nsenter", "setpriv", "mount", "umount",
        ]);
        let folder = ground.file("engine");
        std::fs::create_dir_all(folder.join("box")).unwrap();
        let configuration = "[containers]\npids_limit = 0\nnetns = \"none\"\nlog_driver = \"k8s-file\"\n\
             default_ulimits = [\"nofile=1024:1024\", \"nproc=1024:1024\"]\n\
             [engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"none\"\nlock_type = \"file\"\nruntime = \"crun\"\n";
        std::fs::write(folder.join("containers.conf"), configuration).unwrap();
        let script = "umount -l /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && \
                      for dir in /run /dev/shm /var/tmp /var/lib/containers; do \
                          [ ! -d $dir ] || mount -t tmpfs none $dir || exit; \
                      done && : >\"$1\" && exec sleep infinity";
        let mut namespace = tool("unshare");
        namespace.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]);
        namespace.arg(folder.join("mounted"));
        let held = Held::start(&mut mortal(&namespace));
        wait_for("the mounts", || folder.join("mounted").exists().then_some(()));
        let number = ENGINES.fetch_add(1, Ordering::SeqCst);
        let group = format!("outlast-test-{}-{number}", std::process::id());
        let engine = Engine { held, folder, group };
        engine.make_image();
        engine
    }

    fn make_image(&self) {
        let root = self.folder.join("root");
        for name in ["bin", "tmp", "proc", "sys", "dev", "outlast"] {
            std::fs::create_dir_all(root.join(name)).unwrap();
        }
        std::fs::copy(find("busybox").unwrap(), root.join("bin/busybox")).unwrap();
        for name in ["sh", "cat", "head", "sleep", "echo"] {
            std::os::unix::fs::symlink("busybox", root.join("bin").join(name)).unwrap();
        }
        std::fs::copy(PROGRAM, root.join("bin/outlast-hand")).unwrap();
        let mut tar = tool("tar");
        tar.arg("-C").arg(&root).args(["-cf"]).arg(self.folder.join("root.tar")).arg(".");
        done(&mut tar);
        self.podman(&["import", "-q", &self.folder.join("root.tar").display().to_string(), "outlast-box"]);
        std::fs::remove_dir_all(root).unwrap();
        std::fs::remove_file(self.folder.join("root.tar")).unwrap();
    }

    /// `podman` with words of its own, in the engine's namespace.
    fn words(&self, words: &[&str]) -> Vec<String> {
        let at = |name: &str| self.folder.join(name).display().to_string();
        let nsenter = find("nsenter").unwrap().display().to_string();
        let target = self.held.id().to_string();
        let environment = format!("CONTAINERS_CONF={}", at("containers.conf"));
        let first = [
            &nsenter,
            "--mount",
            "--target",
            &target,
            "env",
            "-i",
            &environment,
            &format!("PATH={PATH}"),
            "podman",
        ];
        // What must have a short name lies in the namespace's own /run, and goes with it.
        let root = at("storage");
        let own =
            ["--root", &root, "--runroot", "/run/box", "--tmpdir", "/run/tmp", "--storage-driver", "vfs"];
        first.iter().chain(&own).chain(words).map(|word| (*word).to_owned()).collect()
    }

    #[track_caller]
    fn podman(&self, words: &[&str]) -> String {
        let words = self.words(words);
        done(Command::new(&words[0]).args(&words[1..]).env("PATH", PATH))
    }

    /// Runs a box whose home is the folder `box`, so that what is in it can be seen from here.
    fn run(&self) {
        let volume = format!("{}:/outlast", self.folder.join("box").display());
        let group = format!("/{}", self.group);
        let run = [
            "run",
            "-d",
            "--name",
            "box",
            "--privileged",
            "--init=false",
            "--cgroup-parent",
            &group,
            "-v",
            &volume,
        ];
        let what = ["-e", &format!("OUTLAST_HOME={HOME}"), "outlast-box", "sleep", "100000"];
        self.podman(&[&run[..], &what[..]].concat());
    }

    /// By exec; the process that it is goes into the file `pids`.
    fn by_exec(&self) -> Way {
        let script = r#"echo $$ >>"$0"; exec "$@""#;
        let pids = self.folder.join("pids").display().to_string();
        let first = ["sh", "-c", script, &pids].map(str::to_owned);
        let exec = self.words(&["exec", "-i", "box", "outlast-hand", "connect"]);
        Way::to(Address::exec(first.into_iter().chain(exec)).unwrap())
    }

    fn last_exec(&self) -> Pid {
        let pids = std::fs::read_to_string(self.folder.join("pids")).unwrap();
        Pid::from_raw(pids.lines().last().unwrap().parse().unwrap()).unwrap()
    }

    /// Processes of `outlast-hand connect` in the box.
    fn connects(&self) -> usize {
        let is_one = |process: &Pid| {
            let read = |name: &str| std::fs::read(format!("/proc/{process}/{name}")).unwrap_or_default();
            read("cmdline") == b"outlast-hand\0connect\0"
                && String::from_utf8_lossy(&read("cgroup")).contains(&self.group)
        };
        all_processes().filter(is_one).count()
    }

    /// By the socket in the folder that the box shares with this machine.
    fn by_socket(&self) -> Way {
        Way::to(Address::Unix(self.folder.join("box/home/runner.sock")))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let words = self.words(&["rm", "--force", "--time", "0", "--all"]);
        let removed = Command::new(&words[0]).args(&words[1..]).env("PATH", PATH).output();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        if let Some(mount) =
            mounts.lines().find(|line| line.contains(" - cgroup2 ")).and_then(|line| line.split(' ').nth(4))
        {
            let group = Path::new(mount).join(&self.group);
            let gone = crate::ground::wait_within(LONG, &mut || {
                remove_groups(&group);
                (!group.exists()).then_some(())
            });
            if gone.is_none() && !std::thread::panicking() {
                panic!("{} is left after {removed:?}", group.display());
            }
        }
    }
}

/// Removes a cgroup and those below it, the lowest first.
fn remove_groups(group: &Path) {
    for entry in std::fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_groups(&entry.path());
        }
    }
    let _ = std::fs::remove_dir(group);
}

#[test]
fn a_container_is_a_hand_by_exec_and_by_a_second_channel() {
    let ground = Ground::new("container");
    let engine = Engine::start(&ground);
    engine.run();
    let (by_exec, by_socket) = (engine.by_exec(), engine.by_socket());
    play(async {
        let client = by_exec.client().await;
        eprintln!("containment inside: {:?}", client.hello().containment);
        let work = Path::new("/tmp");
        // A command inside.
        let id =
            started(&client, &sh(work, "inside", "echo $$ $PWD; cat /bin/outlast-hand | head -c 3000000"))
                .await
                .job_id;
        let mut reader = Reader::default();
        reader.read(&client, id, usize::MAX).await.unwrap();
        reader.is_whole(&settled(&client, id).await);
        let first = String::from_utf8_lossy(&reader.bytes[..20]).into_owned();
        let pid: u32 = first.split(' ').next().unwrap().parse().unwrap();
        assert!(pid < 1000 && first.contains("/tmp"), "{first}");

        // The exec is killed: a connection and nothing else.
        let id = started(&client, &sh(work, "flows", &pieces(40, 100_000, "0.05"))).await.job_id;
        let mut reader = Reader::default();
        reader.read(&client, id, 300_000).await.unwrap();
        kill_process(engine.last_exec(), Signal::KILL).unwrap();
        let began = Instant::now();
        let lost = reader.read(&client, id, usize::MAX).await.unwrap_err();
        assert!(lost.is_of_connection() && began.elapsed() < Duration::from_secs(10), "{}", chain(&lost));

        // A second channel to the same runner, and the same records: the reader continues on it.
        let second = by_socket.client().await;
        assert_eq!(second.hello().sandbox, client.hello().sandbox);
        assert_eq!(second.hello().runner_epoch, client.hello().runner_epoch);
        reader.read(&second, id, usize::MAX).await.unwrap();
        reader.is_whole(&settled(&second, id).await);
        // A call whose answer was lost on the one is repeated on the other.
        let client = by_exec.client().await;
        let (request, admission) = (request_id().unwrap(), sh(work, "both", "exec sleep 600"));
        let one = client.admit(&request, &admission, Until::Started, LONG).await.unwrap();
        let other = second.admit(&request, &admission, Until::Started, LONG).await.unwrap();
        assert_eq!(one.job_id, other.job_id);
        stop_now(&second, one.job_id).await;
        assert!(client.job(one.job_id, Until::Now, Duration::ZERO).await.unwrap().receipt.is_some());
        // What the exec that was killed had begun inside does not stay: podman tells it of nothing, the runner's pings do.
        while engine.connects() > 1 {
            assert!(
                began.elapsed() < Duration::from_secs(50),
                "{} connects are left inside",
                engine.connects()
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        eprintln!("the other end of the exec that was killed went after {:?}", began.elapsed());
        client.list(None, 1).await.unwrap();
    });
}

#[test]
fn a_container_that_is_stopped_ends_its_jobs_and_they_are_told_of_when_it_is_there_again() {
    let ground = Ground::new("container-stopped");
    let engine = Engine::start(&ground);
    engine.run();
    let way = engine.by_exec();
    play(async {
        let client = way.client().await;
        let id = started(&client, &sh(Path::new("/tmp"), "k", "echo begun; exec sleep 600")).await.job_id;
        let mut reader = Reader::default();
        reader.read(&client, id, 6).await.unwrap();
        let sandbox = client.hello().sandbox.clone();
        let waits = tokio::spawn(async move {
            let began = Instant::now();
            let lost = client.job(id, Until::Settled, Duration::from_secs(50)).await;
            (lost, began.elapsed())
        });
        tokio::time::sleep(Duration::from_millis(300)).await;
        engine.podman(&["stop", "--time", "0", "box"]);
        let (lost, after) = waits.await.unwrap();
        let lost = lost.unwrap_err();
        eprintln!("stopped, after {after:?}: {}", chain(&lost));
        assert!(lost.is_of_connection() && after < Duration::from_secs(15), "{after:?}: {}", chain(&lost));
        // While it is away, nobody can be reached by either channel.
        let away = way.try_client().await.unwrap_err();
        assert!(away.0.contains("container state improper") || away.0.contains("not running"), "{away:?}");
        let away = engine.by_socket().try_client().await.unwrap_err();
        assert!(away.0.contains("refused"), "{away:?}");

        engine.podman(&["start", "box"]);
        let client = way.client().await;
        assert_eq!(client.hello().sandbox, sandbox, "the home is the same");
        // Never a success, and never a death that nobody saw: what kept the job died with everything that could tell.
        let view = client.job(id, Until::Settled, Duration::from_secs(2)).await.unwrap();
        assert_eq!(view.state, State::Unknown, "{view:?}");
        let request = || request_id().unwrap();
        let settled = client.settle(&request(), id, &Settle::Asked).await.unwrap();
        eprintln!("after the restart: {}; asked to settle it: {settled:?}", view.because);
        let admission = sh(Path::new("/tmp"), "k", "echo begun; exec sleep 600");
        let same = client.admit(&request(), &admission, Until::Now, Duration::ZERO).await.unwrap();
        assert_eq!(same.job_id, id, "the command is not begun twice");
        // A person who knows that the container was stopped may say so.
        client.settle(&request(), id, &Settle::Attest { name: "operator".into() }).await.unwrap();
        assert!(client.job(id, Until::Now, Duration::ZERO).await.unwrap().attestation.is_some());
        let mut again = Reader::default();
        again.read(&client, id, 6).await.unwrap();
        assert_eq!(again.bytes, b"begun\n");
    });
    let pid = engine.last_exec();
    drop(engine);
    wait_for("the end of the last exec", || (!lives(pid)).then_some(()));
}
