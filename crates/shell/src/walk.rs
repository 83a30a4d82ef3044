//! The walk: which jobs a script starts, which waits surely join them, and what else would leave the call.
//!
//! A **scope** is one shell process: the script itself, each subshell, each stage of a longer pipeline, each
//! substitution, each background command, each `sh -c` string. A `wait` joins only jobs of its own scope, so
//! `(a &); wait` joins nothing. Braces, functions and `eval` run in the scope they are called in; functions
//! are therefore walked at each call, with the jobs of that moment.
//!
//! A `wait` counts only where it is surely reached:
//!
//! | place of the `wait` | counts |
//! |---|---|
//! | same list, later; also first of an and-or list (`wait $p \|\| exit 1`) | yes |
//! | after `&&` or `\|\|`, in one branch of an `if`, in a `case` without `*`, in a loop body | only for jobs started there |
//! | in every branch of an `if … else`, in every arm of a `case` with `*` | yes |
//! | in the condition of an `if` or a loop | yes |
//! | in `for p in $pids`, of the ids it goes through | yes |
//! | after a plain `exit` or `exec` | no |
//! | in another scope, in a `trap` | no |
//!
//! `wait` alone joins all; `wait $!`, `wait $p` after `p=$!`, `wait "${pids[@]}"` after `pids+=($!)`,
//! `wait %1` and `wait $(jobs -p)` join what they name. `wait -n` joins one of however many.
//!
//! A loop is a **busy-wait** where it asks whether a process lives (`ps`, `pgrep`, `pidof`, `kill -0`) or follows a file by
//! `tail` until it says something; and where it sleeps and does nothing else, or nothing but look. What a command in a loop
//! that sleeps counts as:
//!
//! | command | counts as |
//! |---|---|
//! | the condition of `while` and `until`, whatever it runs | a look |
//! | `[ … ]` about values, `(( … ))`, `read` in a condition | a count: the loop ends by itself, as a `for` does |
//! | `curl`, `test -e`, `grep`, `cat`, `docker ps`, … in the body | a look; work, where it names the variable of its `for` |
//! | any program in a substitution, in a `while` or `until` | a look: its answer is what is waited for |
//! | `echo`, `printf`, `date` | progress, where the loop ends by itself and looks at nothing; else nothing |
//! | `true`, `break`, assignments, … | nothing |
//! | any other program | work: no busy-wait |
//!
//! So `for i in 1 2 3; do echo $i; sleep 1; done` is none, and `while true; do echo waiting; sleep 1; done` is one.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::rc::Rc;

use crate::parse::{self, Stop};
use crate::programs::{self, Act, Arg, How};
use crate::report::{Dialect, FindingKind, LastPipeline, UnparsedReason};
use crate::syntax::{
    AndOr, Arm, Command, Derived, Document, Kind, List, Part, Pipeline, Redirect, Script, Span, Target, Word,
};
use crate::tail;

/// Scripts inside scripts, each with its own reading.
const MAX_SCRIPTS_DEEP: usize = 8;
/// Commands walked, counting a function's again at each call.
const MAX_COMMANDS: usize = 100_000;
/// Jobs running side by side, beyond which no `wait` is looked for any more: following them through every
/// branch costs their number each time.
const MAX_PENDING: usize = 256;
/// Commands inside commands on the walk's own stack, functions and inner scripts included.
const MAX_WALK_DEPTH: usize = 1_000;

/// Something found, before it is put into words.
#[derive(Debug)]
pub(crate) struct Raw {
    pub(crate) kind: FindingKind,
    pub(crate) span: Span,
    pub(crate) message: String,
}

/// What a walk found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) findings: Vec<Raw>,
    pub(crate) busy: Vec<Raw>,
    /// Some inner script could not be read, or the walk had to stop.
    pub(crate) gap: Option<Gap>,
}

/// Why the findings may not be all.
#[derive(Debug)]
pub(crate) enum Gap {
    Syntax { place: usize, what: &'static str },
    Whole(UnparsedReason),
}

impl From<Stop> for Gap {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Syntax { place, what } => Self::Syntax { place, what },
            Stop::Whole(reason) => Self::Whole(reason),
        }
    }
}

/// Reads and walks a whole script as the thing that runs. Gives the tree's deciding pipeline as well.
pub(crate) fn script(text: &[u8], dialect: Dialect) -> Result<(Found, LastPipeline), Stop> {
    let script = parse::parse(text, None, dialect, 0)?;
    let last_pipeline = tail::public(tail::find(&script));
    let mut walker = Walker::default();
    walker.main(script, dialect);
    if dialect == Dialect::Sh {
        walker.main_again(text, None);
    }
    Ok((walker.found, last_pipeline))
}

/// Walks a command line that is started as it is.
pub(crate) fn argv(args: &[Arg]) -> Found {
    let mut walker = Walker::default();
    // Not a shell: its programs are seen, but builtins have no meaning.
    let mut acts = programs::acts(args, Dialect::Sh);
    let shell_text = match &mut acts[..] {
        [Act::Script { text, dialect, how: How::Child }] => Some((std::mem::take(text), *dialect)),
        _ => None,
    };
    match shell_text {
        // The whole command is one script, so it is judged like one, bare sleeps included.
        Some((text, dialect)) => match parse::parse(&text.bytes, Some(&text.places), dialect, 0) {
            Ok(script) => {
                walker.main(script, dialect);
                if dialect == Dialect::Sh {
                    walker.main_again(&text.bytes, Some(&text.places));
                }
            }
            Err(stop) => walker.gap(stop.into()),
        },
        None => {
            let sleeps =
                acts.iter().any(|act| matches!(act, Act::Runs { name, args } if is_sleep(name, args)));
            if let (true, Some(first), Some(last)) = (sleeps, args.first(), args.last()) {
                walker.busy(FindingKind::BareSleep, Span::new(first.span.start, last.span.end));
            }
            let mut shell = Shell::new(Dialect::Sh, Rc::new(Vec::new()));
            let mut state = State::default();
            walker.perform(&acts, &[], &mut shell, &mut state);
            walker.settle(&state);
        }
    }
    walker.found
}

/// What one shell process knows, wherever it is in its text.
struct Shell {
    dialect: Dialect,
    documents: Rc<Vec<Document>>,
    /// The jobs whose ids a variable holds, after the assignment walked last.
    variables: HashMap<Vec<u8>, BTreeSet<usize>>,
    launched: Vec<usize>,
}

impl Shell {
    fn new(dialect: Dialect, documents: Rc<Vec<Document>>) -> Self {
        Self { dialect, documents, variables: HashMap::new(), launched: Vec::new() }
    }

    fn child(&self) -> Self {
        Self::new(self.dialect, Rc::clone(&self.documents))
    }
}

/// What is so at one point of the text, on the way that leads there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    /// Jobs nobody has surely waited for.
    pending: Vec<usize>,
    /// The shell has left: what follows is not reached.
    ended: bool,
}

impl State {
    /// What may be so after either way.
    fn or(mut self, other: &Self) -> Self {
        if self.ended && !other.ended {
            // A way that ended keeps its jobs; nothing on the other way can join them. Conditional exits are
            // common (`|| exit 1`) and end the call anyway, so only the way that goes on is followed.
            return other.clone();
        }
        if other.ended && !self.ended {
            return self;
        }
        // Sorted at all times: jobs are numbered as they start.
        self.pending.extend_from_slice(&other.pending);
        self.pending.sort_unstable();
        self.pending.dedup();
        self
    }
}

struct Job {
    kind: FindingKind,
    span: Span,
}

#[derive(Default)]
struct LoopFrame {
    /// It goes over given data (`for`, `while read`), so that a look at something in it is no poll.
    over_data: bool,
    is_for: bool,
    /// What a `for` sets anew in each round.
    variable: Option<Vec<u8>>,
    /// The walk is in its condition.
    in_condition: bool,
    /// How deep in substitutions the loop itself is.
    substituted: usize,
    /// Its condition compares values, so it ends by itself.
    counts: bool,
    /// It asks after a process, or follows a file: a poll whatever else it does.
    asks: bool,
    sleeps: bool,
    looks: bool,
    says: bool,
    works: bool,
}

impl LoopFrame {
    fn is_busy_wait(&self) -> bool {
        let progresses = self.says && (self.over_data || self.counts) && !self.looks;
        self.asks || self.sleeps && !self.works && !progresses
    }
}

#[derive(Clone)]
struct Function {
    body: Rc<Command>,
    documents: Rc<Vec<Document>>,
}

#[derive(Default)]
struct Walker {
    found: Found,
    seen: HashSet<(FindingKind, usize, usize)>,
    jobs: Vec<Job>,
    functions: HashMap<Vec<u8>, Function>,
    called: HashSet<Vec<u8>>,
    calling: Vec<Vec<u8>>,
    loops: Vec<LoopFrame>,
    /// How many substitutions the walk is in.
    substituted: usize,
    scripts_deep: usize,
    commands: usize,
    depth: usize,
}

impl Walker {
    fn main(&mut self, script: Script, dialect: Dialect) {
        self.bare_sleep(&script, dialect, false);
        self.run_script(script, dialect);
        // A function nobody calls by name may still be called (`trap f EXIT` is; `$f` is not seen).
        let mut idle: Vec<_> =
            self.functions.iter().filter(|(name, _)| !self.called.contains(*name)).collect();
        idle.sort_by_key(|(_, function)| function.body.span.start);
        let idle: Vec<Function> = idle.into_iter().map(|(_, function)| function.clone()).collect();
        for function in idle {
            let mut shell = Shell::new(dialect, Rc::clone(&function.documents));
            let mut state = State::default();
            self.command(&function.body, &mut shell, &mut state);
            self.settle(&state);
        }
    }

    /// `sh` may be dash, which takes some quotes and operators differently: what either reading finds counts.
    fn main_again(&mut self, text: &[u8], places: Option<&[usize]>) {
        if let Ok(script) = parse::parse(text, places, Dialect::Dash, 0) {
            self.functions.clear();
            self.called.clear();
            self.main(script, Dialect::Dash);
        }
    }

    fn run_script(&mut self, script: Script, dialect: Dialect) {
        let Script { list, documents } = script;
        let mut shell = Shell::new(dialect, Rc::new(documents));
        let mut state = State::default();
        self.list(&list, &mut shell, &mut state);
        self.settle(&state);
    }

    // ---- what is found ----

    fn refuse(&mut self, kind: FindingKind, span: Span, message: String) {
        if self.seen.insert((kind, span.start, span.end)) {
            self.found.findings.push(Raw { kind, span, message });
        }
    }

    fn busy(&mut self, kind: FindingKind, span: Span) {
        if self.seen.insert((kind, span.start, span.end)) {
            let message = match kind {
                FindingKind::PollLoop => {
                    "the call would stay in a loop that only looks whether something has changed"
                }
                _ => "the call would only sleep",
            };
            self.found.busy.push(Raw { kind, span, message: message.to_owned() });
        }
    }

    fn gap(&mut self, gap: Gap) {
        self.found.gap.get_or_insert(gap);
    }

    /// The end of a scope: what nobody joined is left running.
    fn settle(&mut self, state: &State) {
        for job in &state.pending {
            let Some(Job { kind, span }) = self.jobs.get(*job) else { continue };
            let (kind, span) = (*kind, *span);
            let message = match kind {
                FindingKind::UnjoinedCoprocess => {
                    "the coprocess runs in the background and no `wait` in the same shell surely joins it"
                }
                _ => "`&` leaves the command running and no `wait` in the same shell surely joins it",
            };
            self.refuse(kind, span, message.to_owned());
        }
    }

    fn start(&mut self, kind: FindingKind, span: Span, shell: &mut Shell, state: &mut State) -> usize {
        let job = self.jobs.len();
        self.jobs.push(Job { kind, span });
        shell.launched.push(job);
        if !state.ended {
            state.pending.push(job);
            if state.pending.len() > MAX_PENDING {
                self.settle(state);
                state.pending.clear();
            }
        }
        job
    }

    // ---- lists and commands ----

    fn list(&mut self, list: &List, shell: &mut Shell, state: &mut State) {
        for item in &list.items {
            if let Some(ampersand) = item.background {
                self.in_child(shell, |walker, shell, state| walker.and_or(&item.and_or, shell, state));
                let span = Span::new(item.and_or.span().start, ampersand + 1);
                self.start(FindingKind::UnjoinedBackground, span, shell, state);
            } else {
                self.and_or(&item.and_or, shell, state);
            }
        }
    }

    fn in_child(&mut self, shell: &Shell, walk: impl FnOnce(&mut Self, &mut Shell, &mut State)) {
        let mut child = shell.child();
        let mut state = State::default();
        walk(self, &mut child, &mut state);
        self.settle(&state);
    }

    fn and_or(&mut self, and_or: &AndOr, shell: &mut Shell, state: &mut State) {
        self.pipeline(&and_or.first, shell, state);
        for pipeline in &and_or.rest {
            let skipped = state.clone();
            self.pipeline(pipeline, shell, state);
            *state = std::mem::take(state).or(&skipped);
        }
    }

    fn pipeline(&mut self, pipeline: &Pipeline, shell: &mut Shell, state: &mut State) {
        if let [only] = &pipeline.stages[..] {
            self.command(only, shell, state);
            return;
        }
        for (index, stage) in pipeline.stages.iter().enumerate() {
            self.in_child(shell, |walker, shell, state| walker.command(stage, shell, state));
            if index > 0 {
                self.fed_by(&pipeline.stages[index - 1], stage, shell);
            }
        }
    }

    /// `echo 'a &' | sh`: the script is in the text, though in another command's arguments.
    fn fed_by(&mut self, source: &Command, reader: &Command, shell: &Shell) {
        let Kind::Simple { words, .. } = &reader.kind else { return };
        let args: Vec<Arg> = words.iter().map(Arg::of_word).collect();
        let reads = programs::acts(&args, shell.dialect).into_iter().find_map(|act| match act {
            Act::ReadsScript(dialect) => Some(dialect),
            _ => None,
        });
        let Some(dialect) = reads else { return };
        let Kind::Simple { words, .. } = &source.kind else { return };
        let args: Vec<Arg> = words.iter().map(Arg::of_word).collect();
        let Some(name) = programs::deciding_program(&args) else { return };
        match name.as_str() {
            "echo" | "printf" => {
                let mut text = Derived::default();
                for arg in &args[1..] {
                    text.append(&arg.script);
                    text.push_glue(if name == "echo" { b' ' } else { b'\n' });
                }
                self.script_text(&text, dialect);
            }
            "cat" => {
                for text in stdin_texts(&source.redirects, shell) {
                    self.script_text(&text, dialect);
                }
            }
            _ => {}
        }
    }

    fn command(&mut self, command: &Command, shell: &mut Shell, state: &mut State) {
        self.commands += 1;
        if self.commands > MAX_COMMANDS {
            self.gap(Gap::Whole(UnparsedReason::TooCostly));
            return;
        }
        if self.depth >= MAX_WALK_DEPTH {
            self.gap(Gap::Whole(UnparsedReason::TooDeep { limit: MAX_WALK_DEPTH }));
            return;
        }
        self.depth += 1;
        self.command_here(command, shell, state);
        self.depth -= 1;
    }

    fn command_here(&mut self, command: &Command, shell: &mut Shell, state: &mut State) {
        for redirect in &command.redirects {
            match &redirect.target {
                Target::Word(word) | Target::HereString(word) => self.parts(&word.parts, shell),
                Target::HereDocument(index) => {
                    let documents = Rc::clone(&shell.documents);
                    if let Some(document) = documents.get(*index) {
                        self.parts(&document.parts, shell);
                    }
                }
            }
        }
        match &command.kind {
            Kind::Simple { assignments, words } => {
                self.simple(assignments, words, &command.redirects, shell, state)
            }
            Kind::Brace(list) => self.list(list, shell, state),
            Kind::Subshell(list) => {
                self.in_child(shell, |walker, shell, state| walker.list(list, shell, state))
            }
            Kind::If { arms, otherwise } => self.branches(arms, otherwise.as_ref(), shell, state),
            Kind::Loop { condition, body } => {
                let over_data = reads_data(condition, shell.dialect);
                self.enter_loop(LoopFrame { over_data, in_condition: true, ..LoopFrame::default() });
                self.list(condition, shell, state);
                if let Some(frame) = self.loops.last_mut() {
                    frame.in_condition = false;
                }
                let never = state.clone();
                self.list(body, shell, state);
                *state = std::mem::take(state).or(&never);
                self.leave_loop(command.span);
            }
            Kind::For { variable, words, body } => {
                let mut ids = BTreeSet::new();
                for word in words {
                    self.parts(&word.parts, shell);
                    ids.extend(ids_in(&word.parts, shell));
                }
                let over_ids = !ids.is_empty();
                if over_ids {
                    shell.variables.insert(variable.clone(), ids);
                }
                let variable = Some(variable.clone());
                self.enter_loop(LoopFrame {
                    over_data: true,
                    is_for: true,
                    variable,
                    ..LoopFrame::default()
                });
                let never = state.clone();
                self.list(body, shell, state);
                if !over_ids {
                    *state = std::mem::take(state).or(&never);
                }
                self.leave_loop(command.span);
            }
            Kind::ArithmeticFor { parts, body } => {
                self.parts(parts, shell);
                self.enter_loop(LoopFrame { over_data: true, is_for: true, ..LoopFrame::default() });
                let never = state.clone();
                self.list(body, shell, state);
                *state = std::mem::take(state).or(&never);
                self.leave_loop(command.span);
            }
            Kind::Case { subject, arms } => {
                self.parts(&subject.parts, shell);
                self.arms(arms, shell, state);
            }
            Kind::Function { name, body } => {
                let function = Function { body: Rc::clone(body), documents: Rc::clone(&shell.documents) };
                self.functions.insert(name.clone(), function);
            }
            Kind::Coprocess { name, body } => {
                self.in_child(shell, |walker, shell, state| walker.command(body, shell, state));
                let job = self.start(FindingKind::UnjoinedCoprocess, command.span, shell, state);
                let mut variable = name.clone().unwrap_or_else(|| b"COPROC".to_vec());
                variable.extend_from_slice(b"_PID");
                shell.variables.insert(variable, BTreeSet::from([job]));
            }
            Kind::Arithmetic(parts) => {
                self.note_in_loop(&[], InLoop::Compares);
                self.parts(parts, shell);
            }
            Kind::Test(words) => {
                let is_file =
                    words.iter().any(|word| word.literal().is_some_and(|text| asks_of_file(&text.bytes)));
                self.note_in_loop(words, if is_file { InLoop::Looks } else { InLoop::Compares });
                for word in words {
                    self.parts(&word.parts, shell);
                }
            }
        }
    }

    fn branches(
        &mut self,
        arms: &[(List, List)],
        otherwise: Option<&List>,
        shell: &mut Shell,
        state: &mut State,
    ) {
        let mut after: Option<State> = None;
        for (condition, body) in arms {
            self.list(condition, shell, state);
            let mut taken = state.clone();
            self.list(body, shell, &mut taken);
            after = Some(match after {
                None => taken,
                Some(before) => before.or(&taken),
            });
        }
        if let Some(body) = otherwise {
            self.list(body, shell, state);
        }
        if let Some(after) = after {
            *state = std::mem::take(state).or(&after);
        }
    }

    fn arms(&mut self, arms: &[Arm], shell: &mut Shell, state: &mut State) {
        let before = state.clone();
        let mut after = if arms.iter().any(|arm| arm.catches_all) { None } else { Some(before.clone()) };
        let mut entering = before.clone();
        for arm in arms {
            for pattern in &arm.patterns {
                self.parts(&pattern.parts, shell);
            }
            let mut taken = entering;
            self.list(&arm.body, shell, &mut taken);
            entering = if arm.falls_through { before.clone().or(&taken) } else { before.clone() };
            after = Some(match after {
                None => taken,
                Some(after) => after.or(&taken),
            });
        }
        if let Some(after) = after {
            *state = after;
        }
    }

    /// Substitutions inside words: each a scope of its own.
    fn parts(&mut self, parts: &[Part], shell: &Shell) {
        for part in parts {
            match part {
                Part::Literal { .. } => {}
                Part::Parameter { inner, .. } | Part::Arithmetic { inner, .. } | Part::Glob { inner, .. } => {
                    self.parts(inner, shell);
                }
                Part::Command { list, .. } | Part::Process { list, .. } => {
                    self.substituted += 1;
                    self.in_child(shell, |walker, shell, state| walker.list(list, shell, state));
                    self.substituted -= 1;
                }
                Part::Array(words) => {
                    for word in words {
                        self.parts(&word.parts, shell);
                    }
                }
            }
        }
    }

    // ---- simple commands ----

    fn simple(
        &mut self,
        assignments: &[Word],
        words: &[Word],
        redirects: &[Redirect],
        shell: &mut Shell,
        state: &mut State,
    ) {
        for word in assignments.iter().chain(words) {
            self.parts(&word.parts, shell);
        }
        for word in assignments {
            assign(word, shell);
        }
        let args: Vec<Arg> = words.iter().map(Arg::of_word).collect();
        let acts = programs::acts(&args, shell.dialect);
        let called = args.first().and_then(|arg| arg.literal.clone());
        if let Some(name) = called.filter(|name| self.functions.contains_key(name)) {
            self.call(name, shell, state);
            return;
        }
        for act in &acts {
            if let Act::ReadsScript(dialect) = act {
                for text in stdin_texts(redirects, shell) {
                    self.script_text(&text, *dialect);
                }
            }
        }
        if acts.is_empty() && !words.is_empty() {
            // `$program`, or a shell with a file: whatever it is, it runs.
            self.note_in_loop(words, InLoop::Runs);
        }
        self.perform(&acts, words, shell, state);
    }

    fn perform(&mut self, acts: &[Act<'_>], words: &[Word], shell: &mut Shell, state: &mut State) {
        for act in acts {
            match act {
                Act::Detaches { kind, span, message } => self.refuse(*kind, *span, message.clone()),
                Act::Script { text, dialect, how: How::Child } => self.script_text(text, *dialect),
                Act::Script { text, dialect, how: How::Inline } => self.inline(text, *dialect, shell, state),
                Act::ReadsScript(_) => {}
                Act::Runs { name, args } => self.program(name, args, words, shell, state),
            }
        }
    }

    fn program(&mut self, name: &str, args: &[Arg], words: &[Word], shell: &mut Shell, state: &mut State) {
        self.note_poll(name, args, words);
        match name {
            "wait" => self.wait(words, args.len(), shell, state),
            "exit" => state.ended = true,
            "exec" if !args.is_empty() => state.ended = true,
            "export" | "local" | "declare" | "typeset" | "readonly" => {
                for word in words {
                    assign(word, shell);
                }
            }
            "trap" => {
                for arg in args {
                    // The name of a function is a script too, and it was handed on as one already.
                    if let Some(literal) = &arg.literal {
                        self.called.insert(literal.clone());
                    }
                }
            }
            _ => {}
        }
    }

    fn call(&mut self, name: Vec<u8>, shell: &mut Shell, state: &mut State) {
        self.called.insert(name.clone());
        let Some(function) = self.functions.get(&name).cloned() else { return };
        if self.calling.contains(&name) {
            return;
        }
        self.calling.push(name);
        let outside = std::mem::replace(&mut shell.documents, Rc::clone(&function.documents));
        self.command(&function.body, shell, state);
        shell.documents = outside;
        self.calling.pop();
    }

    fn wait(&mut self, words: &[Word], count: usize, shell: &Shell, state: &mut State) {
        if state.ended {
            return;
        }
        // Its arguments are the last words of the command, whatever wrapper stands before it.
        let arguments = &words[words.len().saturating_sub(count)..];
        let mut any_one = false;
        let mut named = false;
        let mut joined = BTreeSet::new();
        let mut skip = false;
        for word in arguments {
            let literal = word.literal().map(|text| text.bytes);
            match literal.as_deref() {
                _ if skip => skip = false,
                Some(b"-n") => any_one = true,
                Some(b"-p") => skip = true,
                Some(b"-f" | b"--") => {}
                Some(b"%%" | b"%+" | b"%") => {
                    named = true;
                    joined.extend(shell.launched.last());
                }
                Some([b'%', digits @ ..]) => {
                    named = true;
                    let number = String::from_utf8_lossy(digits).parse::<usize>().unwrap_or(0);
                    joined.extend(number.checked_sub(1).and_then(|index| shell.launched.get(index)));
                }
                Some(_) => named = true,
                None => {
                    named = true;
                    if lists_jobs(&word.parts) {
                        state.pending.clear();
                    }
                    joined.extend(ids_in(&word.parts, shell));
                }
            }
        }
        if any_one {
            if state.pending.len() <= 1 {
                state.pending.clear();
            }
        } else if named {
            state.pending.retain(|job| !joined.contains(job));
        } else {
            state.pending.clear();
        }
    }

    // ---- scripts inside scripts ----

    fn read(&mut self, text: &Derived, dialect: Dialect) -> Option<Script> {
        if self.scripts_deep >= MAX_SCRIPTS_DEEP {
            self.gap(Gap::Whole(UnparsedReason::TooDeep { limit: MAX_SCRIPTS_DEEP }));
            return None;
        }
        if self.commands > MAX_COMMANDS {
            self.gap(Gap::Whole(UnparsedReason::TooCostly));
            return None;
        }
        // Reading counts as walking, so that scripts handed on and on cannot multiply.
        self.commands += text.bytes.len() / 64 + 1;
        match parse::parse(&text.bytes, Some(&text.places), dialect, 0) {
            Ok(script) => Some(script),
            Err(stop) => {
                self.gap(stop.into());
                None
            }
        }
    }

    fn script_text(&mut self, text: &Derived, dialect: Dialect) {
        let Some(script) = self.read(text, dialect) else { return };
        self.scripts_deep += 1;
        self.bare_sleep(&script, dialect, true);
        self.run_script(script, dialect);
        if dialect == Dialect::Sh {
            self.commands += text.bytes.len() / 64 + 1;
            if let Ok(script) = parse::parse(&text.bytes, Some(&text.places), Dialect::Dash, 0) {
                self.run_script(script, Dialect::Dash);
            }
        }
        self.scripts_deep -= 1;
    }

    fn inline(&mut self, text: &Derived, dialect: Dialect, shell: &mut Shell, state: &mut State) {
        let Some(script) = self.read(text, dialect) else { return };
        self.scripts_deep += 1;
        let outside = std::mem::replace(&mut shell.documents, Rc::new(script.documents));
        self.list(&script.list, shell, state);
        shell.documents = outside;
        self.scripts_deep -= 1;
    }

    // ---- waiting and polling ----

    fn enter_loop(&mut self, frame: LoopFrame) {
        self.loops.push(LoopFrame { substituted: self.substituted, ..frame });
    }

    fn leave_loop(&mut self, span: Span) {
        let Some(inner) = self.loops.pop() else { return };
        if inner.is_busy_wait() {
            self.busy(FindingKind::PollLoop, span);
        }
        // What a loop does is done by the one around it.
        if let Some(outer) = self.loops.last_mut() {
            outer.works |= inner.works;
            outer.says |= inner.says;
            outer.looks |= inner.looks;
        }
    }

    fn note_poll(&mut self, name: &str, args: &[Arg], words: &[Word]) {
        let Some(frame) = self.loops.last_mut() else { return };
        let asks_alive =
            name == "kill" && args.first().is_some_and(|arg| arg.literal.as_deref() == Some(b"-0"));
        let alive = matches!(name, "ps" | "pgrep" | "pidof") || asks_alive;
        frame.asks |= alive && (!frame.over_data || frame.is_for) || name == "tail" && !frame.over_data;
        self.note_in_loop(words, if asks_alive { InLoop::Looks } else { in_loop(name, args) });
    }

    /// Notes what a command of these words comes to in the loop it is in.
    fn note_in_loop(&mut self, words: &[Word], what: InLoop) {
        let substituted = self.substituted;
        let Some(frame) = self.loops.last_mut() else { return };
        let names_round = |variable: &Vec<u8>| words.iter().any(|word| names(&word.parts, variable));
        match what {
            InLoop::Sleeps => frame.sleeps = true,
            InLoop::Says => frame.says = true,
            InLoop::Nothing => {}
            InLoop::Compares => frame.counts |= frame.in_condition,
            InLoop::Looks if frame.variable.as_ref().is_some_and(names_round) => frame.works = true,
            InLoop::Looks => frame.looks = true,
            InLoop::Runs if frame.in_condition || !frame.is_for && substituted > frame.substituted => {
                frame.looks = true;
            }
            InLoop::Runs => frame.works = true,
        }
    }

    /// A script whose last command that does anything is `sleep`. An inner script (`inner`) must hold nothing
    /// but sleeps: what follows it is not in view.
    fn bare_sleep(&mut self, script: &Script, dialect: Dialect, inner: bool) {
        let mut last: Option<Span> = None;
        for item in &script.list.items {
            for pipeline in item.and_or.pipelines() {
                let (idle, sleeps) = match &pipeline.stages[..] {
                    [Command { kind: Kind::Simple { words, .. }, .. }] => {
                        let args: Vec<Arg> = words.iter().map(Arg::of_word).collect();
                        let acts = programs::acts(&args, dialect);
                        match acts.last() {
                            Some(Act::Runs { name, args }) => (is_idle(name), is_sleep(name, args)),
                            _ => (words.is_empty(), false),
                        }
                    }
                    _ => (false, false),
                };
                if sleeps {
                    last = Some(pipeline.span);
                } else if !idle {
                    if inner {
                        return;
                    }
                    last = None;
                }
            }
        }
        if let Some(span) = last {
            self.busy(FindingKind::BareSleep, span);
        }
    }
}

fn is_sleep(name: &str, args: &[Arg]) -> bool {
    matches!(name, "sleep" | "usleep" | "gsleep")
        && !args.iter().any(|arg| matches!(arg.literal.as_deref(), Some(b"--help" | b"--version")))
}

/// Commands that say or set something but do no work.
fn is_idle(name: &str) -> bool {
    matches!(name, "echo" | "printf" | "true" | ":" | "date" | "cd" | "set" | "export" | "pwd" | "wait")
}

/// What a command comes to in a loop. See the module's text.
enum InLoop {
    Sleeps,
    Looks,
    Compares,
    Says,
    Nothing,
    Runs,
}

fn in_loop(name: &str, args: &[Arg]) -> InLoop {
    let is = |arg: Option<&Arg>, verbs: &[&str]| {
        let literal = arg.and_then(|arg| arg.literal.as_deref());
        literal.is_some_and(|literal| verbs.iter().any(|verb| verb.as_bytes() == literal))
    };
    let mut operands =
        args.iter().filter(|arg| arg.literal.as_ref().is_none_or(|literal| !literal.starts_with(b"-")));
    let looks = match name {
        _ if is_sleep(name, args) => return InLoop::Sleeps,
        "test" | "[" => {
            let is_file = args.iter().any(|arg| arg.literal.as_deref().is_some_and(asks_of_file));
            return if is_file { InLoop::Looks } else { InLoop::Compares };
        }
        "echo" | "printf" | "date" => return InLoop::Says,
        "break" | "continue" | "return" | "exit" | "local" | "declare" | "let" | "read" | "shift" | "seq"
        | "expr" | "basename" | "dirname" | "false" | "sleep" => return InLoop::Nothing,
        _ if is_idle(name) => return InLoop::Nothing,
        "ps" | "pgrep" | "pidof" | "jobs" | "top" | "lsof" | "fuser" | "ss" | "netstat" | "uptime"
        | "free" | "df" | "du" | "ls" | "stat" | "find" | "cat" | "head" | "tail" | "wc" | "grep"
        | "egrep" | "fgrep" | "rg" | "awk" | "sed" | "cut" | "tr" | "sort" | "uniq" | "jq" | "curl"
        | "wget" | "http" | "nc" | "ncat" | "telnet" | "ping" | "dig" | "host" | "nslookup"
        | "pg_isready" => true,
        "systemctl" => is(operands.next(), &["status", "is-active", "is-failed", "show"]),
        "docker" | "podman" => is(operands.next(), &["ps", "inspect", "logs", "stats", "top"]),
        "kubectl" => is(operands.next(), &["get", "describe", "logs", "top"]),
        "gh" => is(operands.nth(1), &["view", "list", "status", "checks"]),
        _ => false,
    };
    if looks { InLoop::Looks } else { InLoop::Runs }
}

/// The operators of `test` that look at files, which others may make or change. `-a` is not among them: it is nearly
/// always `and`.
fn asks_of_file(word: &[u8]) -> bool {
    const ONE: &[u8] = b"bcdefghkprstuwxGLNOS";
    match word {
        [b'-', one] => ONE.contains(one),
        _ => matches!(word, b"-nt" | b"-ot" | b"-ef"),
    }
}

/// Whether these parts name a variable.
fn names(parts: &[Part], variable: &[u8]) -> bool {
    parts.iter().any(|part| match part {
        Part::Parameter { name, inner, .. } => name == variable || names(inner, variable),
        Part::Arithmetic { inner, .. } | Part::Glob { inner, .. } => names(inner, variable),
        Part::Array(words) => words.iter().any(|word| names(&word.parts, variable)),
        Part::Literal { .. } | Part::Command { .. } | Part::Process { .. } => false,
    })
}

/// `while read line`: the loop ends with its data.
fn reads_data(condition: &List, dialect: Dialect) -> bool {
    condition.items.iter().flat_map(|item| item.and_or.pipelines()).flat_map(|pipeline| &pipeline.stages).any(
        |command| match &command.kind {
            Kind::Simple { words, .. } => {
                let args: Vec<Arg> = words.iter().map(Arg::of_word).collect();
                programs::acts(&args, dialect)
                    .iter()
                    .any(|act| matches!(act, Act::Runs { name, .. } if matches!(name.as_str(), "read" | "mapfile" | "getopts" | "shift")))
            }
            _ => false,
        },
    )
}

/// Scripts that redirections put on standard input.
fn stdin_texts(redirects: &[Redirect], shell: &Shell) -> Vec<Derived> {
    redirects
        .iter()
        .filter(|redirect| redirect.feeds_stdin)
        .filter_map(|redirect| match &redirect.target {
            Target::HereString(word) => Some(word.as_script()),
            Target::HereDocument(index) => {
                shell.documents.get(*index).map(|document| crate::syntax::script_of(&document.parts))
            }
            Target::Word(_) => None,
        })
        .collect()
}

/// The jobs whose ids these parts spell.
fn ids_in(parts: &[Part], shell: &Shell) -> BTreeSet<usize> {
    let mut ids = BTreeSet::new();
    for part in parts {
        match part {
            Part::Parameter { name, .. } if name == b"!" => ids.extend(shell.launched.last()),
            Part::Parameter { name, .. } => ids.extend(shell.variables.get(name).into_iter().flatten()),
            Part::Array(words) => words.iter().for_each(|word| ids.extend(ids_in(&word.parts, shell))),
            _ => {}
        }
    }
    ids
}

/// Notes which jobs' ids a variable holds from here on.
fn assign(word: &Word, shell: &mut Shell) {
    let Some(name) = word.assigned_name() else { return };
    let name = name.to_vec();
    let mut ids = ids_in(&word.parts, shell);
    let adds = match word.parts.first() {
        // `name+=` and `name[i]=` keep what was there.
        Some(Part::Literal { text, .. }) => matches!(text.bytes.get(name.len()), None | Some(b'+')),
        _ => false,
    };
    if adds {
        ids.extend(shell.variables.get(&name).into_iter().flatten());
    }
    if ids.is_empty() {
        shell.variables.remove(&name);
    } else {
        shell.variables.insert(name, ids);
    }
}

/// `$(jobs -p)`.
fn lists_jobs(parts: &[Part]) -> bool {
    parts.iter().any(|part| {
        let Part::Command { list, .. } = part else { return false };
        let [item] = &list.items[..] else { return false };
        let [Command { kind: Kind::Simple { words, .. }, .. }] = &item.and_or.first.stages[..] else { return false };
        let is = |word: &Word, text: &[u8]| word.literal().is_some_and(|literal| literal.bytes == text);
        item.and_or.rest.is_empty()
            && matches!(&words[..], [program, flag] if is(program, b"jobs") && (is(flag, b"-p") || is(flag, b"-rp") || is(flag, b"-pr")))
    })
}
