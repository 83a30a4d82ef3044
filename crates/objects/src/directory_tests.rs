use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::{Command, Stdio};

use super::*;
use crate::Objects;

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

async fn opened(path: &Path) -> (Directory, Objects) {
    (Directory::open(path).await.unwrap(), Objects::new(Directory::open(path).await.unwrap()))
}

fn drafts(path: &Path) -> usize {
    std::fs::read_dir(path.join(TEMP)).unwrap().count()
}

#[tokio::test]
async fn an_interrupted_writer_leaves_what_nobody_sees_and_tidying_removes() {
    let dir = tempfile::tempdir().unwrap();
    let (directory, objects) = opened(dir.path()).await;
    let (a, content) = (name("a/b"), Bytes::from_static(b"whole"));

    // As if the power went after the bytes were written and before they had their name: the lock goes with the writer.
    let mut draft = Draft::write(&directory.root.temp, b"never published").unwrap();
    draft.published = true;
    drop(draft);

    assert_eq!(drafts(dir.path()), 1);
    assert_eq!(objects.head(&a).await.unwrap(), None);
    assert!(objects.list(None, None, 10).await.unwrap().entries.is_empty());
    assert!(!objects.put(&a, content.clone()).await.unwrap().existed);

    assert_eq!(objects.tidy(Duration::from_secs(3600)).await.unwrap(), 0);
    assert_eq!(drafts(dir.path()), 1);
    assert_eq!(objects.tidy(Duration::ZERO).await.unwrap(), 1);
    assert_eq!(objects.tidy(Duration::ZERO).await.unwrap(), 0);
    assert_eq!(drafts(dir.path()), 0);
    assert_eq!(objects.get(&a).await.unwrap(), content);
}

#[tokio::test]
async fn tidying_leaves_a_writer_at_work_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (directory, objects) = opened(dir.path()).await;
    let root = &directory.root;
    let mut draft = Draft::write(&root.temp, b"slow").unwrap();
    assert_eq!(objects.tidy(Duration::ZERO).await.unwrap(), 0);
    draft.publish(&root.fd, "slow").unwrap();
    drop(draft);
    assert_eq!(objects.get(&name("slow")).await.unwrap(), "slow");
    assert_eq!(objects.tidy(Duration::ZERO).await.unwrap(), 0);
}

#[tokio::test]
async fn drafts_are_removed_whatever_came_of_them() {
    let dir = tempfile::tempdir().unwrap();
    let (directory, objects) = opened(dir.path()).await;
    objects.put(&name("a"), Bytes::from_static(b"1")).await.unwrap();
    objects.put(&name("a"), Bytes::from_static(b"2")).await.unwrap_err();
    // Lost against a writer that came between the look and the name.
    let root = &directory.root;
    let mut draft = Draft::write(&root.temp, b"3").unwrap();
    assert_eq!(draft.publish(&root.fd, "a"), Err(Errno::EXIST));
    drop(draft);
    assert_eq!(objects.get(&name("a")).await.unwrap(), "1");
    assert_eq!(drafts(dir.path()), 0);
}

#[tokio::test]
async fn nobody_else_may_look() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("new/root");
    let (_, objects) = opened(&path).await;
    objects.put(&name("a/b/c"), Bytes::from_static(b"x")).await.unwrap();
    let mode = |below: &str| std::fs::metadata(path.join(below)).unwrap().permissions().mode() & 0o7777;
    for folder in ["..", "", TEMP, "a+", "a+/b+"] {
        assert_eq!(mode(folder), 0o700, "{folder}");
    }
    assert_eq!(mode("a+/b+/c"), 0o600);
}

#[tokio::test]
async fn what_is_no_object_is_damage_to_readers_and_nothing_to_lists() {
    let dir = tempfile::tempdir().unwrap();
    let (_, objects) = opened(dir.path()).await;
    let at = |below: &str| dir.path().join(below);
    std::fs::write(at("outside"), b"secret").unwrap();
    symlink(at("outside"), at("link")).unwrap();
    std::fs::create_dir(at("folder")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, at("fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    std::fs::create_dir(at("elsewhere")).unwrap();
    symlink(at("elsewhere"), at("linked+")).unwrap();
    std::fs::write(at("file+"), b"").unwrap();
    for foreign in ["Capital", "a b", "+", "x+y"] {
        std::fs::write(at(foreign), b"").unwrap();
    }
    for taken in ["link", "folder", "fifo", "linked/x", "file/x"].map(name) {
        assert!(matches!(objects.get(&taken).await, Err(ObjectError::Damaged { .. })), "{taken}");
        assert!(matches!(objects.head(&taken).await, Err(ObjectError::Damaged { .. })), "{taken}");
        let put = objects.put(&taken, Bytes::from_static(b"x")).await;
        assert!(matches!(put, Err(ObjectError::Damaged { .. })), "{taken}: {put:?}");
    }
    let listed = objects.list(None, None, 100).await.unwrap();
    assert_eq!(listed.entries.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>(), ["outside"]);
    for folder in ["linked", "file"] {
        assert!(objects.list(Some(&name(folder)), None, 100).await.unwrap().entries.is_empty());
    }
    assert_eq!(std::fs::read(at("outside")).unwrap(), b"secret");
    assert_eq!(std::fs::read_dir(at("elsewhere")).unwrap().count(), 0);
}

#[tokio::test]
async fn empty_folders_go_with_their_last_object() {
    let dir = tempfile::tempdir().unwrap();
    let (_, objects) = opened(dir.path()).await;
    for text in ["a/b/c", "a/d"] {
        objects.put(&name(text), Bytes::new()).await.unwrap();
    }
    objects.delete(&name("a/b/c")).await.unwrap();
    assert!(!dir.path().join("a+/b+").exists() && dir.path().join("a+/d").exists());
    objects.delete(&name("a/d")).await.unwrap();
    assert!(!dir.path().join("a+").exists() && dir.path().join(TEMP).exists());
}

#[tokio::test]
async fn a_folder_is_synced_again_once_it_is_another() {
    let dir = tempfile::tempdir().unwrap();
    let (directory, _) = opened(dir.path()).await;
    let root = &directory.root;
    let known = || root.synced.lock().unwrap().get("a+").copied();
    // A young folder is not remembered, so the way is made until it is.
    let remembered = |other_than: Option<Identity>| {
        loop {
            root.make_way(&name("a/b")).unwrap();
            if known().is_some() && known() != other_than {
                return known();
            }
            std::thread::yield_now();
        }
    };
    root.make_way(&name("a/b")).unwrap();
    assert!(known().is_none());
    let first = remembered(None);
    root.make_way(&name("a/c")).unwrap();
    assert!(known() == first);
    std::fs::remove_dir(dir.path().join("a+")).unwrap();
    assert!(remembered(first) != first);
}

#[tokio::test]
async fn after_a_failed_sync_of_a_folder_nothing_more_is_promised() {
    let dir = tempfile::tempdir().unwrap();
    let (directory, _) = opened(dir.path()).await;
    let root = Arc::clone(&directory.root);
    let objects = Objects::new(directory);
    objects.put(&name("a"), Bytes::from_static(b"x")).await.unwrap();
    root.sync_failed.store(true, Ordering::Release);
    for error in [
        objects.put(&name("a"), Bytes::from_static(b"x")).await.unwrap_err(),
        objects.delete(&name("a")).await.unwrap_err(),
    ] {
        assert!(matches!(error, ObjectError::Unavailable { retryable: false, .. }), "{error:?}");
    }
    assert_eq!(objects.get(&name("a")).await.unwrap(), "x");
}

/// What a writer puts under the number `i`: its length and every byte tell whether it is whole.
fn content(i: u64) -> Bytes {
    vec![(i % 251) as u8; 1 + (i as usize * 7919) % 200_000].into()
}

const KILLED_STORE: &str = "OUTLAST_OBJECTS_TEST_STORE";

/// The writer of the test below, in a process of its own; run alone it does nothing.
#[tokio::test]
async fn a_writer_to_be_killed() {
    let Some(path) = std::env::var_os(KILLED_STORE) else { return };
    let (_, objects) = opened(Path::new(&path)).await;
    for i in 0.. {
        objects.put(&name(&format!("n{}/{i}", i % 3)), content(i)).await.unwrap();
        println!("put {i}");
    }
}

#[tokio::test]
async fn a_killed_writer_leaves_whole_objects_and_all_that_it_was_told_of() {
    use std::io::{BufRead as _, BufReader};

    let dir = tempfile::tempdir().unwrap();
    for round in 0..5 {
        let mut writer = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "directory::tests::a_writer_to_be_killed", "--nocapture", "--quiet"])
            .env(KILLED_STORE, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(writer.stdout.take().unwrap()).lines();
        let mut told = 0;
        for line in lines.map_while(Result::ok) {
            if let Some(number) = line.strip_prefix("put ") {
                told = number.parse().unwrap();
                // The objects of earlier rounds are there, so it is beyond them that the writer writes.
                if told > 20 * (round + 1) {
                    break;
                }
            }
        }
        writer.kill().unwrap();
        writer.wait().unwrap();

        let (_, objects) = opened(dir.path()).await;
        let page = objects.list(None, None, 1000).await.unwrap();
        assert!(!page.more && page.entries.len() as u64 > told);
        for entry in page.entries {
            let number = entry.name.as_str().rsplit('/').next().unwrap().parse().unwrap();
            assert!(objects.get(&entry.name).await.unwrap() == content(number), "{}", entry.name);
        }
        objects.tidy(Duration::ZERO).await.unwrap();
        assert_eq!(drafts(dir.path()), 0);
    }
}

/// Figures, for whoever wants them: `cargo test --release -p outlast-objects -- --ignored --nocapture figures`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it measures"]
async fn figures() {
    let dir = tempfile::tempdir_in(std::env::var_os("OUTLAST_OBJECTS_DIR").unwrap_or(".".into())).unwrap();
    let (_, objects) = opened(dir.path()).await;
    for writers in [1_u64, 4, 16] {
        let count = 400_u64;
        let bytes = Bytes::from(vec![7; 64 * 1024]);
        let mut took = Vec::new();
        for reads in [false, true] {
            let before = std::time::Instant::now();
            let mut tasks = tokio::task::JoinSet::new();
            for writer in 0..writers {
                let (objects, bytes) = (objects.clone(), bytes.clone());
                tasks.spawn(async move {
                    for i in 0..count / writers {
                        let at = name(&format!("w{writers}/job-{writer}/{i}"));
                        if reads {
                            assert_eq!(objects.get(&at).await.unwrap().len(), bytes.len());
                        } else {
                            objects.put(&at, bytes.clone()).await.unwrap();
                        }
                    }
                });
            }
            tasks.join_all().await;
            took.push(count as f64 / before.elapsed().as_secs_f64());
        }
        println!("{writers} at once: {:.0} put/s, {:.0} get/s of 64 KiB", took[0], took[1]);
    }
}
