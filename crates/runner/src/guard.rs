//! Who calls, whether it is stale, whether it is a replay.

use crate::shared::lock;
use crate::tokens::{Principal, Tokens};
use http::{HeaderMap, StatusCode, header};
use outlast_core::id::{JobId, Scope};
use outlast_hand::clock;
use outlast_hand::dropped::{self, Dropped};
use outlast_hand::home::Home;
use outlast_wire::call::{self, CallError, CallFacts, HandFacts, check_call, read_call, read_scope};
use outlast_wire::problem::Problem;
use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;

/// Requests that are remembered, to know a retry from an id used twice.
const REMEMBERED: usize = 8192;

/// How the other end of a connection proved who it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Peer {
    /// A process of this machine, by the kernel's word.
    Local { uid: u32, pid: i32 },
    /// By a certificate that this runner was told to trust.
    Certified(String),
    /// Not at all yet: each call must carry a token.
    Unproved,
}

/// Who makes a call.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// For records: how it proved itself.
    pub(crate) by: String,
    principal: Option<Principal>,
}

impl Caller {
    fn may_use(&self, scope: &Scope) -> Result<(), Problem> {
        if self.principal.as_ref().is_none_or(|principal| principal.may_use(scope)) {
            return Ok(());
        }
        // As for a scope without jobs: nothing tells whether there are any.
        let detail = "there is no such scope for this caller";
        Err(Problem::new(StatusCode::NOT_FOUND, "NO_SUCH_SCOPE", detail))
    }
}

/// What is checked before a call's body is read.
#[derive(Debug, Clone)]
pub(crate) struct Admittance {
    pub(crate) caller: Caller,
    pub(crate) scope: Scope,
    /// On calls that change something.
    pub(crate) facts: Option<CallFacts>,
}

/// Answers whether a token is good.
pub(crate) struct Guard {
    tokens: Option<Tokens>,
    remembered: Mutex<Remembered>,
}

#[derive(Default)]
struct Remembered {
    digests: HashMap<(String, String), [u8; 32]>,
    order: VecDeque<(String, String)>,
}

/// Whether a request was seen before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Novelty {
    /// It is new.
    New,
    /// The same request again: it is answered from what there is.
    Again,
    /// Another request under the same id.
    Reused,
}

impl Guard {
    pub(crate) fn new(tokens: Option<Tokens>) -> Guard {
        Guard { tokens, remembered: Mutex::default() }
    }

    /// What is wrong with the token file since it was read last, where anything is.
    pub(crate) fn problem(&self) -> Option<String> {
        self.tokens.as_ref().and_then(Tokens::problem)
    }

    /// Who calls.
    pub(crate) fn caller(&self, peer: &Peer, headers: &HeaderMap) -> Result<Caller, Problem> {
        let refused = |detail: &str| {
            Problem::new(StatusCode::UNAUTHORIZED, "UNAUTHENTICATED", detail)
                .remedy("send `authorization: Bearer TOKEN` with a token of this runner's token file")
        };
        let presented = headers.get(header::AUTHORIZATION);
        let by = match (peer, presented) {
            (Peer::Unproved, None) => return Err(refused("the call carries no token")),
            (Peer::Local { uid, pid }, None) => format!("uid {uid}, process {pid}"),
            (Peer::Certified(fingerprint), None) => format!("certificate {fingerprint}"),
            (_, Some(value)) => {
                // Whoever presents one is held to it, however it proved itself otherwise.
                // The scheme's case does not matter (RFC 9110, 11.1).
                let (scheme, token) = value.as_bytes().split_at_checked(7).unwrap_or_default();
                let token = if scheme.eq_ignore_ascii_case(b"Bearer ") { token } else { b"" };
                let tokens = self.tokens.as_ref().ok_or_else(|| refused("this runner has no token file"))?;
                let now = clock::unix_now().0 / 1_000_000;
                let principal =
                    tokens.check(token, now).ok_or_else(|| refused("the token is not good here"))?;
                let by = format!("token {}", principal.name);
                return Ok(Caller { by, principal: Some(principal) });
            }
        };
        Ok(Caller { by, principal: None })
    }

    /// Checks all that the headers say of a call.
    pub(crate) fn admit(
        &self,
        home: &Home,
        peer: &Peer,
        headers: &HeaderMap,
        changes: bool,
        job: Option<JobId>,
    ) -> Result<Admittance, Problem> {
        let caller = self.caller(peer, headers)?;
        let find = |name: &'static str| headers.get(name).map(http::HeaderValue::as_bytes);
        let bad = |error: &CallError| Problem::new(StatusCode::BAD_REQUEST, "BAD_HEADER", error.to_string());
        // Of two that say different things, who passed the call on may have gone by the other.
        if let Some(twice) = call::HEADERS.iter().find(|name| headers.get_all(**name).iter().nth(1).is_some())
        {
            return Err(bad(&CallError::Header { header: twice, problem: "is given twice".into() }));
        }
        let scope = read_scope(find(call::SCOPE)).map_err(|error| bad(&error))?;
        caller.may_use(&scope)?;
        if !changes {
            return Ok(Admittance { caller, scope, facts: None });
        }
        let facts = read_call(find).map_err(|error| bad(&error))?;
        let here = HandFacts {
            sandbox: home.sandbox(),
            sandbox_generation: home.sandbox_generation(),
            now: clock::unix_now().0 / 1000,
        };
        if let Err(error) = check_call(&facts, here) {
            if !error.is_stale() {
                return Err(bad(&error));
            }
            record(home, &caller, &scope, &facts, job, &error.to_string());
            return Err(stale(&error.to_string()));
        }
        Ok(Admittance { caller, scope, facts: Some(facts) })
    }

    /// Whether a call that was let in would be let in now. Only a token can have lost its power since: a connection that
    /// proved itself stays proved.
    pub(crate) fn still_lets_in(
        &self,
        peer: &Peer,
        headers: &HeaderMap,
        admittance: &Admittance,
    ) -> Result<(), Problem> {
        if admittance.caller.principal.is_none() {
            return Ok(());
        }
        self.caller(peer, headers)?.may_use(&admittance.scope)
    }

    /// Remembers a request; what it was, by `digest`.
    pub(crate) fn novelty(&self, admittance: &Admittance, digest: [u8; 32]) -> Novelty {
        let Some(facts) = &admittance.facts else { return Novelty::New };
        let key = (admittance.scope.to_string(), facts.request_id.clone());
        let mut remembered = lock(&self.remembered);
        if let Some(seen) = remembered.digests.get(&key) {
            return if *seen == digest { Novelty::Again } else { Novelty::Reused };
        }
        if remembered.order.len() >= REMEMBERED
            && let Some(oldest) = remembered.order.pop_front()
        {
            remembered.digests.remove(&oldest);
        }
        remembered.order.push_back(key.clone());
        remembered.digests.insert(key, digest);
        Novelty::New
    }
}

/// The answer to what is stale.
pub(crate) fn stale(detail: &str) -> Problem {
    Problem::new(StatusCode::CONFLICT, "STALE", detail.to_owned())
        .remedy("it was dropped and recorded; say hello again to learn which sandbox and generation this is")
}

/// Records that a call was dropped.
pub(crate) fn record(
    home: &Home,
    caller: &Caller,
    scope: &Scope,
    facts: &CallFacts,
    job_id: Option<JobId>,
    why: &str,
) {
    dropped::note(
        home,
        &Dropped {
            at: clock::unix_now(),
            what: why.to_owned(),
            request_id: Some(facts.request_id.clone()),
            scope: Some(scope.to_string()),
            job_id: job_id.map(|id| id.to_string()),
            carried: format!(
                "sandbox {} generation {}, generation {}, expires at {}",
                facts.sandbox, facts.sandbox_generation, facts.generation, facts.expires_at
            ),
            current: format!("sandbox {} generation {}", home.sandbox(), home.sandbox_generation()),
            by: caller.by.clone(),
        },
    );
}
