//! A PostgreSQL cluster of the test's own, below the target folder, gone with it.

use outlast_store::Location;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Who runs it where the test is root, which PostgreSQL refuses to be.
const NOBODY: u32 = 65534;

pub(crate) struct Cluster {
    folder: tempfile::TempDir,
    programs: PathBuf,
    port: u16,
}

fn programs() -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = versions.map(|version| version.path().join("bin")).collect();
    found.retain(|folder| folder.join("pg_ctl").exists());
    found.sort();
    found
        .pop()
        .expect("this test needs postgresql: sudo apt-get install -y --no-install-recommends postgresql")
}

impl Cluster {
    /// `settings` as `postgres -c` takes them.
    pub(crate) fn start(name: &str, settings: &[&str]) -> Cluster {
        let folder = tempfile::Builder::new()
            .prefix(&format!("postgres-{name}-"))
            .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
            .unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        if rustix::process::geteuid().is_root() {
            chown(folder.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        let mut cluster = Cluster { folder, programs: programs(), port: 0 };
        let data = cluster.data();
        cluster.run(
            "initdb",
            &["-D", &data, "-U", "outlast", "-A", "trust", "-E", "UTF8", "--no-sync", "--locale=C"],
        );
        // A port that was free a moment ago may be somebody's by now: another one then.
        for _ in 0..20 {
            let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            cluster.port = free.local_addr().unwrap().port();
            drop(free);
            if cluster.up(settings) {
                return cluster;
            }
        }
        panic!("{}", std::fs::read_to_string(cluster.folder.path().join("log")).unwrap_or_default());
    }

    fn data(&self) -> String {
        self.folder.path().join("data").display().to_string()
    }

    fn command(&self, program: &str) -> Command {
        let path = self.programs.join(program);
        let mut command = if rustix::process::geteuid().is_root() {
            let mut command = Command::new("setpriv");
            command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--"]).arg(path);
            command
        } else {
            Command::new(path)
        };
        command.current_dir(self.folder.path()).stdin(Stdio::null()).env("LC_ALL", "C");
        command
    }

    fn run(&self, program: &str, arguments: &[&str]) {
        let done = self.command(program).args(arguments).output().unwrap();
        assert!(done.status.success(), "{program}: {}", String::from_utf8_lossy(&done.stderr));
    }

    /// Starts it; `false` where it does not start, which is a port that is taken.
    fn up(&self, settings: &[&str]) -> bool {
        let more: String = settings.iter().map(|setting| format!(" -c {setting}")).collect();
        let settings =
            format!("-c listen_addresses=127.0.0.1 -c port={} -c unix_socket_directories={more}", self.port);
        let (data, log) = (self.data(), self.folder.path().join("log").display().to_string());
        let started = self
            .command("pg_ctl")
            .args(["-D", &data, "-l", &log, "-w", "-o", &settings, "start"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        started.success()
    }

    /// Kills it, as a machine that loses power kills a process; and starts it again.
    pub(crate) fn crash(&self) {
        let data = self.data();
        let pid = std::fs::read_to_string(Path::new(&data).join("postmaster.pid")).unwrap();
        let pid: i32 = pid.lines().next().unwrap().trim().parse().unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        while rustix::process::test_kill_process(pid).is_ok() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        // Its workers notice, and go, before another may have the data.
        let since = std::time::Instant::now();
        while !self.up(&[]) {
            assert!(since.elapsed() < std::time::Duration::from_secs(60), "it does not start again");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }

    fn url(&self, database: &str) -> String {
        format!("postgres://outlast@127.0.0.1:{}/{database}", self.port)
    }

    /// A database of this name, new and empty.
    pub(crate) async fn database(&self, name: &str) -> Location {
        let name = name.replace("::", "_");
        let (client, connection) =
            tokio_postgres::connect(&self.url("postgres"), tokio_postgres::NoTls).await.unwrap();
        let driver = tokio::spawn(connection);
        client.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
        drop(client);
        let _ = driver.await;
        Location::Postgres(self.url(&name))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let data = self.data();
        if Path::new(&data).exists() {
            let _ = self.command("pg_ctl").args(["-D", &data, "-m", "immediate", "-w", "stop"]).output();
        }
    }
}
