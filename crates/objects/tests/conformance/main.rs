//! One suite over all stores: what the crate promises, asked of each of them.
#![allow(clippy::unwrap_used, clippy::panic)]

#[cfg(feature = "s3")]
mod bucket;
mod stores;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use outlast_objects::{
    Act, Digest, Hostile, LIST_AT_MOST, Memory, Meta, Name, OBJECT_AT_MOST, ObjectError, Objects, Plan,
};
use stores::Store;
use tokio::task::JoinSet;

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// Each case becomes a test of each store.
macro_rules! suite {
    ($($case:ident),* $(,)?) => {
        suite!(@store directory, stores::directory, $($case)*);
        suite!(@store memory, stores::memory, $($case)*);
        suite!(@store memory_versioned, stores::memory_versioned, $($case)*);
        suite!(@store hostile_at_rest, stores::hostile_at_rest, $($case)*);
        #[cfg(feature = "s3")]
        suite!(@store s3, stores::s3, $($case)*);
    };
    (@store $store:ident, $make:path, $($case:ident)*) => {
        mod $store {
            use super::*;
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    super::$case($make().await).await;
                }
            )*
        }
    };
}

suite!(
    what_is_put_is_got_and_stays,
    empty_objects_are_objects,
    objects_up_to_the_bound_and_none_beyond,
    ranges_are_short_at_the_end_and_refused_beyond,
    what_is_deleted_is_gone_and_may_come_again,
    versions_are_exact_or_refused,
    names_hostile_to_paths_are_names,
    an_object_may_be_where_others_are_below,
    lists_are_in_order_and_pages_meet,
    lists_agree_with_a_model,
    of_many_writers_of_one_name_one_decides,
    creations_and_deletions_in_one_folder_do_not_meet,
    failures_and_lies_never_become_a_wrong_answer,
    a_digest_tells_damage,
);

async fn what_is_put_is_got_and_stays(store: Store) {
    let objects = &store.objects;
    objects.check().await.unwrap();
    let at = name("output/job-1/000001.seg");
    assert!(matches!(objects.get(&at).await, Err(ObjectError::NotFound { name }) if name == at));
    assert_eq!(objects.head(&at).await.unwrap(), None);

    let first = objects.put(&at, bytes("one")).await.unwrap();
    assert!(!first.existed);
    assert_eq!(first.version.is_some(), store.versions);
    let again = objects.put(&at, bytes("one")).await.unwrap();
    assert!(again.existed);
    assert_eq!(again.version, first.version);
    for other in ["two", "on", "one\n", ""] {
        let refused = objects.put(&at, bytes(other)).await;
        assert!(matches!(refused, Err(ObjectError::Different { name }) if name == at), "{other:?}");
    }
    assert_eq!(objects.get(&at).await.unwrap(), "one");
    assert_eq!(objects.head(&at).await.unwrap(), Some(Meta { len: 3, version: first.version }));
    // Neither its beginning nor what would be below it is there.
    for near in ["output/job-1/000001", "output/job-1/000001.se", "output", "output/job-1"] {
        if !store.nests && !near.contains("000001") {
            continue;
        }
        assert_eq!(objects.head(&name(near)).await.unwrap(), None, "{near}");
        assert!(matches!(objects.get(&name(near)).await, Err(ObjectError::NotFound { .. })), "{near}");
    }
}

async fn empty_objects_are_objects(store: Store) {
    let (objects, at) = (&store.objects, name("nothing"));
    assert!(!objects.put(&at, Bytes::new()).await.unwrap().existed);
    assert!(objects.put(&at, Bytes::new()).await.unwrap().existed);
    assert!(matches!(objects.put(&at, bytes("x")).await, Err(ObjectError::Different { .. })));
    assert_eq!(objects.get(&at).await.unwrap(), "");
    assert_eq!(objects.head(&at).await.unwrap().unwrap().len, 0);
    assert_eq!(objects.get_range(&at, 0, 10).await.unwrap(), "");
    let beyond = objects.get_range(&at, 1, 1).await;
    assert!(matches!(beyond, Err(ObjectError::OutOfRange { start: 1, len: 0, .. })), "{beyond:?}");
    assert_eq!(objects.list(None, None, 10).await.unwrap().entries.len(), 1);
}

async fn objects_up_to_the_bound_and_none_beyond(store: Store) {
    let (objects, at) = (&store.objects, name("big/one"));
    let big: Bytes = (0..store.big).map(|i| (i / 251 + i) as u8).collect();
    assert!(!objects.put(&at, big.clone()).await.unwrap().existed);
    assert!(objects.get(&at).await.unwrap() == big);
    assert!(objects.put(&at, big.clone()).await.unwrap().existed);
    let last = objects.get_range(&at, big.len() as u64 - 5, 100).await.unwrap();
    assert_eq!(last, big[big.len() - 5..]);

    let beyond = name("big/two");
    let refused = objects.put(&beyond, vec![0; OBJECT_AT_MOST as usize + 1].into()).await.unwrap_err();
    assert!(matches!(refused, ObjectError::TooLarge { limit: OBJECT_AT_MOST, .. }), "{refused:?}");
    assert!(refused.to_string().contains("67108864"), "{refused}");
    assert_eq!(objects.head(&beyond).await.unwrap(), None);
}

async fn ranges_are_short_at_the_end_and_refused_beyond(store: Store) {
    let (objects, at) = (&store.objects, name("digits"));
    objects.put(&at, bytes("0123456789")).await.unwrap();
    for (start, len, expected) in [
        (0, 10, "0123456789"),
        (3, 4, "3456"),
        (9, 1, "9"),
        (9, 100, "9"),
        (0, u64::MAX, "0123456789"),
        (5, u64::MAX, "56789"),
        (4, 0, ""),
        (10, 0, ""),
        (10, 1, ""),
        (10, u64::MAX, ""),
    ] {
        assert_eq!(objects.get_range(&at, start, len).await.unwrap(), expected, "{start} {len}");
    }
    for (start, len) in [(11, 0), (11, 1), (1 << 40, 1), (u64::MAX, 0), (u64::MAX, u64::MAX)] {
        match objects.get_range(&at, start, len).await {
            Err(ObjectError::OutOfRange { name, start: told, len: 10 }) => {
                assert_eq!((name, told), (at.clone(), start))
            }
            other => panic!("{start} {len}: {other:?}"),
        }
    }
    for len in [0, 1] {
        let missing = objects.get_range(&name("missing"), 0, len).await;
        assert!(matches!(missing, Err(ObjectError::NotFound { .. })), "{missing:?}");
    }
}

async fn what_is_deleted_is_gone_and_may_come_again(store: Store) {
    let (objects, at) = (&store.objects, name("a/b/c/d"));
    objects.delete(&at).await.unwrap();
    objects.put(&at, bytes("one")).await.unwrap();
    objects.put(&name("a/other"), bytes("stays")).await.unwrap();
    objects.delete(&at).await.unwrap();
    objects.delete(&at).await.unwrap();
    assert!(matches!(objects.get(&at).await, Err(ObjectError::NotFound { .. })));
    assert_eq!(objects.head(&at).await.unwrap(), None);
    assert_eq!(objects.get(&name("a/other")).await.unwrap(), "stays");
    // What is immutable is an object, not a name.
    assert!(!objects.put(&at, bytes("two")).await.unwrap().existed);
    assert_eq!(objects.get(&at).await.unwrap(), "two");
}

async fn versions_are_exact_or_refused(store: Store) {
    let (objects, at) = (&store.objects, name("versioned"));
    let first = objects.put(&at, bytes("one")).await.unwrap().version;
    if !store.versions {
        assert!(matches!(objects.get_version(&at, "v1").await, Err(ObjectError::NoVersions)));
        return;
    }
    let first = first.unwrap();
    assert_eq!(objects.get_version(&at, &first).await.unwrap(), "one");
    objects.delete(&at).await.unwrap();
    let second = objects.put(&at, bytes("two")).await.unwrap().version.unwrap();
    assert_ne!(first, second);
    assert_eq!(objects.get_version(&at, &first).await.unwrap(), "one");
    assert_eq!(objects.get_version(&at, &second).await.unwrap(), "two");
    for unknown in ["", "v999", "no version at all"] {
        assert!(
            matches!(objects.get_version(&at, unknown).await, Err(ObjectError::NotFound { .. })),
            "{unknown}"
        );
    }
}

async fn names_hostile_to_paths_are_names(store: Store) {
    let objects = &store.objects;
    let longest = format!("{}/{}/{}", "x".repeat(200), "y".repeat(200), "z".repeat(110));
    let deepest = ["n"; 32].join("/");
    let mut names = vec![
        "-rf",
        "--",
        ".hidden",
        "con",
        "nul",
        "temp",
        "tmp/0",
        "a.tmp",
        "a.",
        "x/.y/z",
        "0",
        "_",
        "-/-",
        "etc/passwd",
        "lost.found",
        &deepest,
    ];
    if store.nests {
        names.push(&longest);
    }
    for &text in &names {
        assert!(!objects.put(&name(text), bytes(text)).await.unwrap().existed, "{text}");
    }
    for &text in &names {
        assert_eq!(objects.get(&name(text)).await.unwrap(), text);
    }
    let listed = objects.list(None, None, 100).await.unwrap();
    let listed: BTreeSet<String> = listed.entries.iter().map(|entry| entry.name.to_string()).collect();
    assert_eq!(listed, names.iter().map(|text| (*text).to_owned()).collect());
    for &text in &names {
        objects.delete(&name(text)).await.unwrap();
    }
    assert!(objects.list(None, None, 100).await.unwrap().entries.is_empty());
}

async fn an_object_may_be_where_others_are_below(store: Store) {
    if !store.nests {
        return;
    }
    let objects = &store.objects;
    for order in [["a/b/c", "a/b", "a"], ["a", "a/b", "a/b/c"]] {
        for text in order {
            assert!(!objects.put(&name(text), bytes(text)).await.unwrap().existed, "{text}");
        }
        for text in order {
            assert_eq!(objects.get(&name(text)).await.unwrap(), text);
        }
        objects.delete(&name("a/b")).await.unwrap();
        assert_eq!(objects.get(&name("a/b/c")).await.unwrap(), "a/b/c");
        objects.delete(&name("a")).await.unwrap();
        objects.delete(&name("a/b/c")).await.unwrap();
    }
}

/// All names of a list, read page by page.
async fn all(
    objects: &Objects,
    folder: Option<&Name>,
    after: Option<&Name>,
    limit: usize,
) -> Vec<(Name, u64)> {
    let (mut names, mut last) = (Vec::new(), after.cloned());
    loop {
        let page = objects.list(folder, last.as_ref(), limit).await.unwrap();
        assert!(page.entries.len() <= limit, "{limit}");
        assert!(!page.more || !page.entries.is_empty(), "an empty page leads nowhere");
        names.extend(page.entries.iter().map(|entry| (entry.name.clone(), entry.len)));
        if !page.more {
            return names;
        }
        last = page.entries.last().map(|entry| entry.name.clone());
    }
}

async fn lists_are_in_order_and_pages_meet(store: Store) {
    let objects = &store.objects;
    // In the order of bytes: `-` and `.` come before `/`, digits, `_` and letters after it.
    let ordered = ["a-b", "a.b", "a/b", "a/c/d", "a/c/e", "a/d", "a0", "a_b", "ab/x", "b"];
    for (len, text) in ordered.iter().enumerate().rev() {
        objects.put(&name(text), vec![7; len].into()).await.unwrap();
    }
    let expected: Vec<(Name, u64)> =
        ordered.iter().enumerate().map(|(len, text)| (name(text), len as u64)).collect();
    for limit in [1, 2, 3, 9, 10, 11, LIST_AT_MOST] {
        assert_eq!(all(objects, None, None, limit).await, expected, "{limit}");
    }
    let below = |folder: &'static str, after: Option<&'static str>| async move {
        let after = after.map(name);
        let found = all(objects, Some(&name(folder)), after.as_ref(), 2).await;
        found.into_iter().map(|(name, _)| name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(below("a", None).await, ["a/b", "a/c/d", "a/c/e", "a/d"]);
    assert_eq!(below("a/c", None).await, ["a/c/d", "a/c/e"]);
    assert_eq!(below("a", Some("a/c")).await, ["a/c/d", "a/c/e", "a/d"]);
    assert_eq!(below("a", Some("a/c/d")).await, ["a/c/e", "a/d"]);
    assert_eq!(below("a", Some("a-")).await, ["a/b", "a/c/d", "a/c/e", "a/d"]);
    assert!(below("a", Some("a0")).await.is_empty());
    assert!(below("a/b", None).await.is_empty());
    assert!(below("nowhere/at/all", None).await.is_empty());
    assert_eq!(objects.list(None, Some(&name("zzz")), 5).await.unwrap().entries, []);
    // A limit of nothing is one of one, and one beyond the bound is the bound.
    assert_eq!(objects.list(None, None, 0).await.unwrap().entries.len(), 1);
    assert_eq!(objects.list(None, None, usize::MAX).await.unwrap().entries.len(), ordered.len());
}

async fn lists_agree_with_a_model(store: Store) {
    let mut state = 11_u64;
    let mut draw = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    // Names that end in `x` are objects and others folders, since not every store here has both under one name.
    let parts = ["d", "d-", "d.", "d0", "d_", "e"];
    let mut model: BTreeMap<Name, u64> = BTreeMap::new();
    for _ in 0..60 {
        let mut text = String::new();
        for _ in 0..draw(3) {
            text.push_str(parts[draw(6) as usize]);
            text.push('/');
        }
        text.push_str(parts[draw(6) as usize]);
        let at = name(&format!("{text}x"));
        if draw(5) == 0 {
            model.remove(&at);
            store.objects.delete(&at).await.unwrap();
        } else {
            let len = *model.entry(at.clone()).or_insert_with(|| draw(50));
            store.objects.put(&at, vec![1; len as usize].into()).await.unwrap();
        }
    }
    assert!(model.len() > 20);
    for limit in [1, 7, 100] {
        let all = all(&store.objects, None, None, limit).await;
        assert_eq!(all, model.clone().into_iter().collect::<Vec<_>>(), "{limit}");
    }
    for folder in ["d", "d-", "d/d", "e/e", "d."].map(name) {
        for after in ["d", "d-/d", "d/d", "d/d/", "d/e", "e"].map(|text| name(text.trim_end_matches('/'))) {
            let expected = model.iter().filter(|(at, _)| at.is_below(&folder) && **at > after);
            let expected: Vec<(Name, u64)> = expected.map(|(at, len)| (at.clone(), *len)).collect();
            assert_eq!(
                all(&store.objects, Some(&folder), Some(&after), 3).await,
                expected,
                "{folder} {after}"
            );
        }
    }
}

async fn of_many_writers_of_one_name_one_decides(store: Store) {
    for round in 0..6 {
        let at = name(&format!("race/{round}/here"));
        let content = |writer: usize| Bytes::from(vec![b'a' + (writer % 4) as u8; 20_000]);
        let mut writers = JoinSet::new();
        for writer in 0..16 {
            let (objects, at) = (store.objects.clone(), at.clone());
            writers.spawn(async move { (writer, objects.put(&at, content(writer)).await) });
        }
        let (objects, reader_at) = (store.objects.clone(), at.clone());
        let reader = tokio::spawn(async move {
            let mut seen = BTreeSet::new();
            for _ in 0..20 {
                match objects.get(&reader_at).await {
                    Ok(bytes) => _ = seen.insert(bytes),
                    Err(ObjectError::NotFound { .. }) => {}
                    Err(error) => panic!("{error:?}"),
                }
            }
            seen
        });
        let answers = writers.join_all().await;
        let stored = store.objects.get(&at).await.unwrap();
        let mut made = 0;
        for (writer, answer) in answers {
            match answer {
                Ok(put) => {
                    assert_eq!(content(writer), stored);
                    made += usize::from(!put.existed);
                }
                Err(ObjectError::Different { .. }) => assert_ne!(content(writer), stored),
                Err(error) => panic!("{error:?}"),
            }
        }
        assert_eq!(made, 1, "one of them made it");
        assert!(
            reader.await.unwrap().iter().all(|seen| *seen == stored),
            "a part of it, or another, was seen"
        );
    }
}

async fn creations_and_deletions_in_one_folder_do_not_meet(store: Store) {
    if !store.nests {
        // The folders of that server are removed under its own writers.
        return;
    }
    let mut workers = JoinSet::new();
    for worker in 0..8 {
        let objects = store.objects.clone();
        workers.spawn(async move {
            for turn in 0..25 {
                let at = name(&format!("deep/er/folder-{}/{worker}-{turn}", turn % 2));
                assert!(!objects.put(&at, bytes("x")).await.unwrap().existed);
                assert_eq!(objects.get(&at).await.unwrap(), "x");
                objects.delete(&at).await.unwrap();
                assert_eq!(objects.head(&at).await.unwrap(), None);
            }
        });
    }
    workers.join_all().await;
    assert!(store.objects.list(None, None, 10).await.unwrap().entries.is_empty());
}

async fn failures_and_lies_never_become_a_wrong_answer(store: Store) {
    for seed in 0..8 {
        let at = name(&format!("seed-{seed}/object"));
        let mut writers = JoinSet::new();
        for writer in 0..4_u64 {
            let hostile = Hostile::new(store.backend.clone(), Plan::drawn(seed * 10 + writer, 60));
            let (objects, at) = (Objects::new(hostile), at.clone());
            writers.spawn(async move {
                let content = bytes(&format!("content {}", writer % 2));
                for _ in 0..200 {
                    match objects.put(&at, content.clone()).await {
                        Err(error) if error.is_retryable() => {}
                        answer => return (content, answer),
                    }
                }
                panic!("no answer in 200 tries");
            });
        }
        let answers = writers.join_all().await;
        let stored = store.objects.get(&at).await.unwrap();
        for (content, answer) in answers {
            match answer {
                Ok(_) => assert_eq!(content, stored, "seed {seed}"),
                Err(ObjectError::Different { .. }) => assert_ne!(content, stored, "seed {seed}"),
                Err(error) => panic!("seed {seed}: {error:?}"),
            }
        }
    }
}

async fn a_digest_tells_damage(store: Store) {
    let (objects, content) = (&store.objects, bytes("chunk"));
    let digest = Digest::of(&content);
    let at = name("chunks").join(&digest.to_string()).unwrap();
    objects.put(&at, content.clone()).await.unwrap();
    assert_eq!(objects.get_exact(&at, &digest).await.unwrap(), content);
    let damaged = objects.get_exact(&at, &Digest::of(b"other")).await;
    assert!(matches!(damaged, Err(ObjectError::Damaged { name, .. }) if name == at));
}

#[tokio::test(start_paused = true)]
async fn each_act_of_a_plan_does_what_it_says() {
    let inner = std::sync::Arc::new(Memory::new());
    let (truth, at) = (Objects::new(inner.clone()), name("a"));
    let planned =
        |acts: &[Act]| Objects::new(Hostile::new(inner.clone(), Plan::listed(acts.iter().copied())));

    let error = planned(&[Act::FailBefore]).put(&at, bytes("x")).await.unwrap_err();
    assert!(error.is_retryable());
    assert_eq!(truth.head(&at).await.unwrap(), None);

    // A store that insists on a taken name it does not have is not believed, and nothing is made up for it.
    let error = planned(&[Act::ClaimTaken; 8]).put(&at, bytes("x")).await.unwrap_err();
    assert!(error.is_retryable());
    assert_eq!(truth.head(&at).await.unwrap(), None);
    assert!(!planned(&[Act::ClaimTaken]).put(&at, bytes("x")).await.unwrap().existed);
    truth.delete(&at).await.unwrap();

    let lost_answer = planned(&[Act::FailAfter]);
    assert!(lost_answer.put(&at, bytes("x")).await.unwrap_err().is_retryable());
    assert_eq!(truth.get(&at).await.unwrap(), "x");
    assert!(lost_answer.put(&at, bytes("x")).await.unwrap().existed);

    let denying = planned(&[Act::ClaimAbsent; 3]);
    assert!(matches!(denying.get(&at).await, Err(ObjectError::NotFound { .. })));
    assert_eq!(denying.head(&at).await.unwrap(), None);
    assert!(denying.list(None, None, 1).await.unwrap().entries.is_empty());

    let before = tokio::time::Instant::now();
    assert_eq!(planned(&[Act::Delay(Duration::from_secs(5))]).get(&at).await.unwrap(), "x");
    assert_eq!(before.elapsed(), Duration::from_secs(5));

    assert!(planned(&[Act::FailAfter]).delete(&at).await.is_err());
    assert_eq!(truth.head(&at).await.unwrap(), None);
}

#[tokio::test]
async fn a_location_opens_what_it_names() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("not/yet/there");
    let objects = Objects::open(&format!("file:{}", path.display()).parse().unwrap()).await.unwrap();
    objects.put(&name("a/b"), bytes("x")).await.unwrap();
    let again = Objects::open(&path.to_str().unwrap().parse().unwrap()).await.unwrap();
    assert_eq!(again.get(&name("a/b")).await.unwrap(), "x");
    // A file is no place for a store.
    let error = Objects::open(&format!("{}/a+/b", path.display()).parse().unwrap()).await.unwrap_err();
    assert!(!error.is_retryable(), "{error:?}");
}
