//! What a store refuses to be opened as.

use crate::cluster::Cluster;
use crate::play;
use outlast_store::{Location, Store, StoreError};

#[test]
fn a_sqlite_file_has_one_owner() {
    play(async {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let place = Location::Sqlite(folder.path().join("store.db"));
        let first = Store::open(&place).await.unwrap();
        let Err(StoreError::Held { pid, .. }) = Store::open(&place).await else { panic!("two have it") };
        assert_eq!(pid, std::process::id().to_string());
        drop(first);
        // The last of its work may still be under way for a moment.
        let since = std::time::Instant::now();
        while Store::open(&place).await.is_err() {
            assert!(since.elapsed() < std::time::Duration::from_secs(20), "it is held for ever");
        }
    });
}

#[test]
fn a_store_of_a_later_version_is_left_as_it_is() {
    play(async {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = folder.path().join("store.db");
        drop(Store::open(&Location::Sqlite(path.clone())).await.unwrap());
        let file = rusqlite::Connection::open(&path).unwrap();
        file.execute("INSERT INTO migrations VALUES (99, 'later', '', 0)", []).unwrap();
        drop(file);
        let Err(error) = Store::open(&Location::Sqlite(path.clone())).await else { panic!("it was opened") };
        assert!(matches!(error, StoreError::TooNew { found: 99, .. }), "{error}");
        std::fs::write(&path, "no database at all, but long enough to be looked at as one would be").unwrap();
        let Err(error) = Store::open(&Location::Sqlite(path)).await else { panic!("it was opened") };
        assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
    });
}

#[test]
fn a_postgres_that_could_lose_records_is_refused() {
    let cluster = Cluster::start("unsafe", &["fsync=off"]);
    play(async {
        let Err(error) = Store::open(&cluster.database("unsafe").await).await else {
            panic!("it was opened")
        };
        assert!(matches!(error, StoreError::Setting { setting: "fsync", .. }), "{error}");
        let nowhere = Location::Postgres("postgres://nobody@127.0.0.1:9/none".to_owned());
        let Err(error) = Store::open(&nowhere).await else { panic!("it was opened") };
        assert!(error.is_retryable(), "{error:?}");
    });
}
