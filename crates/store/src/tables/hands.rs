//! Incarnations of sandboxes, and which worker works on each.
//!
//! A hand's row is the root of what runs in it: a reservation locks it to count what is unsettled, a worker claims it, and
//! every write about its jobs names the token of that claim. Leases are judged by the database's clock alone. They only
//! limit how long two workers may believe that they have one hand; the tokens make that safe.

use crate::error::StoreError;
use crate::ids::{SandboxId, TenantId, WorkerId};
use crate::store::{Op, Query};
use crate::tx::Tx;
use crate::value::{Row, document};
use crate::values;
use outlast_core::id::SandboxGeneration;
use outlast_core::time::{Millis, UnixMicros};

const TABLE: &str = "hands";

/// Which hand: a sandbox in one of its incarnations.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HandId {
    /// The sandbox.
    pub sandbox: SandboxId,
    /// The incarnation.
    pub generation: SandboxGeneration,
}

/// One hand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hand {
    /// Which.
    pub id: HandId,
    /// Whose.
    pub tenant: TenantId,
    /// How it is reached: the first, and what is tried when that has failed often enough.
    pub channels: Vec<String>,
    /// What its provider calls it.
    pub provider_ref: String,
    /// Until when it lives, by its provider.
    pub lives_until: Option<UnixMicros>,
    /// When it was given up: nothing new is reserved there.
    pub retired_at: Option<UnixMicros>,
    /// What its provider attested when it was destroyed, a JSON document.
    pub destroyed: Option<String>,
    /// How often in a row it could not be reached.
    pub failures: u64,
}

impl Hand {
    fn of(row: &Row) -> Result<Hand, StoreError> {
        let time = |row: &Row, column| row.count(column).map(UnixMicros);
        Ok(Hand {
            id: HandId { sandbox: row.named(0)?, generation: SandboxGeneration(row.count(1)?) },
            tenant: row.named(2)?,
            channels: row.json(3)?,
            provider_ref: row.text(4)?,
            lives_until: row.option(5, time)?,
            retired_at: row.option(6, time)?,
            destroyed: row.option(7, Row::text)?,
            failures: row.count(8)?,
        })
    }
}

/// A worker's claim on a hand. Without it nothing is written about the hand's jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// On which.
    pub hand: HandId,
    /// Grows with each claim.
    pub token: u64,
}

/// Records an incarnation. It is there, with nobody's lease, when this returns.
#[derive(Debug, Clone)]
pub struct Record {
    /// Whose.
    pub tenant: TenantId,
    /// Which.
    pub id: HandId,
    /// How it is reached.
    pub channels: Vec<String>,
    /// What its provider calls it.
    pub provider_ref: String,
    /// How long its provider lets it live.
    pub lives_for: Option<Millis>,
}

impl Op for Record {
    const NAME: &'static str = "hands.record";
    /// Whether it was recorded before.
    type Out = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let channels = document(&self.channels)?;
        let micros = self.lives_for.map(|length| length.0.saturating_mul(1000));
        let made = tx
            .execute(
                "INSERT INTO hands (sandbox, generation, tenant, channels, provider_ref, recorded_at, lives_until, \
                 lease_token, failures) VALUES ($1, $2, $3, $4, $5, NOW_US, NOW_US + $6, 0, 0) \
                 ON CONFLICT (sandbox, generation) DO NOTHING",
                values![
                    &self.id.sandbox,
                    self.id.generation,
                    &self.tenant,
                    &channels,
                    &self.provider_ref,
                    micros
                ],
            )
            .await?;
        if made == 0 {
            // A provider may tell other addresses of the same incarnation.
            tx.execute(
                "UPDATE hands SET channels = $3 WHERE sandbox = $1 AND generation = $2",
                values![&self.id.sandbox, self.id.generation, &channels],
            )
            .await?;
        }
        Ok(made == 0)
    }
}

/// The hand of this id.
#[derive(Debug, Clone)]
pub struct Find(pub HandId);

impl Query for Find {
    type Out = Option<Hand>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<Hand>, StoreError> {
        let row = tx
            .find(
                TABLE,
                "SELECT sandbox, generation, tenant, channels, provider_ref, lives_until, retired_at, destroyed, failures \
                 FROM hands WHERE sandbox = $1 AND generation = $2",
                values![&self.0.sandbox, self.0.generation],
            )
            .await?;
        row.as_ref().map(Hand::of).transpose()
    }
}

/// The incarnations of a sandbox, the latest first.
#[derive(Debug, Clone)]
pub struct Of {
    /// Whose.
    pub tenant: TenantId,
    /// Which.
    pub sandbox: SandboxId,
}

impl Query for Of {
    type Out = Vec<Hand>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Hand>, StoreError> {
        let rows = tx
            .query(
                TABLE,
                "SELECT sandbox, generation, tenant, channels, provider_ref, lives_until, retired_at, destroyed, failures \
                 FROM hands WHERE tenant = $1 AND sandbox = $2 ORDER BY generation DESC",
                values![&self.tenant, &self.sandbox],
            )
            .await?;
        rows.iter().map(Hand::of).collect()
    }
}

/// Claims hands that nobody has, or whose lease is over, and that have something unsettled or may get it. Those that the worker
/// has already are told as well.
#[derive(Debug, Clone)]
pub struct Take {
    /// For whom.
    pub worker: WorkerId,
    /// So many more at most.
    pub limit: u32,
    /// For how long.
    pub lease: Millis,
}

impl Op for Take {
    const NAME: &'static str = "hands.take";
    type Out = Vec<(Hand, Claim)>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<(Hand, Claim)>, StoreError> {
        let mine = tx
            .query(
                TABLE,
                "SELECT sandbox, generation, tenant, channels, provider_ref, lives_until, retired_at, destroyed, failures, \
                 lease_token FROM hands WHERE lease_owner = $1 AND lease_until >= NOW_US ORDER BY sandbox, generation",
                values![&self.worker],
            )
            .await?;
        let claimed = |row: &Row, token| {
            let hand = Hand::of(row)?;
            let claim = Claim { hand: hand.id.clone(), token };
            Ok::<_, StoreError>((hand, claim))
        };
        let mut taken: Vec<_> =
            mine.iter().map(|row| claimed(row, row.count(9)?)).collect::<Result<_, StoreError>>()?;
        let free = tx
            .query(
                TABLE,
                "SELECT sandbox, generation, tenant, channels, provider_ref, lives_until, retired_at, destroyed, failures, \
                 lease_token FROM hands \
                 WHERE (lease_until IS NULL OR lease_until < NOW_US) AND (retired_at IS NULL OR EXISTS ( \
                     SELECT 1 FROM tasks WHERE tasks.sandbox = hands.sandbox \
                     AND tasks.sandbox_generation = hands.generation AND tasks.occupies = 1)) \
                 ORDER BY sandbox, generation LIMIT $1 FOR NO KEY UPDATE SKIP LOCKED",
                values![self.limit],
            )
            .await?;
        for row in &free {
            let (hand, claim) = claimed(row, row.count(9)? + 1)?;
            tx.execute(
                "UPDATE hands SET lease_owner = $3, lease_token = $4, lease_until = NOW_US + $5 \
                 WHERE sandbox = $1 AND generation = $2",
                values![
                    &hand.id.sandbox,
                    hand.id.generation,
                    &self.worker,
                    claim.token,
                    self.lease.0.saturating_mul(1000)
                ],
            )
            .await?;
            taken.push((hand, claim));
        }
        Ok(taken)
    }
}

/// Makes a lease last longer, where it is still this claim's and not over.
#[derive(Debug, Clone)]
pub struct Renew {
    /// Which.
    pub claim: Claim,
    /// From now on so long.
    pub lease: Millis,
}

impl Op for Renew {
    const NAME: &'static str = "hands.renew";
    /// Whether it was.
    type Out = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let Claim { hand, token } = &self.claim;
        let changed = tx
            .execute(
                "UPDATE hands SET lease_until = NOW_US + $4 \
                 WHERE sandbox = $1 AND generation = $2 AND lease_token = $3 AND lease_until >= NOW_US",
                values![&hand.sandbox, hand.generation, *token, self.lease.0.saturating_mul(1000)],
            )
            .await?;
        Ok(changed == 1)
    }
}

/// Gives a hand back, so that another worker need not wait for the end of the lease.
#[derive(Debug, Clone)]
pub struct Release(pub Claim);

impl Op for Release {
    const NAME: &'static str = "hands.release";
    type Out = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let Claim { hand, token } = &self.0;
        tx.execute(
            "UPDATE hands SET lease_owner = NULL, lease_until = NULL \
             WHERE sandbox = $1 AND generation = $2 AND lease_token = $3",
            values![&hand.sandbox, hand.generation, *token],
        )
        .await?;
        Ok(())
    }
}

/// Notes how often in a row a hand could not be reached; 0 once it could.
#[derive(Debug, Clone)]
pub struct Reached {
    /// By whom.
    pub claim: Claim,
    /// How often it could not.
    pub failures: u64,
}

impl Op for Reached {
    const NAME: &'static str = "hands.reached";
    type Out = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        check(tx, &self.claim).await?;
        let HandId { sandbox, generation } = &self.claim.hand;
        tx.execute(
            "UPDATE hands SET failures = $3 WHERE sandbox = $1 AND generation = $2",
            values![sandbox, *generation, self.failures],
        )
        .await?;
        Ok(())
    }
}

/// Gives an incarnation up, or notes what its provider attests of its end.
#[derive(Debug, Clone)]
pub struct Retire {
    /// Whose.
    pub tenant: TenantId,
    /// Which.
    pub id: HandId,
    /// What its provider attests, a JSON document: that this very one is gone.
    pub destroyed: Option<String>,
}

impl Op for Retire {
    const NAME: &'static str = "hands.retire";
    /// Whether there is such a hand.
    type Out = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let changed = tx
            .execute(
                "UPDATE hands SET retired_at = COALESCE(retired_at, NOW_US), destroyed = COALESCE(destroyed, $4) \
                 WHERE tenant = $1 AND sandbox = $2 AND generation = $3",
                values![&self.tenant, &self.id.sandbox, self.id.generation, self.destroyed.as_ref()],
            )
            .await?;
        Ok(changed == 1)
    }
}

/// Has a hand live longer by its provider's word; never shorter.
#[derive(Debug, Clone)]
pub struct Extend {
    /// Which.
    pub id: HandId,
    /// From now on so long at least.
    pub lives_for: Millis,
}

impl Op for Extend {
    const NAME: &'static str = "hands.extend";
    type Out = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        tx.execute(
            "UPDATE hands SET lives_until = NOW_US + $3 \
             WHERE sandbox = $1 AND generation = $2 AND lives_until < NOW_US + $3",
            values![&self.id.sandbox, self.id.generation, self.lives_for.0.saturating_mul(1000)],
        )
        .await?;
        Ok(())
    }
}

/// Checks a claim, and holds it until the transaction's end: nobody takes the hand meanwhile.
pub(crate) async fn check(tx: &mut Tx<'_>, claim: &Claim) -> Result<(), StoreError> {
    let held = tx
        .find(
            TABLE,
            "SELECT 1 FROM hands WHERE sandbox = $1 AND generation = $2 AND lease_token = $3 \
             AND lease_until >= NOW_US FOR SHARE",
            values![&claim.hand.sandbox, claim.hand.generation, claim.token],
        )
        .await?;
    held.map(drop).ok_or(StoreError::Fenced)
}
