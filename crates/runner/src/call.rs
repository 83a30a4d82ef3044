//! One call: who makes it, what it asks for, and its answer.

use crate::admit::{self, Answered};
use crate::answer::{self, Answer};
use crate::guard::{self, Admittance, Novelty, Peer};
use crate::hub::Entry;
use crate::jobs;
use crate::output::{self, Want};
use crate::pool::{Lane, NotDone};
use crate::route::{Query, Route, route};
use crate::settings::OPEN_JOBS;
use crate::shared::{BODY_PIECE, Holder, Shared};
use bytes::{Bytes, BytesMut};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, StatusCode, Version, header};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use outlast_core::id::{Attempt, Cursor, JobId};
use outlast_hand::home::{Home, fill_random};
use outlast_hand::job::Job;
use outlast_hand::{brains, clock, control, fence, files, marks};
use outlast_wire::admission::Admission;
use outlast_wire::call::CallFacts;
use outlast_wire::hello::{Hello, HelloRequest};
use outlast_wire::problem::Problem;
use outlast_wire::verbs::{self, Acknowledge, Resize, Seal, Sealed, Spooled, StdinTaken};
use outlast_wire::view::{Acknowledged, Arrival, FenceView, JobView};
use outlast_wire::{call, limits, records, version};
use serde::de::DeserializeOwned;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit};

/// How long a body may take from one piece to the next.
const BODY_PIECE_WITHIN: Duration = Duration::from_secs(30);
/// A body as small as the head of a call, which is not counted either, needs no memory promised: so no stop waits for what
/// slow bodies hold.
const SMALL_BODY: u64 = 4 << 10;
/// How long a small body that nobody wants may take to come, so that its connection goes on.
const REST_WITHIN: Duration = Duration::from_millis(100);
/// How long a body waits for memory.
const MEMORY_WITHIN: Duration = Duration::from_secs(10);
/// How often an answer that waits for memory has the oldest one that holds some cut off.
const CUT_EVERY: Duration = Duration::from_millis(200);
/// How soon a follower looks again though nobody told it of output: word of it can be lost while it begins to follow.
const LOOK_AGAIN: [Duration; 3] =
    [Duration::from_millis(10), Duration::from_millis(100), Duration::from_secs(1)];
/// How often the token of a call that waits is looked at again: it may be revoked meanwhile, or expire.
const TOKEN_AGAIN: Duration = Duration::from_secs(2);
/// How often input is offered again to a command that does not read.
const OFFER_AGAIN: Duration = Duration::from_millis(10);

pub(crate) async fn answer_one(
    state: &Arc<Shared>,
    peer: &Peer,
    cut: &Arc<Notify>,
    request: Request<Incoming>,
) -> Answer {
    let _under_way = state.calls.enter();
    let (head, incoming) = request.into_parts();
    let mut body = Body { incoming, ended: false };
    let mut answer = match do_one(state, peer, cut, &head, &mut body).await {
        Ok(answer) => answer,
        Err(problem) => answer::problem(&problem),
    };
    // On HTTP/1.1 what is left of a body would be read as the next call, so the connection ends with this answer. Said, it
    // costs its client a new one; unsaid, the client's next call. HTTP/2 ends no more than the call's own stream.
    if head.version <= Version::HTTP_11 && !body.take_the_rest(&head.headers).await {
        answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}

/// The body of a call, and whether all of it was taken.
struct Body {
    incoming: Incoming,
    ended: bool,
}

impl Body {
    /// Takes what is left where that is little and on its way, as it is of a call that was refused for its head: its
    /// connection goes on then. `true` once nothing is left.
    async fn take_the_rest(&mut self, headers: &HeaderMap) -> bool {
        let little = announced(headers).is_some_and(|length| length <= SMALL_BODY);
        // Whoever sends `expect` may never send the body.
        if !self.is_over() && little && !headers.contains_key(header::EXPECT) {
            let rest = async { while let Some(Ok(_)) = self.incoming.frame().await {} };
            let _ = tokio::time::timeout(REST_WITHIN, rest).await;
        }
        self.is_over()
    }

    fn is_over(&self) -> bool {
        self.ended || self.incoming.is_end_stream()
    }
}

async fn do_one(
    state: &Arc<Shared>,
    peer: &Peer,
    cut: &Arc<Notify>,
    head: &Parts,
    body: &mut Body,
) -> Result<Answer, Problem> {
    let route = route(&head.method, head.uri.path(), head.uri.query())?;
    if route == Route::Hello {
        state.guard.caller(peer, &head.headers)?;
        return hello(state, read_json(state, &head.headers, body).await?.0);
    }
    let job = match &route {
        Route::Job(id, _) | Route::Output(id, _) | Route::Stdin(id, _) => Some(*id),
        Route::Stop(id) | Route::Settle(id) | Route::Resize(id) | Route::Acknowledge(id) => Some(*id),
        _ => None,
    };
    let admittance = state.guard.admit(&state.home, peer, &head.headers, route.changes(), job)?;
    let call = Call { state, admittance, peer, cut, headers: &head.headers, path: head.uri.path(), job };
    match route {
        Route::Hello => Err(answer::internal(&"hello twice")),
        Route::Job(id, query) => call.look(id, query).await,
        Route::List(query) => call.list(query).await,
        Route::Output(id, query) => call.read(id, query).await,
        Route::FenceView => call.fence_view().await,
        Route::Admit(query) => call.admit(body, query).await,
        Route::Stop(id) => call.stop(body, id).await,
        Route::Settle(id) => call.settle(body, id).await,
        Route::Stdin(id, query) => call.stdin(body, id, query).await,
        Route::Resize(id) => call.resize(body, id).await,
        Route::Acknowledge(id) => call.acknowledge(body, id).await,
        Route::Spool => call.spool(body).await,
        Route::Fence => call.fence(body).await,
        Route::Seal => call.seal(body).await,
    }
}

fn hello(state: &Shared, asked: HelloRequest) -> Result<Answer, Problem> {
    if asked.versions.is_empty() || asked.versions.len() > version::OFFER_AT_MOST || asked.client.len() > 200
    {
        let detail =
            format!("offer 1 to {} versions, and a client of 200 bytes at most", version::OFFER_AT_MOST);
        return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "BAD_HELLO", detail));
    }
    let protocol = version::choose(&asked.versions, version::SUPPORTED)
        .map_err(|error| Problem::new(StatusCode::CONFLICT, "NO_COMMON_VERSION", error.to_string()))?;
    let mutation_mark = marks::latest(state.home.dir())
        .map_err(|error| answer::storage("reading the mutation marks", &error))?
        .0;
    Ok(answer::json(&Hello {
        protocol,
        offered: asked.versions,
        now_ms: clock::unix_now().0 / 1000,
        mutation_mark,
        ..state.hello.clone()
    }))
}

fn too_large(limit: u64) -> Problem {
    let detail = format!("the body is larger than the limit of {limit} bytes");
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "TOO_LARGE", detail)
}

fn busy(not_done: NotDone) -> Problem {
    match not_done {
        NotDone::Full => {
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "BUSY", "too many calls wait already").retryable()
        }
        NotDone::Failed => answer::internal(&"the call failed in the runner"),
    }
}

/// The length that a call announces for its body.
fn announced(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok())
}

/// Reads a body up to `limit` bytes, which it announces or is counted at. Memory is taken before it is read.
async fn read_body(
    state: &Shared,
    headers: &HeaderMap,
    body: &mut Body,
    limit: u64,
) -> Result<Bytes, Problem> {
    let announced = announced(headers);
    if announced.is_some_and(|length| length > limit) {
        return Err(too_large(limit));
    }
    let most = usize::try_from(announced.unwrap_or(limit)).unwrap_or(usize::MAX);
    let pieces = u32::try_from(most.div_ceil(BODY_PIECE).max(1)).unwrap_or(u32::MAX);
    let _memory = match announced {
        Some(length) if length <= SMALL_BODY => None,
        _ => match tokio::time::timeout(MEMORY_WITHIN, state.bodies.acquire_many(pieces)).await {
            Ok(Ok(memory)) => Some(memory),
            _ => return Err(busy(NotDone::Full)),
        },
    };
    let mut read = BytesMut::new();
    while let Some(piece) = next_piece(body).await? {
        if read.len() as u64 + piece.len() as u64 > limit {
            return Err(too_large(limit));
        }
        read.extend_from_slice(&piece);
    }
    Ok(read.freeze())
}

/// The next piece of a body.
async fn next_piece(body: &mut Body) -> Result<Option<Bytes>, Problem> {
    loop {
        let frame = tokio::time::timeout(BODY_PIECE_WITHIN, body.incoming.frame()).await.map_err(|_| {
            let detail = format!("the body did not go on for {} s", BODY_PIECE_WITHIN.as_secs());
            Problem::new(StatusCode::REQUEST_TIMEOUT, "BODY_TIMEOUT", detail).retryable()
        })?;
        let Some(frame) = frame else {
            body.ended = true;
            return Ok(None);
        };
        let frame = frame.map_err(|error| {
            Problem::new(StatusCode::BAD_REQUEST, "BODY_BROKEN", format!("the body broke off: {error}"))
                .retryable()
        })?;
        if let Ok(data) = frame.into_data() {
            return Ok(Some(data));
        }
    }
}

/// What is wrong with a body. What serde says of a value may quote it, and it may be a secret: told are the place, what
/// belongs there, and the names of fields.
fn bad_body(bytes: &[u8], error: &serde_json::Error) -> Problem {
    let what = match serde_json::from_slice::<serde::de::IgnoredAny>(bytes) {
        Ok(_) => "says something that does not belong there",
        Err(_) => "is no JSON",
    };
    let said = error.to_string();
    let said = said.rsplit_once(" at line ").map_or(said.as_str(), |(said, _)| said);
    let fields = ["missing field ", "unknown field ", "duplicate field "];
    let told = match said.rsplit_once(", expected ") {
        _ if fields.iter().any(|field| said.starts_with(field)) => Some(said.to_owned()),
        Some((_, expected)) => Some(format!("expected {expected}")),
        None => said.starts_with("expected ").then(|| said.to_owned()),
    };
    let told =
        told.map(|told| format!(": {}", told.chars().take(800).collect::<String>())).unwrap_or_default();
    let detail = format!("the body {what} at line {} column {}{told}", error.line(), error.column());
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "BAD_BODY", detail)
        .remedy("the OpenAPI document of the hand protocol says what belongs where")
}

/// A JSON body, and the bytes it was.
async fn read_json<T: DeserializeOwned>(
    state: &Shared,
    headers: &HeaderMap,
    body: &mut Body,
) -> Result<(T, Bytes), Problem> {
    let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or(b"application/json");
    if !kind.starts_with(b"application/json") {
        let detail = "the body must be application/json";
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "NOT_JSON", detail));
    }
    let bytes = read_body(state, headers, body, limits::JSON_BODY).await?;
    let value = serde_json::from_slice(&bytes).map_err(|error| bad_body(&bytes, &error))?;
    Ok((value, bytes))
}

struct Call<'a> {
    state: &'a Arc<Shared>,
    admittance: Admittance,
    peer: &'a Peer,
    /// Cuts its connection.
    cut: &'a Arc<Notify>,
    headers: &'a HeaderMap,
    path: &'a str,
    job: Option<JobId>,
}

impl Call<'_> {
    async fn on<T, F>(&self, lane: &Lane, work: F) -> Result<T, Problem>
    where
        T: Send + 'static,
        F: FnOnce() -> Result<T, Problem> + Send + 'static,
    {
        lane.run(work).await.map_err(busy)?
    }

    /// Remembers the request; `true` where it is a repetition. An id that another request had is refused. `what` is what
    /// its query asks for; how long it waits makes no other request of it.
    fn note(&self, what: &str, body: &[u8]) -> Result<bool, Problem> {
        // Its headers were in time; its body may have been stuck on the way since.
        if let Some(facts) = &self.admittance.facts
            && facts.expires_at <= clock::unix_now().0 / 1000
        {
            let why = "it had expired when its body was there";
            self.dropped(why);
            return Err(guard::stale(why));
        }
        let mut hasher = blake3::Hasher::new();
        for part in [self.path.as_bytes(), what.as_bytes(), body] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        match self.state.guard.novelty(&self.admittance, *hasher.finalize().as_bytes()) {
            Novelty::New => Ok(false),
            Novelty::Again => Ok(true),
            Novelty::Reused => {
                self.dropped("its request id belongs to another request");
                let detail = "this request id belongs to another request: it was dropped and recorded";
                Err(Problem::new(StatusCode::CONFLICT, "REQUEST_ID_REUSED", detail))
            }
        }
    }

    /// A stale call is recorded before it is answered.
    fn dropped(&self, why: &str) {
        if let Some(facts) = &self.admittance.facts {
            let (home, caller) = (&self.state.home, &self.admittance.caller);
            guard::record(home, caller, &self.admittance.scope, facts, self.job, why);
        }
    }

    /// Waits for an answer, and gives none that the caller may not have any more: whoever was let in before a wait is looked
    /// at again while it lasts, and once more at its end.
    async fn while_let_in<T>(&self, waiting: impl Future<Output = Result<T, Problem>>) -> Result<T, Problem> {
        let mut waiting = std::pin::pin!(waiting);
        loop {
            let answered = tokio::time::timeout(TOKEN_AGAIN, waiting.as_mut()).await;
            self.state.guard.still_lets_in(self.peer, self.headers, &self.admittance)?;
            if let Ok(answered) = answered {
                return answered;
            }
        }
    }

    /// What the call is bound to; the guard has read it of every call that changes something.
    fn facts(&self) -> Result<&CallFacts, Problem> {
        self.admittance.facts.as_ref().ok_or_else(|| answer::internal(&"a change without its headers"))
    }

    /// Does something about one job of the call's scope.
    async fn on_job<T, F>(&self, lane: &Lane, id: JobId, work: F) -> Result<T, Problem>
    where
        T: Send + 'static,
        F: FnOnce(&Home, &Job) -> Result<T, Problem> + Send + 'static,
    {
        let (home, scope) = (Arc::clone(&self.state.home), self.admittance.scope.clone());
        self.on(lane, move || work(&home, &jobs::find(&home, &scope, id)?)).await
    }

    async fn json<T: DeserializeOwned>(&self, body: &mut Body) -> Result<(T, bool), Problem> {
        let (value, bytes) = read_json(self.state, self.headers, body).await?;
        let again = self.note("", &bytes)?;
        Ok((value, again))
    }

    async fn view(&self, id: JobId, arrival: Option<Arrival>) -> Result<JobView, Problem> {
        let hub = Arc::clone(&self.state.hub);
        self.on_job(&self.state.lanes.read, id, move |_, job| jobs::view(&hub, job, arrival)).await
    }

    /// Looks, and looks again whenever there is word of the job, until what is waited for is there.
    async fn wait_for(
        &self,
        id: JobId,
        entry: Option<Arc<Entry>>,
        query: &Query,
        arrival: Option<Arrival>,
    ) -> Result<JobView, Problem> {
        let until = tokio::time::Instant::now() + query.wait;
        let mut closing = self.state.closing.clone();
        // A job that was launched just now is not looked at before there is word of it.
        let mut fresh = arrival == Some(Arrival::Admitted) && entry.is_some() && !query.wait.is_zero();
        let mut entry = entry;
        loop {
            let mut seen = match &entry {
                Some(entry) => entry.seen(),
                None if query.wait.is_zero() => return self.view(id, arrival).await,
                None => {
                    let view = self.view(id, arrival).await?;
                    if jobs::is_reached(query.until, &view) {
                        return Ok(view);
                    }
                    entry = Some(self.state.hub.entry(id));
                    continue;
                }
            };
            let before = *seen.borrow_and_update();
            if !std::mem::take(&mut fresh) || jobs::is_word(query.until, Default::default(), before) {
                let mut view = self.view(id, arrival).await?;
                if let Some(entry) = &entry {
                    jobs::hasten(&mut view, before, entry.exit());
                }
                if jobs::is_reached(query.until, &view) || *closing.borrow() {
                    return Ok(view);
                }
                // Looked at in the moment between its keeper's end and the entry's.
                if before.settled {
                    return Ok(view);
                }
            }
            let word = async {
                loop {
                    if seen.changed().await.is_err() {
                        return;
                    }
                    let now = *seen.borrow_and_update();
                    if now != before && jobs::is_word(query.until, before, now) {
                        return;
                    }
                }
            };
            let over = tokio::select! {
                () = word => false,
                () = tokio::time::sleep_until(until) => true,
                _ = closing.changed() => true,
            };
            if over {
                return self.view(id, arrival).await;
            }
        }
    }

    async fn look(self, id: JobId, query: Query) -> Result<Answer, Problem> {
        let view = self.while_let_in(self.wait_for(id, None, &query, None)).await?;
        Ok(answer::json(&view))
    }

    async fn list(self, query: Query) -> Result<Answer, Problem> {
        let (home, scope) = (Arc::clone(&self.state.home), self.admittance.scope.clone());
        let list = move || jobs::list(&home, &scope, query.after, query.limit);
        Ok(answer::json(&self.on(&self.state.lanes.read, list).await?))
    }

    async fn admit(self, body: &mut Body, query: Query) -> Result<Answer, Problem> {
        let (admission, again): (Admission, bool) = self.json(body).await?;
        if self.state.hub.open_jobs() >= OPEN_JOBS && !again {
            let detail = format!("{OPEN_JOBS} jobs are open here, which is the limit");
            return Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, "TOO_MANY_JOBS", detail)
                .remedy("stop some, or wait for their end")
                .retryable());
        }
        let (home, hub) = (Arc::clone(&self.state.home), Arc::clone(&self.state.hub));
        let (ground, admittance) = (Arc::clone(&self.state.ground), self.admittance.clone());
        let attempt = admission.attempt;
        let admit = move || admit::admit(&home, &ground, &admittance, admission, &|id| hub.watches(id));
        let admitted = self.on(&self.state.lanes.work, admit).await;
        let admitted = admitted.map_err(|problem| of_attempt(problem, attempt));
        self.record_stale(&admitted);
        match admitted? {
            Answered::Removed(tombstone) => Ok(answer::json(&jobs::removed(*tombstone))),
            Answered::Here(job, arrival, watch) => {
                let entry = watch.map(|watch| self.state.hub.adopt(job.id(), watch));
                let id = job.id();
                drop(job);
                let waiting = self.wait_for(id, entry, &query, Some(arrival));
                Ok(answer::json(&self.while_let_in(waiting).await?))
            }
        }
    }

    async fn read(self, id: JobId, query: Query) -> Result<Answer, Problem> {
        let records = match self.headers.get(header::ACCEPT).map(HeaderValue::as_bytes) {
            Some(kind) if kind == records::CONTENT_TYPE.as_bytes() => true,
            None | Some(b"application/octet-stream" | b"*/*") => false,
            Some(_) => {
                let detail = format!("output is application/octet-stream or {}", records::CONTENT_TYPE);
                return Err(Problem::new(StatusCode::NOT_ACCEPTABLE, "NOT_ACCEPTABLE", detail));
            }
        };
        if query.committed {
            self.sync(id).await?;
        }
        self.while_let_in(self.read_on(id, &query, records)).await
    }

    /// Reads, and waits for output where there is nothing new.
    async fn read_on(&self, id: JobId, query: &Query, records: bool) -> Result<Answer, Problem> {
        let until = tokio::time::Instant::now() + query.wait;
        let mut closing = self.state.closing.clone();
        let mut following = None;
        let mut pauses = LOOK_AGAIN.iter();
        let mut pause = LOOK_AGAIN[0];
        loop {
            let (piece, memory) = self.read_once(id, query, records).await?;
            if piece.moved || tokio::time::Instant::now() >= until || *closing.borrow() {
                let holder = self.state.holders.enter(Arc::clone(self.cut));
                return Ok(of_piece(piece, records, memory, holder));
            }
            drop(memory);
            let Some(following) = &mut following else {
                // Followed first and looked at once more, so that nothing falls in between.
                following = Some(self.state.hub.entry(id).follow());
                continue;
            };
            pause = pauses.next().copied().unwrap_or(pause);
            let mut seen = following.seen();
            let over_before = { *seen.borrow_and_update() };
            let over = async {
                loop {
                    if over_before.settled || over_before.unknown {
                        // Nobody will tell of anything more: what its scribe may still write is looked for.
                        return std::future::pending::<()>().await;
                    }
                    if seen.changed().await.is_err() || seen.borrow().settled || seen.borrow().unknown {
                        return;
                    }
                }
            };
            tokio::select! {
                () = following.output() => {}
                () = over => {}
                () = tokio::time::sleep(pause) => {}
                () = tokio::time::sleep_until(until) => {}
                _ = closing.changed() => {}
            }
        }
    }

    async fn read_once(
        &self,
        id: JobId,
        query: &Query,
        records: bool,
    ) -> Result<(output::Piece, OwnedSemaphorePermit), Problem> {
        // As large a piece as was asked for while few read; a fair share of the memory while many do.
        let reading = Reading::enter(&self.state.reading);
        let share = (output::MEMORY / 2 / reading.all).max(output::LEAST);
        let max = query.max.min(share);
        let permits = u32::try_from(max.div_ceil(output::LEAST)).unwrap_or(1);
        let memory = Arc::clone(&self.state.answers).acquire_many_owned(permits);
        let mut memory = self.with_patience(memory).await?;
        let readers = Arc::clone(&self.state.readers);
        let want = Want { from: query.from, max, stream: query.stream, records };
        let read = move |_: &Home, job: &Job| output::read(&readers, job, want);
        let piece = self.on_job(&self.state.lanes.read, id, read).await?;
        // What it does not fill is free for others at once.
        let filled = (piece.body.len() as u64).div_ceil(output::LEAST).max(1);
        let spare = memory.num_permits().saturating_sub(usize::try_from(filled).unwrap_or(usize::MAX));
        drop(memory.split(spare));
        Ok((piece, memory))
    }

    /// Waits for memory. Where all of it is held by answers that nobody takes, those that have been at it for longest go.
    async fn with_patience(
        &self,
        memory: impl Future<Output = Result<OwnedSemaphorePermit, tokio::sync::AcquireError>>,
    ) -> Result<OwnedSemaphorePermit, Problem> {
        let mut memory = std::pin::pin!(memory);
        let until = tokio::time::Instant::now() + MEMORY_WITHIN;
        while tokio::time::Instant::now() < until {
            match tokio::time::timeout(CUT_EVERY, memory.as_mut()).await {
                Ok(memory) => return memory.map_err(|_| busy(NotDone::Full)),
                Err(_) => self.state.holders.cut_oldest(),
            }
        }
        Err(busy(NotDone::Full))
    }

    /// Has the keeper sync the log. Where none answers, what is committed is what is.
    async fn sync(&self, id: JobId) -> Result<(), Problem> {
        let sync = move |_: &Home, job: &Job| {
            if job.receipt().map_err(|error| answer::storage("reading the receipt", &error))?.is_none() {
                control::sync(job, Duration::from_secs(30))
                    .map_err(|error| answer::storage("syncing the output", &error).about(id))?;
            }
            Ok(())
        };
        self.on_job(&self.state.lanes.work, id, sync).await
    }

    async fn stop(self, body: &mut Body, id: JobId) -> Result<Answer, Problem> {
        let (stop, _): (verbs::Stop, _) = self.json(body).await?;
        let generation = self.facts()?.generation;
        let stop = move |home: &Home, job: &Job| jobs::stop(home, job, stop, generation);
        let stopped = self.on_job(&self.state.lanes.urgent, id, stop).await?;
        if let verbs::Stopped::Stale { stale } = &stopped {
            self.dropped(&stale.to_string());
        }
        Ok(answer::json(&stopped))
    }

    async fn settle(self, body: &mut Body, id: JobId) -> Result<Answer, Problem> {
        let (how, _): (verbs::Settle, _) = self.json(body).await?;
        let settle = move |home: &Home, job: &Job| jobs::settle_lost(home, job, how);
        Ok(answer::json(&self.on_job(&self.state.lanes.settle, id, settle).await?))
    }

    async fn stdin(self, body: &mut Body, id: JobId, query: Query) -> Result<Answer, Problem> {
        let bytes = read_body(self.state, self.headers, body, limits::STDIN_BODY).await?;
        self.note(&format!("{} {}", query.offset, query.close), &bytes)?;
        self.while_let_in(self.give(id, &query, bytes)).await
    }

    /// Offers input until all of it is taken, or the wait is over.
    async fn give(&self, id: JobId, query: &Query, bytes: Bytes) -> Result<Answer, Problem> {
        let until = tokio::time::Instant::now() + query.wait;
        let Some(end) = query.offset.0.checked_add(bytes.len() as u64).map(Cursor) else {
            let detail = format!("no input begins at {}", query.offset);
            return Err(Problem::new(StatusCode::CONFLICT, "BAD_OFFSET", detail).about(id));
        };
        let mut taken = query.offset;
        loop {
            let bytes = bytes.clone();
            let from = usize::try_from(taken.0.saturating_sub(query.offset.0))
                .unwrap_or(usize::MAX)
                .min(bytes.len());
            let (offset, close) = (Cursor(query.offset.0 + from as u64), query.close);
            let give = move |_: &Home, job: &Job| jobs::give_input(job, offset, &bytes[from..], close);
            let answered = self.on_job(&self.state.lanes.urgent, id, give).await?;
            let over = tokio::time::Instant::now() >= until || *self.state.closing.borrow();
            match answered {
                Some(answered) if answered.closed || (answered.taken >= end && !query.close) || over => {
                    return Ok(answer::json(&answered));
                }
                Some(answered) => taken = answered.taken.max(taken),
                None if over => return Ok(answer::json(&StdinTaken { taken, closed: false })),
                None => {}
            }
            tokio::time::sleep(OFFER_AGAIN).await;
        }
    }

    async fn resize(self, body: &mut Body, id: JobId) -> Result<Answer, Problem> {
        let (size, _): (Resize, _) = self.json(body).await?;
        let resize = move |_: &Home, job: &Job| {
            control::resize(job, size.rows, size.cols).map_err(|error| match error.kind() {
                io::ErrorKind::NotConnected | io::ErrorKind::InvalidInput => {
                    let detail = format!("job {id} has no terminal now");
                    Problem::new(StatusCode::CONFLICT, "NO_TERMINAL", detail).about(id)
                }
                _ => answer::storage("setting the size of its terminal", &error).about(id),
            })
        };
        self.on_job(&self.state.lanes.urgent, id, resize).await?;
        Ok(answer::json(&serde_json::json!({})))
    }

    async fn acknowledge(self, body: &mut Body, id: JobId) -> Result<Answer, Problem> {
        let (Acknowledge { brain, cursor }, _) = self.json(body).await?;
        let acknowledge = move |home: &Home, job: &Job| {
            let outcome = brains::acknowledge(home, job, &brain, cursor)
                .map_err(|error| answer::storage("taking the acknowledgement", &error).about(id))?;
            let because = outcome.refusal();
            Ok(Acknowledged { job_id: id, brain, released: because.is_none(), because })
        };
        Ok(answer::json(&self.on_job(&self.state.lanes.work, id, acknowledge).await?))
    }

    /// Standard input for an admission, written as it comes: it never lies in memory.
    async fn spool(self, body: &mut Body) -> Result<Answer, Problem> {
        let failed = |error: io::Error| answer::storage("spooling", &error);
        if announced(self.headers).is_some_and(|length| length > limits::SPOOL_BODY) {
            return Err(too_large(limits::SPOOL_BODY));
        }
        let mut random = [0; 12];
        fill_random(&mut random).map_err(failed)?;
        let random = outlast_core::bytes::hex(&random);
        let aside = format!("spooling.{random}");
        let (home, name) = (Arc::clone(&self.state.home), aside.clone());
        let open = move || {
            let tmp = files::open_subdir(home.dir(), "tmp").map_err(failed)?;
            files::create_new(tmp.as_fd(), &name, b"").map_err(failed)
        };
        let mut file = self.on(&self.state.lanes.work, open).await?;
        let mut hasher = blake3::Hasher::new();
        let mut total: u64 = 0;
        let spooled = loop {
            let piece = match next_piece(body).await {
                Ok(Some(piece)) => piece,
                Ok(None) => break Ok(()),
                Err(problem) => break Err(problem),
            };
            total += piece.len() as u64;
            if total > limits::SPOOL_BODY {
                break Err(too_large(limits::SPOOL_BODY));
            }
            hasher.update(&piece);
            let write = move || {
                io::Write::write_all(&mut file, &piece).map_err(failed)?;
                Ok(file)
            };
            match self.on(&self.state.lanes.work, write).await {
                Ok(back) => file = back,
                Err(problem) => break Err(problem),
            }
        };
        let blake3 = hasher.finalize().to_hex().to_string();
        let spool = admit::spool_name(&self.state.home, &self.admittance.scope, &random, &blake3, total);
        let (home, name) = (Arc::clone(&self.state.home), spool.clone());
        let close = move || {
            let tmp = files::open_subdir(home.dir(), "tmp").map_err(failed)?;
            let finished = spooled.and_then(|()| {
                let file = files::open_for_sync(tmp.as_fd(), &aside).map_err(failed)?;
                file.sync_all().map_err(failed)?;
                files::rename_new(tmp.as_fd(), &aside, tmp.as_fd(), &name).map_err(failed)
            });
            if finished.is_err() {
                let _ = rustix::fs::unlinkat(&tmp, aside.as_str(), rustix::fs::AtFlags::empty());
            }
            finished
        };
        self.on(&self.state.lanes.work, close).await?;
        Ok(answer::json(&Spooled { spool, blake3, bytes: total }))
    }

    async fn fence_view(self) -> Result<Answer, Problem> {
        let (home, scope) = (Arc::clone(&self.state.home), self.admittance.scope.clone());
        let look = move || fence_now(&home, &scope);
        Ok(answer::json(&self.on(&self.state.lanes.read, look).await?))
    }

    async fn fence(self, body: &mut Body) -> Result<Answer, Problem> {
        let (verbs::Fence {}, _) = self.json(body).await?;
        let generation = self.facts()?.generation;
        let (home, scope) = (Arc::clone(&self.state.home), self.admittance.scope.clone());
        let raise = move || {
            fence::raise(&home, &scope, generation).map_err(|error| of_fence(&error))?;
            fence_now(&home, &scope)
        };
        let raised = self.on(&self.state.lanes.work, raise).await;
        self.record_stale(&raised);
        Ok(answer::json(&raised?))
    }

    async fn seal(self, body: &mut Body) -> Result<Answer, Problem> {
        let (Seal { run }, _) = self.json(body).await?;
        let generation = self.facts()?.generation;
        let (home, scope) = (Arc::clone(&self.state.home), self.admittance.scope.clone());
        let seal = move || {
            let sealed = fence::seal(&home, &scope, &run, generation).map_err(|error| of_fence(&error))?;
            Ok(Sealed { run, jobs: sealed.jobs, unreadable: sealed.unreadable, already: sealed.already })
        };
        let sealed = self.on(&self.state.lanes.work, seal).await;
        self.record_stale(&sealed);
        Ok(answer::json(&sealed?))
    }

    fn record_stale<T>(&self, result: &Result<T, Problem>) {
        if let Err(problem) = result
            && problem.code == "STALE"
        {
            self.dropped(&problem.detail);
        }
    }
}

/// A later attempt of a key that has none: the job that is missing is the one it would follow, of which the caller said
/// nothing, so it is put in the caller's own words.
fn of_attempt(problem: Problem, attempt: Attempt) -> Problem {
    if problem.code != "NO_SUCH_JOB" {
        return problem;
    }
    let detail = format!("attempt {attempt} follows nothing: this key has no job here");
    Problem::new(StatusCode::NOT_FOUND, "NO_SUCH_JOB", detail)
        .remedy("admit attempt 1 first: each later attempt follows the one before, once that is proved dead")
}

fn fence_now(home: &Home, scope: &outlast_core::id::Scope) -> Result<FenceView, Problem> {
    let failed = |error: io::Error| answer::storage("reading the fence", &error);
    let record = fence::look(home, scope).map_err(failed)?;
    let mutation_mark = marks::latest(home.dir()).map_err(failed)?;
    Ok(FenceView {
        generation: record.generation,
        sealed: record.sealed.into_iter().map(|sealed| sealed.run).collect(),
        mutation_mark,
    })
}

fn of_fence(error: &fence::FenceError) -> Problem {
    match error {
        fence::FenceError::Closed(closed) => guard::stale(&closed.to_string()),
        fence::FenceError::Storage(error) => answer::storage("raising the fence", error),
    }
}

fn of_piece(piece: output::Piece, records: bool, memory: OwnedSemaphorePermit, holder: Holder) -> Answer {
    let kind = if records { records::CONTENT_TYPE } else { "application/octet-stream" };
    let body = Bytes::from_owner(Held { bytes: piece.body, _memory: memory, _holder: holder });
    let mut answer = answer::with_type(StatusCode::OK, kind, body);
    let headers = answer.headers_mut();
    headers.insert(call::output::NEXT, HeaderValue::from(piece.next.0));
    headers.insert(call::output::COMMITTED, HeaderValue::from(piece.committed.0));
    headers.insert(call::output::TAIL, HeaderValue::from_static(piece.tail));
    if let Ok(gaps) = HeaderValue::from_str(&piece.gaps)
        && !piece.gaps.is_empty()
    {
        headers.insert(call::output::GAPS, gaps);
    }
    headers.insert(header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
    answer
}

/// Bytes of an answer, with the memory they were promised until they have been sent.
struct Held {
    bytes: Vec<u8>,
    _memory: OwnedSemaphorePermit,
    _holder: Holder,
}

/// One of those who read at this moment, however its call ends.
struct Reading<'a> {
    count: &'a AtomicUsize,
    /// How many there are, this one included.
    all: u64,
}

impl Reading<'_> {
    fn enter(count: &AtomicUsize) -> Reading<'_> {
        let all = count.fetch_add(1, Ordering::Relaxed) as u64 + 1;
        Reading { count, all }
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}
