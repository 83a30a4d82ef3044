//! The parts of the manual that follow the options: exit codes, variables, examples.

/// After `outlast --help`.
pub(crate) const OVERVIEW: &str = "\
Exit codes:
  0         done and successful; for `run --background` and `--service`: started
  1         general error; JOB_LOST: how the command ended is not known
  2         the arguments are wrong, and nothing was done; DETACH_REFUSED
  4         something that must be there first is not (a folder, a secret, a containment, an input's end)
  5         no such job in this scope
  6         conflict: the key belongs to another command, or the workspace to a job whose end is unknown
  7         the system denies it
  10        TIMEOUT: a deadline passed, or the budget with `--on-limit stop`; STALLED: no progress
  12        unavailable for now; the same call may succeed later
  14        INCOMPLETE: the work goes on (or is paused); the answer says how to continue and how to cancel
  126, 127  EXEC_FAILED: the program could not be executed, or was not found
  130, 143  CANCELLED: by Ctrl-C, or by a stop
  other     the command's own exit code (COMMAND_FAILED); 128 + N if signal N ended it

Environment:
  OUTLAST_HOME           the folder that holds the jobs, see --home
  OUTLAST_SCOPE          whose jobs are found, read and stopped [default: default]
  OUTLAST_CGROUP         the cgroup below which jobs get theirs, where one was delegated
  AGENT_CALL_BUDGET_MS   how long one call may take, in milliseconds; 0 for no bound
  NO_COLOR               no colour

Examples:
  outlast run -- cargo test --workspace
  outlast run -c 'cargo test 2>&1 | tail -n 50'
  outlast job list
  outlast job wait 7k2m9q

`outlast help run` and `outlast help job wait` have the rest.";

/// After `outlast run --help`.
pub(crate) const RUN: &str = "\
Signals to this call:
  SIGTERM, SIGHUP and a closed standard output hand the command off at once: it goes on, the answer (exit 14) is still
  written if anyone can read it. A second SIGTERM exits at once. With `--on-limit stop` they stop the command instead,
  without waiting for the proof. Ctrl-C at a terminal stops the command and waits for the proof (130); a second one
  detaches. With --resume --no-detach, SIGTERM pauses.

Exit codes:
  0         the command succeeded; with --background or --service: it has started
  1         JOB_LOST: how the command ended is not known
  2         wrong arguments, DETACH_REFUSED, SECRET_IN_COMMAND; nothing was started
  4         a precondition: HOME_UNUSABLE, CWD_NOT_FOUND, SECRET_NOT_SET, INPUT_INCOMPLETE, CONTAINMENT_UNAVAILABLE; nothing was started
  6         KEY_CONFLICT, WORKSPACE_UNKNOWN, NOT_PROVED_DEAD; nothing was started
  10        TIMEOUT, STALLED: the whole tree was ended, and that is proved
  12        unavailable for now (storage, keeper)
  14        INCOMPLETE: run `data.continue_command`, until the code is another one
  126, 127  EXEC_FAILED
  130, 143  CANCELLED
  other     the command's own (COMMAND_FAILED); 128 + N if signal N ended it

Home:
  Jobs are kept in --home, else $OUTLAST_HOME, else $XDG_STATE_HOME/outlast, else ~/.local/state/outlast: output, receipt
  and command, readable by their owner alone. A finished job is kept for 24 hours (`outlast job gc`).

Environment the command is given, beside the caller's own:
  OUTLAST_JOB_ID       the job's id
  OUTLAST_PROGRESS     a file for progress: one JSON object a line, {\"done\": 3, \"total\": 9, \"unit\": \"files\"}
  OUTLAST_CHECKPOINT   with --resume: the folder for what it saves
  AGENT_CALL_BUDGET_MS is not passed on.

Examples:
  A test run that may take longer than a call does:
    outlast run -- cargo test --workspace
  The same as one line of shell, judged by every stage of its pipeline:
    outlast run -c 'cargo test 2>&1 | tail -n 50'
  At most 10 seconds, and nothing left running after that:
    outlast run --budget 10s --on-limit stop -- ./probe
  A development server, until it is cancelled:
    outlast run --service -- npm run dev
  A deployment that must not happen twice, whatever happens to the answer:
    outlast run --idempotency-key deploy-4711 -- ./deploy
  Work that saves itself and continues where it was:
    outlast run --resume -- ./train --epochs 40";

/// After `outlast job --help`.
pub(crate) const JOB: &str = "\
States:
  starting   admitted; its process does not exist yet
  running    it runs
  paused     ended to be continued; the identical call goes on from what it saved last
  stopping   its tree is being ended; no proof of its death yet
  unknown    its keeper is lost and nothing proves its end: `outlast job settle`
  settled    there is a receipt

Examples:
  outlast job list
  outlast job wait 7k2m9q
  outlast job logs 7k2m9q --cursor 4096 --follow
  outlast job cancel 7k2m9q";

/// After `outlast job wait --help`.
pub(crate) const WAIT: &str = "\
Exit codes:
  as `outlast run` would have answered; 5 for no such job; 14 while it goes on; 1 (JOB_LOST) where its keeper is lost

Examples:
  outlast job wait 7k2m9qxw4t1rz5cb.1.1
  until outlast job wait --budget 30s 7k2m9q; [ $? -ne 14 ]; do :; done";

/// After `outlast job logs --help`.
pub(crate) const LOGS: &str = "\
Exit codes:
  0    all there is has been given; with --follow: and the job is settled
  5    no such job
  14   with --follow: the budget ended first; `data.continue_command` goes on at the next cursor

Examples:
  outlast job logs 7k2m9q
  outlast job logs 7k2m9q --follow
  outlast job logs 7k2m9q --stream stderr --raw > errors.txt";

/// After `outlast job stdin --help`.
pub(crate) const STDIN: &str = "\
Exit codes:
  0    written; `data.offset` is where the next write begins
  4    the job has no open standard input
  5    no such job
  6    OFFSET_CONFLICT: the offset lies beyond what was taken; `error.context` says where it stands
  14   the command does not read: the budget ended first, `data.offset` is how far it got

A job that has ended takes nothing: the answer is 0 with `data.effect` `noop` and its state.

Examples:
  printf 'yes\\n' | outlast job stdin 7k2m9q
  outlast job stdin 7k2m9q --close < /dev/null";

/// After `outlast job cancel --help`.
pub(crate) const CANCEL: &str = "\
Exit codes:
  0    stopped, and that is proved; or it was over already (`data.effect` `noop`); or its save was given up
  1    JOB_LOST: its keeper is lost, and nothing proves its end
  5    no such job
  6    STOP_STALE: the stop was meant for an attempt that is over
  14   it is being stopped; the same call waits for the proof

Examples:
  outlast job cancel 7k2m9q
  outlast job cancel --force 7k2m9q";

/// After `outlast job settle --help`.
pub(crate) const SETTLE: &str = "\
Exit codes:
  0    settled, or the word was recorded; or it was before (`data.effect` `noop`)
  4    KEEPER_LIVES; DEATH_NOT_PROVED; CONFIRMATION_REQUIRED: look at what it lists, then add --yes
  5    no such job
  14   its tree is being ended; the same call goes on

Examples:
  outlast job settle 7k2m9q
  outlast job settle 7k2m9q --attest ada";

/// After `outlast job retry --help`.
pub(crate) const RETRY: &str = "\
Exit codes:
  as `outlast run` would answer for the new attempt; nothing was started at
  4    a secret is not set, or the input of the attempt before is not kept
  5    no such job
  6    NOT_PROVED_DEAD: the attempt before may live; NOT_THE_LATEST

Examples:
  outlast job retry 7k2m9q";

/// After `outlast job explain --help`.
pub(crate) const EXPLAIN: &str = "\
Exit codes:
  0    explained, whatever the state
  5    no such job

Examples:
  outlast job explain 7k2m9q";

/// After `outlast job gc --help`.
pub(crate) const GC: &str = "\
Exit codes:
  0    removed what there was to remove
  12   storage is unavailable for now

Examples:
  outlast job gc --keep 1h";

/// After `outlast doctor --help`.
pub(crate) const DOCTOR: &str = "\
Exit codes:
  0    reported; with --verify: and no invariant is violated
  1    VIOLATIONS_FOUND: `data.verify.violations` lists them
  4    HOME_NOT_SET, HOME_UNUSABLE

Examples:
  outlast doctor
  outlast doctor --verify";
