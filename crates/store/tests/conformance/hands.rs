use crate::scene::{LONG, Scene, hand_of, id, tenant_of};
use outlast_core::task::News;
use outlast_core::time::{Millis, UnixMicros};
use outlast_store::ids::WorkerId;
use outlast_store::tables::hands::{Extend, Find, Reached, Release, Renew, Retire, Take};
use outlast_store::tables::tasks::Learn;
use outlast_store::{Store, StoreError};
use std::collections::HashSet;

fn take(limit: u32, lease: Millis) -> Take {
    Take { worker: id::<WorkerId>(), limit, lease }
}

pub(crate) async fn one_worker_has_a_hand(store: Store) {
    let (tenant, _) = tenant_of(&store).await;
    let hand = hand_of(&store, &tenant).await;
    let mut first = store.write(take(10, LONG)).await.unwrap();
    assert_eq!(first.len(), 1);
    let (found, claim) = first.remove(0);
    assert_eq!((&found.id, claim.token, found.failures), (&hand, 1, 0));
    assert!(store.write(take(10, LONG)).await.unwrap().is_empty(), "somebody has it");
    assert!(store.write(Renew { claim: claim.clone(), lease: LONG }).await.unwrap());
    for failures in [1, 2, 0] {
        store.write(Reached { claim: claim.clone(), failures }).await.unwrap();
        assert_eq!(store.read(Find(hand.clone())).await.unwrap().unwrap().failures, failures);
    }
    store.write(Release(claim.clone())).await.unwrap();
    assert!(!store.write(Renew { claim: claim.clone(), lease: LONG }).await.unwrap());
    let again = store.write(take(10, LONG)).await.unwrap();
    assert_eq!(again[0].1.token, 2);
    // One that was given up, and has nothing unsettled, is nobody's to take.
    store.write(Release(again[0].1.clone())).await.unwrap();
    let retire = Retire { tenant, id: hand.clone(), destroyed: Some("{}".into()) };
    assert!(store.write(retire).await.unwrap());
    assert!(store.write(take(10, LONG)).await.unwrap().is_empty());
    assert_eq!(store.read(Find(hand)).await.unwrap().unwrap().destroyed.as_deref(), Some("{}"));
}

pub(crate) async fn a_lapsed_lease_is_taken_over_and_its_token_changes_nothing(store: Store) {
    let scene = Scene::new(store.clone()).await;
    let task = scene.reserved("k").await;
    store.write(Release(scene.claim.clone())).await.unwrap();
    let paused = store.write(take(1, Millis(1))).await.unwrap().remove(0).1;
    // The worker is paused past its lease; another one takes over as soon as it is over.
    let other = loop {
        let mut taken = store.write(take(1, LONG)).await.unwrap();
        if let Some((_, claim)) = taken.pop() {
            break claim;
        }
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    };
    assert_eq!(other.token, paused.token + 1);
    let news = News::Asked { expires: UnixMicros(1) };
    let learn = |claim| Learn {
        claim: Some(claim),
        task: task.id.clone(),
        attempt: task.facts.reserved.attempt,
        news: news.clone(),
    };
    let before = scene.find(&task).await;
    assert!(matches!(store.write(learn(paused.clone())).await, Err(StoreError::Fenced)));
    assert!(matches!(
        store.write(Reached { claim: paused.clone(), failures: 1 }).await,
        Err(StoreError::Fenced)
    ));
    assert!(!store.write(Renew { claim: paused, lease: LONG }).await.unwrap());
    assert_eq!(scene.find(&task).await, before, "the old token changed something");
    store.write(learn(other)).await.unwrap();
    assert_ne!(scene.find(&task).await, before);
}

pub(crate) async fn a_hand_lives_longer_and_never_shorter(store: Store) {
    let (tenant, _) = tenant_of(&store).await;
    let id = hand_of(&store, &tenant).await;
    let until = async || store.read(Find(id.clone())).await.unwrap().unwrap().lives_until;
    assert_eq!(until().await, None);
    // One that lives for ever does not live shorter by an extension.
    store.write(Extend { id: id.clone(), lives_for: Millis(1000) }).await.unwrap();
    assert_eq!(until().await, None);
}

/// Workers at once claim each hand once.
pub(crate) async fn every_claim_is_one_workers(store: Store) {
    let (tenant, _) = tenant_of(&store).await;
    let mut hands = HashSet::new();
    for _ in 0..40 {
        hands.insert(hand_of(&store, &tenant).await);
    }
    let workers: Vec<_> = (0..8)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut mine = Vec::new();
                loop {
                    let taken = store.write(take(3, LONG)).await.unwrap();
                    if taken.is_empty() {
                        return mine;
                    }
                    mine.extend(taken.into_iter().map(|(hand, _)| hand.id));
                }
            })
        })
        .collect();
    let mut claimed = Vec::new();
    for worker in workers {
        claimed.extend(worker.await.unwrap());
    }
    assert_eq!(claimed.len(), hands.len(), "a hand was claimed twice, or by nobody");
    assert_eq!(claimed.into_iter().collect::<HashSet<_>>(), hands);
}
