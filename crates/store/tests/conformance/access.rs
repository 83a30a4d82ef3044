use crate::scene::{id, tenant_of};
use outlast_core::time::Millis;
use outlast_store::Store;
use outlast_store::ids::TokenId;
use outlast_store::tables::tokens::{Issue, Kind, Known, Revoke, SignIn};
use outlast_store::tables::{audit, tenants};

pub(crate) async fn tokens_are_known_by_their_hash(store: Store) {
    let (tenant, principal) = tenant_of(&store).await;
    let issue = |hash: u8, good_for| Issue {
        id: id(),
        tenant: tenant.clone(),
        principal: principal.clone(),
        hash: [hash; 32],
        name: "ci".into(),
        scopes: vec!["tasks".into()],
        kind: Kind::Bearer,
        good_for,
    };
    let good = issue(1, None);
    store.write(good.clone()).await.unwrap();
    store.write(issue(2, Some(Millis(0)))).await.unwrap();
    store.write(issue(3, Some(Millis(60_000)))).await.unwrap();
    let known = async |hash| store.read(Known { hash: [hash; 32] }).await.unwrap();
    let token = known(1).await.unwrap();
    assert_eq!((token.principal, token.scopes), (principal.clone(), vec!["tasks".to_owned()]));
    assert!(known(2).await.is_none(), "it was over at once");
    assert!(known(3).await.is_some());
    assert!(known(4).await.is_none());
    let (other, _) = tenant_of(&store).await;
    assert!(!store.write(Revoke { tenant: other, id: good.id.clone() }).await.unwrap());
    assert!(known(1).await.is_some());
    for _ in 0..2 {
        assert!(store.write(Revoke { tenant: tenant.clone(), id: good.id.clone() }).await.unwrap());
        assert!(known(1).await.is_none());
    }
}

pub(crate) async fn a_login_is_good_once(store: Store) {
    let (tenant, principal) = tenant_of(&store).await;
    let issue = Issue {
        id: id(),
        tenant,
        principal: principal.clone(),
        hash: [1; 32],
        name: "a link".into(),
        scopes: vec![],
        kind: Kind::Login,
        good_for: Some(Millis(60_000)),
    };
    store.write(issue).await.unwrap();
    assert!(store.read(Known { hash: [1; 32] }).await.unwrap().is_none(), "it is no bearer token");
    let sign_in = |session: u8, id: TokenId| SignIn {
        hash: [1; 32],
        id,
        session: [session; 32],
        good_for: Millis(60_000),
    };
    let first = sign_in(7, id());
    assert_eq!(store.write(first.clone()).await.unwrap(), Some(principal.clone()));
    assert_eq!(store.write(first).await.unwrap(), Some(principal), "the same sign-in, asked again");
    assert_eq!(store.write(sign_in(8, id())).await.unwrap(), None, "another one");
    assert!(store.read(Known { hash: [7; 32] }).await.unwrap().is_some());
    assert!(store.read(Known { hash: [8; 32] }).await.unwrap().is_none());
}

pub(crate) async fn the_audit_is_a_chain(store: Store) {
    let scene = crate::scene::Scene::new(store.clone()).await;
    for _ in 0..5 {
        crate::stops::stop_all(&scene).await;
    }
    let list = audit::List { tenant: scene.tenant.clone(), after: 0, limit: 100 };
    let mut entries = store.read(list).await.unwrap();
    assert_eq!(entries.len(), 5);
    assert_eq!(audit::broken(&entries), None);
    entries[2].about = "something else".into();
    assert_eq!(audit::broken(&entries), Some(3));
    entries.remove(2);
    assert_eq!(audit::broken(&entries), Some(4));
    assert!(store.read(tenants::Find(scene.tenant)).await.unwrap().is_some());
}
