//! One suite over all stores: what is promised of an operation is true of SQLite and of PostgreSQL.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod access;
mod cluster;
mod faults;
mod hands;
mod scene;
mod settings;
mod stops;
mod tasks;

use cluster::Cluster;
use outlast_store::{Location, Store};
use std::future::Future;
use std::pin::Pin;

type Case = (&'static str, fn(Store) -> Pin<Box<dyn Future<Output = ()> + Send>>);

/// Lists cases: each gets an empty store.
macro_rules! cases {
    ($($module:ident: $($name:ident),* $(,)?;)*) => {
        const CASES: &[Case] = &[$($((
            concat!(stringify!($module), "::", stringify!($name)),
            |store| Box::pin($module::$name(store)),
        )),*),*];
    };
}

cases! {
    access: tokens_are_known_by_their_hash, a_login_is_good_once, the_audit_is_a_chain;
    hands: one_worker_has_a_hand, a_lapsed_lease_is_taken_over_and_its_token_changes_nothing,
        a_hand_lives_longer_and_never_shorter, every_claim_is_one_workers;
    tasks: a_reservation_is_found_again, a_call_with_another_command_is_a_conflict, a_full_sandbox_names_its_tasks,
        reservations_at_once_take_no_place_too_many, other_tenants_find_nothing, output_tiles_the_log,
        an_end_and_its_event_are_one, a_carried_result_owes_nothing, a_read_result_is_not_announced,
        a_second_attempt_follows_a_proof, acknowledged_once;
    stops: a_stop_of_a_task_hits_it_once, a_stop_of_everything_closes_the_generation,
        a_stop_of_a_run_spares_what_is_handed_off, a_stop_races_a_reservation;
}

fn play(future: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(future);
}

#[test]
fn sqlite() {
    play(async {
        for (name, case) in CASES {
            let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
            println!("{name}");
            case(Store::open(&Location::Sqlite(folder.path().join("store.db"))).await.unwrap()).await;
        }
    });
}

#[test]
fn postgres() {
    let cluster = Cluster::start("conformance", &[]);
    play(async {
        for (name, case) in CASES {
            println!("{name}");
            case(Store::open(&cluster.database(name).await).await.unwrap()).await;
        }
    });
}
