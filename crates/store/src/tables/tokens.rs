//! By what a principal is known. A token itself is kept nowhere: its BLAKE3 hash is, and it is found by that.

use crate::error::StoreError;
use crate::ids::{PrincipalId, TenantId, TokenId};
use crate::store::{Op, Query};
use crate::tx::Tx;
use crate::value::{Row, document};
use crate::values;
use outlast_core::time::{Millis, UnixMicros};

const TABLE: &str = "tokens";

/// What a token is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Sent with each call.
    Bearer,
    /// Good once, to sign in with.
    Login,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Kind::Bearer => "bearer",
            Kind::Login => "login",
        }
    }
}

/// A token as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// Its id, by which it is listed and revoked.
    pub id: TokenId,
    /// Whose.
    pub tenant: TenantId,
    /// Who is known by it.
    pub principal: PrincipalId,
    /// Its name, for people.
    pub name: String,
    /// What it opens.
    pub scopes: Vec<String>,
    /// What it is for.
    pub kind: Kind,
    /// When it is over.
    pub expires_at: Option<UnixMicros>,
    /// When it was revoked.
    pub revoked_at: Option<UnixMicros>,
}

impl Token {
    fn of(row: &Row) -> Result<Token, StoreError> {
        let kind = match row.text(5)?.as_str() {
            "bearer" => Kind::Bearer,
            "login" => Kind::Login,
            other => return Err(StoreError::Damaged { table: TABLE, what: format!("a kind {other:?}") }),
        };
        let time = |row: &Row, column| row.count(column).map(UnixMicros);
        Ok(Token {
            id: row.named(0)?,
            tenant: row.named(1)?,
            principal: row.named(2)?,
            name: row.text(3)?,
            scopes: row.json(4)?,
            kind,
            expires_at: row.option(6, time)?,
            revoked_at: row.option(7, time)?,
        })
    }

    fn is_good(&self, now: UnixMicros) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|until| now < until)
    }
}

/// Writes a token down. It is good when this returns.
#[derive(Debug, Clone)]
pub struct Issue {
    /// Its id.
    pub id: TokenId,
    /// Whose.
    pub tenant: TenantId,
    /// Who is to be known by it.
    pub principal: PrincipalId,
    /// The hash of it.
    pub hash: [u8; 32],
    /// Its name.
    pub name: String,
    /// What it opens.
    pub scopes: Vec<String>,
    /// What it is for.
    pub kind: Kind,
    /// How long it is good; for ever where nothing is said.
    pub good_for: Option<Millis>,
}

impl Op for Issue {
    const NAME: &'static str = "tokens.issue";
    type Out = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let scopes = document(&self.scopes)?;
        let micros = self.good_for.map(|length| length.0.saturating_mul(1000));
        tx.execute(
            "INSERT INTO tokens (id, tenant, principal, hash, name, scopes, kind, created_at, expires_at) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, NOW_US, NOW_US + $8) ON CONFLICT (id) DO NOTHING",
            values![
                &self.id,
                &self.tenant,
                &self.principal,
                &self.hash[..],
                &self.name,
                scopes,
                self.kind.word(),
                micros
            ],
        )
        .await?;
        Ok(())
    }
}

/// The good bearer token of this hash: a principal is known by it now.
#[derive(Debug, Clone)]
pub struct Known {
    /// The hash of what was presented.
    pub hash: [u8; 32],
}

impl Query for Known {
    type Out = Option<Token>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<Token>, StoreError> {
        let now = tx.now().await?;
        let row = tx
            .find(
                TABLE,
                "SELECT id, tenant, principal, name, scopes, kind, expires_at, revoked_at FROM tokens WHERE hash = $1",
                values![&self.hash[..]],
            )
            .await?;
        let token = row.as_ref().map(Token::of).transpose()?;
        Ok(token.filter(|token| token.kind == Kind::Bearer && token.is_good(now)))
    }
}

/// Signs in with a login token, which is good once: its principal gets a bearer token instead.
#[derive(Debug, Clone)]
pub struct SignIn {
    /// The hash of what was presented.
    pub hash: [u8; 32],
    /// The bearer token's id.
    pub id: TokenId,
    /// The bearer token's hash.
    pub session: [u8; 32],
    /// How long that is good.
    pub good_for: Millis,
}

impl Op for SignIn {
    const NAME: &'static str = "tokens.sign_in";
    /// The principal; nothing where the token is not good, or was used.
    type Out = Option<PrincipalId>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<PrincipalId>, StoreError> {
        let now = tx.now().await?;
        let row = tx
            .find(
                TABLE,
                "SELECT id, tenant, principal, name, scopes, kind, expires_at, revoked_at FROM tokens \
                 WHERE hash = $1 FOR NO KEY UPDATE",
                values![&self.hash[..]],
            )
            .await?;
        let Some(login) = row.as_ref().map(Token::of).transpose()? else { return Ok(None) };
        if login.kind != Kind::Login {
            return Ok(None);
        }
        let again = tx
            .find(
                TABLE,
                "SELECT principal FROM tokens WHERE id = $1 AND hash = $2",
                values![&self.id, &self.session[..]],
            )
            .await?;
        if let Some(row) = again {
            // This very sign-in, whose answer was lost.
            return row.named(0).map(Some);
        }
        if !login.is_good(now) {
            return Ok(None);
        }
        tx.execute(
            "UPDATE tokens SET used_at = NOW_US, revoked_at = NOW_US WHERE id = $1",
            values![&login.id],
        )
        .await?;
        let session = Issue {
            id: self.id.clone(),
            tenant: login.tenant,
            principal: login.principal.clone(),
            hash: self.session,
            name: login.name,
            scopes: login.scopes,
            kind: Kind::Bearer,
            good_for: Some(self.good_for),
        };
        session.run(tx).await?;
        Ok(Some(login.principal))
    }
}

/// Revokes a token of a tenant. It is good for nothing when this returns.
#[derive(Debug, Clone)]
pub struct Revoke {
    /// Whose.
    pub tenant: TenantId,
    /// Which.
    pub id: TokenId,
}

impl Op for Revoke {
    const NAME: &'static str = "tokens.revoke";
    /// Whether there is such a token.
    type Out = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let changed = tx
            .execute(
                "UPDATE tokens SET revoked_at = COALESCE(revoked_at, NOW_US) WHERE tenant = $1 AND id = $2",
                values![&self.tenant, &self.id],
            )
            .await?;
        Ok(changed > 0)
    }
}
