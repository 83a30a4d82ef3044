//! The run of the program: what it takes at its start, when it ends, what it gives back.

use crate::admit::Ground;
use crate::connections::{Connections, dial_for_ever, listen, trust_of};
use crate::dial::Dialer;
use crate::guard::Guard;
use crate::hub::Hub;
use crate::output;
use crate::pool::Lanes;
use crate::reserve::{self, Reserve};
use crate::settings::Settings;
use crate::shared::{BODY_MEMORY, BODY_PIECE, Calls, Shared};
use crate::tokens::Tokens;
use outlast_hand::home::{Home, HomeError};
use outlast_hand::{gc, job, probe};
use outlast_sys::signals::SignalFd;
use outlast_sys::{Signal, mem};
use outlast_wire::hello::{Hello, Limits, Offer};
use outlast_wire::{limits, version};
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Semaphore, watch};

/// The name of the runner's socket in its home.
pub const SOCKET: &str = "runner.sock";

/// How long connections have to finish when the runner ends.
pub(crate) const FINISH_WITHIN: Duration = Duration::from_secs(2);
/// The memory of all answers, in the pieces that they take.
const ANSWERS: usize = (output::MEMORY / output::LEAST) as usize;
/// How often the home is tidied, at most (the hand itself keeps to once an hour).
const TIDY_EVERY: Duration = Duration::from_secs(600);

/// Why a runner could not run.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The home.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// Another runner has it.
    #[error("a runner serves {} already", .0.display())]
    Served(PathBuf),
    /// A place to listen at.
    #[error("cannot listen on {place}")]
    Listen {
        /// Where.
        place: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// What it was told cannot be, wherever it runs. Nothing was done.
    #[error("{0}")]
    Argument(String),
    /// Who may call.
    #[error("{0}")]
    Access(String),
    /// The system.
    #[error("{doing}")]
    System {
        /// What was being done.
        doing: &'static str,
        /// What it said.
        #[source]
        source: io::Error,
    },
}

/// What a runner says of itself once it listens.
#[derive(Debug, Clone)]
pub struct Ready {
    /// The addresses, as clients write them.
    pub addresses: Vec<String>,
    /// The fingerprint of its certificate, where it made one.
    pub fingerprint: Option<String>,
}

/// Runs a runner until it is told to end (SIGTERM, SIGINT) or has been idle for long enough. `ready` is called once it
/// listens everywhere.
///
/// # Errors
/// [`ServeError`]. Jobs and keepers are not touched by it.
pub fn serve(settings: Settings, ready: impl FnOnce(&Ready)) -> Result<(), ServeError> {
    settings.check().map_err(ServeError::Argument)?;
    // Before anything is made: a file that is not in order leaves nothing behind.
    let tokens = match &settings.token_file {
        None => None,
        Some(path) => Some(Tokens::open(path).map_err(|error| ServeError::Access(error.to_string()))?),
    };
    let system = |doing| move |source| ServeError::System { doing, source };
    // Before any thread exists, so that they all have them blocked.
    let signals = SignalFd::new(&[Signal::TERM, Signal::INT, Signal::HUP, Signal::PIPE])
        .map_err(|errno| system("watching for signals")(errno.into()))?;
    let home = Home::open_as(&settings.home, settings.sandbox.as_deref(), settings.sandbox_generation)?;
    let reserve = reserve::take(&home, crate::settings::CONNECTIONS, settings.keeper.as_deref())
        .map_err(system("taking the home"))?;
    let Some(reserve) = reserve else { return Err(ServeError::Served(settings.home)) };
    // Before any thread exists: what a namespace needs can be tried by a process with one thread only.
    let hello = hello_of(&home, &reserve).map_err(system("looking around"))?;
    // Before any thread exists: what their heaps would keep of large answers is more than sharing one costs.
    mem::share_one_heap();
    let lanes = Lanes::start().map_err(system("starting threads"))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .map_err(system("starting the event loop"))?;
    let home = Arc::new(home);
    let served =
        runtime.block_on(run(settings, tokens, Arc::clone(&home), lanes, &reserve, hello, signals, ready));
    drop(runtime);
    reserve.release();
    served
}

#[expect(clippy::too_many_arguments, reason = "what was taken before the event loop began, each once")]
async fn run(
    settings: Settings,
    tokens: Option<Tokens>,
    home: Arc<Home>,
    lanes: Lanes,
    reserve: &Reserve,
    hello: Hello,
    signals: SignalFd,
    ready: impl FnOnce(&Ready),
) -> Result<(), ServeError> {
    let (close, closing) = watch::channel(false);
    let hub = Arc::new(Hub::new(Arc::clone(&home), lanes.clone()));
    let state = Arc::new(Shared {
        hub: Arc::clone(&hub),
        guard: Guard::new(tokens),
        ground: Arc::new(Ground {
            environment: settings.environment.clone(),
            keeper: settings.keeper.clone(),
            nest: reserve.nest.clone(),
        }),
        readers: Arc::default(),
        hello,
        bodies: Arc::new(Semaphore::new(BODY_MEMORY / BODY_PIECE)),
        answers: Arc::new(Semaphore::new(ANSWERS)),
        holders: Arc::default(),
        reading: AtomicUsize::new(0),
        calls: Calls::default(),
        closing: closing.clone(),
        lanes,
        home,
    });
    let connections = Arc::new(Connections::new(reserve.connections));
    let mut listening = Ready { addresses: Vec::new(), fingerprint: None };
    for place in &settings.listen {
        listen(place, &settings, &state, &connections, &mut listening)?;
    }
    for to in &settings.dial {
        let dialer = Dialer::new(to, trust_of(&to.tls)?, &state.home)?;
        tokio::spawn(dial_for_ever(dialer, Arc::clone(&state), Arc::clone(&connections)));
    }
    tokio::spawn(Arc::clone(&hub).sweep_for_ever());
    tokio::spawn(tidy_for_ever(Arc::clone(&state)));
    ready(&listening);
    wait_for_end(&signals, &state, &connections, settings.idle_exit).await?;
    let _ = close.send(true);
    connections.finish(FINISH_WITHIN).await;
    Ok(())
}

async fn wait_for_end(
    signals: &SignalFd,
    state: &Shared,
    connections: &Connections,
    idle_exit: Option<Duration>,
) -> Result<(), ServeError> {
    let failed = |source| ServeError::System { doing: "watching for signals", source };
    #[expect(deprecated, reason = "its successor is unsafe code; the descriptor is borrowed for as long")]
    let told = AsyncFd::new(signals.as_fd()).map_err(failed)?;
    let mut idle_since: Option<Instant> = None;
    let mut told_problem = None;
    let mut ebbed = false;
    loop {
        let look = tokio::time::timeout(Duration::from_secs(1), told.readable()).await;
        if let Ok(ready) = look {
            let mut ready = ready.map_err(failed)?;
            while let Ok(Some(received)) = signals.read() {
                let ends = [Signal::TERM.as_raw(), Signal::INT.as_raw()];
                if ends.contains(&received.signal) {
                    return Ok(());
                }
            }
            ready.clear_ready();
        }
        let problem = state.guard.problem();
        if problem != told_problem {
            eprintln!("outlast-hand: {}", problem.as_deref().unwrap_or("the token file is read again"));
            told_problem = problem;
        }
        // Twice in a row, so that what ended at this moment has let go of its memory.
        let before = std::mem::replace(&mut ebbed, has_ebbed(state));
        if before && ebbed {
            state.calls.begin_anew();
            ebbed = false;
            let lanes = state.lanes.clone();
            // On a thread of its own: for the moment that it takes, none of those that allocate waits for it but by chance.
            tokio::spawn(async move { lanes.settle.run(mem::give_back).await });
        }
        let Some(most) = idle_exit else { continue };
        if connections.count() > 0 || state.hub.open_jobs() > 0 {
            idle_since = None;
        } else if idle_since.get_or_insert_with(Instant::now).elapsed() >= most {
            return Ok(());
        }
    }
}

/// Whether many calls have ended, and nobody is being answered. What they took is free by then, but the allocator keeps it:
/// its free pieces lie between what is still in use, and it takes the large ones for such as will be wanted again.
fn has_ebbed(state: &Shared) -> bool {
    state.calls.have_ebbed() && state.answers.available_permits() == ANSWERS
}

async fn tidy_for_ever(state: Arc<Shared>) {
    loop {
        tokio::time::sleep(TIDY_EVERY).await;
        let home = Arc::clone(&state.home);
        let _ = state.lanes.settle.run(move || gc::collect_if_due(&home)).await;
    }
}

fn hello_of(home: &Home, reserve: &Reserve) -> io::Result<Hello> {
    let offers = probe::probe(home);
    let offer =
        |offer: probe::Offer| Offer { name: offer.name, available: offer.available, detail: offer.detail };
    Ok(Hello {
        protocol: 0,
        supported: version::SUPPORTED.to_vec(),
        offered: Vec::new(),
        runner_version: env!("CARGO_PKG_VERSION").to_owned(),
        runner_pid: std::process::id(),
        runner_epoch: reserve.epoch,
        sandbox: home.sandbox().to_owned(),
        sandbox_generation: home.sandbox_generation(),
        boot_id: job::boot_id()?,
        now_ms: 0,
        mutation_mark: 0,
        uid: rustix::process::geteuid().as_raw(),
        containment: offers.containment.into_iter().map(offer).collect(),
        job_limits: offers.limits.into_iter().map(offer).collect(),
        other_user: offers.other_user,
        file_system: offers.storage.kind,
        durable: offers.storage.durable,
        kernel: offers.kernel,
        limits: Limits {
            json_body: limits::JSON_BODY,
            stdin_body: limits::STDIN_BODY,
            spool_body: limits::SPOOL_BODY,
            output: limits::OUTPUT_AT_MOST,
            list: limits::LIST_AT_MOST,
            wait_ms: u64::try_from(limits::WAIT_AT_MOST.as_millis()).unwrap_or(u64::MAX),
            expiry_ms: u64::try_from(limits::EXPIRY_AT_MOST.as_millis()).unwrap_or(u64::MAX),
            connections: u32::try_from(reserve.connections).unwrap_or(u32::MAX),
        },
    })
}
