//! What a command line runs: the program behind its wrappers, the scripts it hands to a shell, and whether
//! the program or its flags would take work out of the call.
//!
//! The knowledge here is of command lines, not of text: options are told from operands the way each program
//! tells them, so that `docker run --rm img cmd -d` is not `docker run -d`.

use crate::report::{Dialect, FindingKind};
use crate::syntax::{Derived, Span, Word};

/// One argument of a command line.
#[derive(Clone, Debug)]
pub(crate) struct Arg {
    /// The argument itself, if the text fixes it.
    pub(crate) literal: Option<Vec<u8>>,
    /// Its text with expansions left as they stand.
    pub(crate) script: Derived,
    pub(crate) span: Span,
}

impl Arg {
    pub(crate) fn of_word(word: &Word) -> Self {
        Self { literal: word.literal().map(|text| text.bytes), script: word.as_script(), span: word.span() }
    }

    fn is(&self, text: &str) -> bool {
        self.literal.as_deref() == Some(text.as_bytes())
    }
}

/// The arguments of a command line, placed in their text joined by one space each.
pub(crate) fn args_of_argv(argv: &[Vec<u8>]) -> Vec<Arg> {
    let mut start = 0;
    let mut args = Vec::with_capacity(argv.len());
    for argument in argv {
        let end = start + argument.len();
        let script = Derived { bytes: argument.clone(), places: (start..end).collect() };
        args.push(Arg { literal: Some(argument.clone()), script, span: Span::new(start, end) });
        start = end + 1;
    }
    args
}

/// When a script inside a command line runs, and in which shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// In the shell that reads it: `eval`.
    Inline,
    /// In a shell of its own.
    Child,
}

/// What a command line does that matters here.
#[derive(Debug)]
pub(crate) enum Act<'a> {
    Detaches {
        kind: FindingKind,
        span: Span,
        message: String,
    },
    Script {
        text: Derived,
        dialect: Dialect,
        how: How,
    },
    /// A shell that reads its script from standard input.
    ReadsScript(Dialect),
    /// The program that runs in the end, with its arguments.
    Runs {
        name: String,
        args: &'a [Arg],
    },
}

/// How deep wrappers are followed (`env env env …`).
const MAX_WRAPPERS: usize = 32;

/// Everything a command line does, its program first.
pub(crate) fn acts(args: &[Arg], outer: Dialect) -> Vec<Act<'_>> {
    let mut looker = Looker { acts: Vec::new(), outer, left: MAX_WRAPPERS };
    looker.look(args);
    looker.acts
}

/// The program that decides the command line's status, behind wrappers that pass a status on.
pub(crate) fn deciding_program(args: &[Arg]) -> Option<String> {
    let mut args = args;
    for _ in 0..MAX_WRAPPERS {
        let name = name_of(args.first()?)?;
        match WRAPPERS.iter().find(|wrapper| wrapper.name == name) {
            Some(wrapper) if wrapper.passes_status => args = wrapper.command(&args[1..]),
            _ => return Some(name),
        }
    }
    None
}

/// A shell called with its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShellCall {
    pub(crate) dialect: Dialect,
    /// Where in the arguments the script of `-c` is.
    pub(crate) script: Option<usize>,
    /// No script and no file: it reads standard input.
    pub(crate) reads_stdin: bool,
    /// `-o pipefail`.
    pub(crate) pipefail: bool,
    /// Single-letter options in force.
    pub(crate) flags: Vec<u8>,
    /// The shell is one we can instrument: bash, sh or dash itself.
    pub(crate) plain: bool,
}

/// The shell behind wrappers that change neither the environment nor the status, if there is one.
pub(crate) fn shell_call(args: &[Arg]) -> Option<ShellCall> {
    let mut skipped = 0;
    for _ in 0..MAX_WRAPPERS {
        let rest = &args[skipped..];
        let name = name_of(rest.first()?)?;
        if let Some(mut call) = read_shell(&name, &rest[1..]) {
            call.script = call.script.map(|index| index + skipped + 1);
            return Some(call);
        }
        let wrapper = WRAPPERS.iter().find(|wrapper| wrapper.name == name && wrapper.keeps_environment)?;
        if name == "env" && rest[1..].iter().any(|arg| arg.literal.as_ref().is_some_and(|a| clears(a))) {
            return None;
        }
        skipped = args.len() - wrapper.command(&rest[1..]).len();
    }
    None
}

/// `env -i` and its like.
fn clears(argument: &[u8]) -> bool {
    argument == b"-"
        || argument.starts_with(b"-i")
        || argument.starts_with(b"-u")
        || argument.starts_with(b"--")
}

fn name_of(arg: &Arg) -> Option<String> {
    let literal = arg.literal.as_deref()?;
    let base = literal.rsplit(|byte| *byte == b'/').next()?;
    if base.is_empty() { None } else { Some(String::from_utf8_lossy(base).into_owned()) }
}

// ---- options ----

#[derive(Debug)]
struct Flag {
    short: Option<u8>,
    long: Option<String>,
    /// Its value, where one was given or taken.
    value: Option<Arg>,
}

/// Options up to the first operand, told apart by which of them take a value.
fn options<'a>(args: &'a [Arg], shorts: &[u8], longs: &[&str]) -> (Vec<Flag>, &'a [Arg]) {
    let mut found = Vec::new();
    let mut rest = args;
    while let Some((arg, after)) = rest.split_first() {
        let Some(literal) = arg.literal.as_deref() else { break };
        if literal == b"--" {
            return (found, after);
        }
        if literal.len() < 2 || literal[0] != b'-' {
            break;
        }
        rest = after;
        if let Some(long) = literal.strip_prefix(b"--") {
            let (name, value) = match long.iter().position(|byte| *byte == b'=') {
                Some(at) => (&long[..at], Some(tail_of(arg, 2 + at + 1))),
                None => (long, None),
            };
            let name = String::from_utf8_lossy(name).into_owned();
            let mut value = value;
            if value.is_none() && longs.contains(&name.as_str()) {
                value = rest.first().cloned();
                rest = rest.get(1..).unwrap_or(&[]);
            }
            found.push(Flag { short: None, long: Some(name), value });
            continue;
        }
        for (index, letter) in literal.iter().enumerate().skip(1) {
            let mut value = None;
            let takes = shorts.contains(letter);
            if takes {
                if index + 1 < literal.len() {
                    value = Some(tail_of(arg, index + 1));
                } else {
                    value = rest.first().cloned();
                    rest = rest.get(1..).unwrap_or(&[]);
                }
            }
            found.push(Flag { short: Some(*letter), long: None, value });
            if takes {
                break;
            }
        }
    }
    (found, rest)
}

fn tail_of(arg: &Arg, from: usize) -> Arg {
    let script = Derived {
        bytes: arg.script.bytes.get(from..).unwrap_or(&[]).to_vec(),
        places: arg.script.places.get(from..).unwrap_or(&[]).to_vec(),
    };
    Arg { literal: Some(script.bytes.clone()), script, span: arg.span }
}

fn has(options: &[Flag], short: u8, long: &str) -> bool {
    options.iter().any(|option| {
        let named = option.short == Some(short) && short != 0
            || option.long.as_deref() == Some(long) && !long.is_empty();
        named && !option.value.as_ref().is_some_and(|value| value.is("false") || value.is("0"))
    })
}

// ---- wrappers ----

/// A program that runs the command line behind its own options.
struct Wrapper {
    name: &'static str,
    shorts: &'static [u8],
    longs: &'static [&'static str],
    /// Operands before the command.
    operands: usize,
    /// `A=b` before the command.
    assignments: bool,
    passes_status: bool,
    keeps_environment: bool,
}

impl Wrapper {
    const fn new(
        name: &'static str,
        shorts: &'static [u8],
        longs: &'static [&'static str],
        operands: usize,
    ) -> Self {
        Self {
            name,
            shorts,
            longs,
            operands,
            assignments: false,
            passes_status: false,
            keeps_environment: false,
        }
    }

    const fn clear(
        name: &'static str,
        shorts: &'static [u8],
        longs: &'static [&'static str],
        operands: usize,
    ) -> Self {
        Self {
            name,
            shorts,
            longs,
            operands,
            assignments: false,
            passes_status: true,
            keeps_environment: true,
        }
    }

    const fn with_assignments(mut self) -> Self {
        self.assignments = true;
        self
    }

    const fn other_environment(mut self) -> Self {
        self.keeps_environment = false;
        self
    }

    fn command<'a>(&self, args: &'a [Arg]) -> &'a [Arg] {
        let (_, mut rest) = options(args, self.shorts, self.longs);
        if self.assignments {
            while rest.first().is_some_and(|arg| arg.script.bytes.contains(&b'=')) {
                rest = &rest[1..];
            }
        }
        rest.get(self.operands..).unwrap_or(&[])
    }
}

const WRAPPERS: &[Wrapper] = &[
    Wrapper::clear("env", b"uCS", &["unset", "chdir", "split-string"], 0).with_assignments(),
    Wrapper::clear("command", b"", &[], 0),
    Wrapper::clear("builtin", b"", &[], 0),
    Wrapper::clear("exec", b"a", &[], 0),
    Wrapper::clear("time", b"fo", &["format", "output"], 0),
    Wrapper::clear("nice", b"n", &["adjustment"], 0),
    Wrapper::clear("ionice", b"cnpPu", &["class", "classdata"], 0),
    Wrapper::clear("timeout", b"ks", &["kill-after", "signal"], 1),
    Wrapper::clear("gtimeout", b"ks", &["kill-after", "signal"], 1),
    Wrapper::clear("stdbuf", b"ioe", &["input", "output", "error"], 0),
    Wrapper::clear("taskset", b"", &[], 1),
    Wrapper::clear("chrt", b"TPD", &["sched-runtime", "sched-period", "sched-deadline"], 1),
    Wrapper::clear("setarch", b"", &[], 1),
    Wrapper::clear("linux32", b"", &[], 0),
    Wrapper::clear("linux64", b"", &[], 0),
    Wrapper::clear("prlimit", b"", &[], 0),
    Wrapper::clear("eatmydata", b"", &[], 0),
    Wrapper::clear("caffeinate", b"tw", &[], 0),
    Wrapper::clear("sudo", SUDO_SHORTS, SUDO_LONGS, 0).with_assignments().other_environment(),
    Wrapper::clear("doas", b"uCa", &[], 0).other_environment(),
    Wrapper::new("unshare", b"SGRw", &["setuid", "setgid", "root", "wd"], 0),
    Wrapper::new("chroot", b"", &[], 1),
    Wrapper::new("nsenter", b"tSG", &["target", "setuid", "setgid"], 0),
    Wrapper::new("strace", b"eopsSuabEIOPXU", &[], 0),
    Wrapper::new("ltrace", b"aeilnopsuxDFASwX", &[], 0),
    Wrapper::new("gosu", b"", &[], 1),
    Wrapper::new("su-exec", b"", &[], 1),
    Wrapper::new(
        "setpriv",
        b"",
        &["reuid", "regid", "groups", "inh-caps", "ambient-caps", "bounding-set"],
        0,
    ),
    Wrapper::new("tini", b"pe", &[], 0),
    Wrapper::new("dumb-init", b"r", &["rewrite"], 0),
    Wrapper::new("fakeroot", b"lsibu", &["lib", "faked"], 0),
    Wrapper::new("xvfb-run", b"nefspw", &["server-num", "server-args", "error-file", "auth-file"], 0),
    Wrapper::new("dbus-run-session", b"", &["config-file", "dbus-daemon"], 0),
    Wrapper::new("unbuffer", b"", &[], 0),
    Wrapper::new(
        "xargs",
        b"aEILnPsd",
        &["arg-file", "delimiter", "max-lines", "max-args", "max-procs", "max-chars"],
        0,
    ),
    Wrapper::new("numactl", b"mNCpil", &[], 0),
    Wrapper::new("proxychains", b"f", &[], 0),
];

const SUDO_SHORTS: &[u8] = b"ugphCDRrTtUac";
const SUDO_LONGS: &[&str] =
    &["user", "group", "prompt", "host", "close-from", "chdir", "chroot", "role", "type"];

const SHELLS: &[(&str, Dialect, bool)] = &[
    ("bash", Dialect::Bash, true),
    ("sh", Dialect::Sh, true),
    ("dash", Dialect::Dash, true),
    ("ash", Dialect::Sh, false),
    ("zsh", Dialect::Bash, false),
    ("ksh", Dialect::Bash, false),
    ("ksh93", Dialect::Bash, false),
    ("mksh", Dialect::Bash, false),
    ("rbash", Dialect::Bash, false),
];

fn read_shell(name: &str, args: &[Arg]) -> Option<ShellCall> {
    let (_, dialect, plain) = SHELLS.iter().find(|shell| shell.0 == name)?;
    let mut call = ShellCall {
        dialect: *dialect,
        script: None,
        reads_stdin: false,
        pipefail: false,
        flags: Vec::new(),
        plain: *plain,
    };
    let mut index = 0;
    while let Some(literal) = args.get(index).and_then(|arg| arg.literal.as_deref()) {
        match literal {
            b"--" | b"-" => {
                index += 1;
                break;
            }
            b"--rcfile" | b"--init-file" => index += 2,
            _ if literal.starts_with(b"--") => {
                if literal == b"--posix" || literal == b"--version" || literal == b"--help" {
                    call.plain = false;
                }
                index += 1;
            }
            [b'-' | b'+', letters @ ..] if !letters.is_empty() => {
                index += 1;
                for letter in letters {
                    if matches!(letter, b'o' | b'O') {
                        let value = args.get(index);
                        if *letter == b'o' && literal[0] == b'-' {
                            call.pipefail |= value.is_some_and(|value| value.is("pipefail"));
                            if value.is_some_and(|value| value.is("xtrace") || value.is("verbose")) {
                                call.flags.push(b'x');
                            }
                            call.plain &= !value.is_some_and(|value| value.is("posix"));
                        }
                        index += 1;
                    } else if literal[0] == b'-' {
                        call.flags.push(*letter);
                    }
                }
            }
            _ => break,
        }
    }
    if call.flags.contains(&b'c') {
        call.script = (index < args.len()).then_some(index);
    } else {
        call.reads_stdin = index >= args.len() || call.flags.contains(&b's');
    }
    Some(call)
}

// ---- what each program does ----

struct Looker<'a> {
    acts: Vec<Act<'a>>,
    outer: Dialect,
    left: usize,
}

impl<'a> Looker<'a> {
    fn look(&mut self, args: &'a [Arg]) {
        let Some(first) = args.first() else { return };
        let Some(name) = name_of(first) else { return };
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        let rest = &args[1..];
        if let Some(call) = read_shell(&name, rest) {
            self.shell(&call, rest);
            return;
        }
        if self.wraps(&name, first, rest) {
            return;
        }
        if let Some((kind, message)) = detaches(&name, rest) {
            self.acts.push(Act::Detaches { kind, span: whole(args), message });
        }
        self.acts.push(Act::Runs { name, args: rest });
    }

    fn shell(&mut self, call: &ShellCall, args: &'a [Arg]) {
        if call.flags.contains(&b'n') {
            return;
        }
        if let Some(script) = call.script {
            self.child(args[script].script.clone(), call.dialect);
        } else if call.reads_stdin {
            self.acts.push(Act::ReadsScript(call.dialect));
        }
    }

    fn child(&mut self, text: Derived, dialect: Dialect) {
        self.acts.push(Act::Script { text, dialect, how: How::Child });
    }

    /// Follows a wrapper to what it runs. Returns whether `name` is one.
    fn wraps(&mut self, name: &str, first: &'a Arg, rest: &'a [Arg]) -> bool {
        if matches!(name, "command") && lookup_only(rest) {
            return true;
        }
        if name == "sudo" && has(&options(rest, SUDO_SHORTS, SUDO_LONGS).0, b'b', "background") {
            let message = "`sudo -b` puts the command into the background by itself".to_owned();
            self.acts.push(Act::Detaches { kind: FindingKind::Daemonizer, span: first.span, message });
            return true;
        }
        if name == "env" {
            let (found, _) = options(rest, b"uCS", &["unset", "chdir", "split-string"]);
            let split = found
                .into_iter()
                .find(|o| o.short == Some(b'S') || o.long.as_deref() == Some("split-string"));
            if let Some(text) = split.and_then(|option| option.value) {
                self.child(text.script, self.outer);
            }
        }
        if let Some(wrapper) = WRAPPERS.iter().find(|wrapper| wrapper.name == name) {
            let command = wrapper.command(rest);
            if name == "exec" {
                // The shell itself is gone then; the walk has to know.
                self.acts.push(Act::Runs { name: "exec".to_owned(), args: command });
            }
            self.look(command);
            return true;
        }
        match name {
            "busybox" | "toybox" => self.look(rest),
            "eval" => {
                let rest = if rest.first().is_some_and(|arg| arg.is("--")) { &rest[1..] } else { rest };
                self.acts.push(Act::Script { text: joined(rest), dialect: self.outer, how: How::Inline });
            }
            "trap" => {
                let (_, operands) = options(rest, b"", &[]);
                if operands.len() > 1 {
                    self.child(operands[0].script.clone(), self.outer);
                }
                self.acts.push(Act::Runs { name: "trap".to_owned(), args: rest });
            }
            "alias" => {
                for arg in rest {
                    if let Some(at) = arg.script.bytes.iter().position(|byte| *byte == b'=') {
                        self.child(tail_of(arg, at + 1).script, self.outer);
                    }
                }
            }
            "find" | "gfind" => self.find(rest),
            "watch" => {
                let (_, command) = options(rest, b"nq", &["interval", "equexit"]);
                self.child(joined(command), Dialect::Sh);
            }
            "parallel" => {
                let (_, command) =
                    options(rest, b"jaNnLsSE", &["jobs", "arg-file", "colsep", "joblog", "timeout"]);
                let end = command.iter().position(|a| a.is(":::") || a.is("::::") || a.is(":::+"));
                self.child(joined(&command[..end.unwrap_or(command.len())]), Dialect::Sh);
            }
            "flock" => {
                let (_, operands) = options(rest, b"wE", &["timeout", "wait", "conflict-exit-code"]);
                match operands {
                    [_, flag, script, ..] if flag.is("-c") || flag.is("--command") => {
                        self.child(script.script.clone(), Dialect::Sh);
                    }
                    [_, command @ ..] => self.look(command),
                    [] => {}
                }
            }
            "su" | "runuser" | "script" => {
                let mut after = false;
                for arg in rest {
                    if after {
                        self.child(arg.script.clone(), Dialect::Sh);
                    }
                    let literal = arg.literal.as_deref().unwrap_or(b"");
                    let cluster = literal.starts_with(b"-") && !literal.starts_with(b"--");
                    after = arg.is("--command") || (cluster && literal.ends_with(b"c"));
                    if literal.starts_with(b"--command=") {
                        self.child(tail_of(arg, 10).script, Dialect::Sh);
                    }
                }
            }
            "uv" | "poetry" | "pipenv" | "rye" | "pdm" if rest.first().is_some_and(|arg| arg.is("run")) => {
                self.look(options(&rest[1..], b"", &["with", "python", "project", "directory"]).1);
                // What it runs may not be a program we know: it is then the wrapper that runs.
            }
            "bundle" if rest.first().is_some_and(|arg| arg.is("exec")) => self.look(&rest[1..]),
            _ => return false,
        }
        true
    }

    fn find(&mut self, args: &'a [Arg]) {
        let mut index = 0;
        while index < args.len() {
            if ["-exec", "-execdir", "-ok", "-okdir"].iter().any(|flag| args[index].is(flag)) {
                let from = index + 1;
                let rest = &args[from..];
                let length = rest.iter().position(|arg| arg.is(";") || arg.is("+")).unwrap_or(rest.len());
                self.look(&args[from..from + length]);
                index = from + length;
            }
            index += 1;
        }
    }
}

/// `command -v x` asks and runs nothing.
fn lookup_only(args: &[Arg]) -> bool {
    let (found, _) = options(args, b"", &[]);
    has(&found, b'v', "") || has(&found, b'V', "")
}

fn whole(args: &[Arg]) -> Span {
    match (args.first(), args.last()) {
        (Some(first), Some(last)) => Span::new(first.span.start, last.span.end),
        _ => Span::new(0, 0),
    }
}

fn joined(args: &[Arg]) -> Derived {
    let mut text = Derived::default();
    for (index, arg) in args.iter().enumerate() {
        if index > 0 {
            text.push_glue(b' ');
        }
        text.append(&arg.script);
    }
    text
}

/// Whether this program, called so, takes work out of the call.
fn detaches(name: &str, args: &[Arg]) -> Option<(FindingKind, String)> {
    use FindingKind::{Daemonizer, Disown, Nohup, OtherDaemon, Setsid};
    if asks_only(args) {
        return None;
    }
    let found = match name {
        "nohup" => (Nohup, "the command is made to ignore the hang-up, so as to outlive the call".to_owned()),
        "setsid" => (Setsid, "the command moves into a session of its own, away from the call".to_owned()),
        "disown" => (Disown, "the shell forgets the job, and nobody waits for it".to_owned()),
        "daemonize" | "daemon" | "daemonise" | "daemonio" => {
            (Daemonizer, format!("`{name}` puts the command into the background by itself"))
        }
        _ => {
            let (kind, what) = detaching_call(name, args)?;
            let fate = match kind {
                OtherDaemon => "gives the work to another daemon, which runs it outside this call",
                _ => "puts itself into the background",
            };
            (kind, format!("`{what}` {fate}"))
        }
    };
    Some(found)
}

/// `nohup --help` and the like.
fn asks_only(args: &[Arg]) -> bool {
    matches!(args, [only] if only.is("--help") || only.is("--version"))
}

fn detaching_call(name: &str, args: &[Arg]) -> Option<(FindingKind, String)> {
    use FindingKind::{Daemonizer, OtherDaemon};
    let daemon = |condition: bool, what: &str| condition.then(|| (OtherDaemon, what.to_owned()));
    let itself = |condition: bool, what: &str| condition.then(|| (Daemonizer, what.to_owned()));
    match name {
        "systemd-run" => daemon(true, "systemd-run"),
        "batch" => daemon(true, "batch"),
        "at" => {
            let (found, _) = options(args, b"qft", &[]);
            let only_asks = [b'l', b'c', b'd', b'r', b'V'].iter().any(|letter| has(&found, *letter, ""));
            daemon(!only_asks, "at")
        }
        "crontab" => {
            let (found, _) = options(args, b"u", &[]);
            daemon(!(has(&found, b'l', "") || has(&found, b'r', "")), "crontab")
        }
        "tmux" => tmux(args).and_then(|what| daemon(true, &what)),
        "screen" => screen(args).and_then(|what| daemon(true, &what)),
        "docker" | "podman" | "nerdctl" | "docker-compose" | "podman-compose" => {
            container(name, args).and_then(|what| daemon(true, &what))
        }
        "start-stop-daemon" => {
            let shorts = b"pxanucgksrRNPIOd";
            let longs = &["pidfile", "exec", "startas", "name", "user", "chuid", "group", "chdir", "signal"];
            itself(has(&options(args, shorts, longs).0, b'b', "background"), "start-stop-daemon --background")
        }
        "ssh" => {
            let (found, _) = options(args, b"BbcDEeFIiJLlmOoPpQRSWw", &[]);
            itself(has(&found, b'f', ""), "ssh -f")
        }
        "ssh-agent" => {
            let (found, operands) = options(args, b"aEPt", &[]);
            let stays = [b'k', b'd', b'D'].iter().any(|letter| has(&found, *letter, ""));
            itself(operands.is_empty() && !stays, "ssh-agent")
        }
        "dtach" | "abduco" => {
            let detached = args.iter().take(2).any(|arg| arg.is("-n") || arg.is("-N"));
            daemon(detached, &format!("{name} -n"))
        }
        "systemctl" => verb(args, &["start", "restart", "reload-or-restart", "try-restart", "isolate"])
            .and_then(|verb| daemon(true, &format!("systemctl {verb}"))),
        "service" => {
            let starts = args.get(1).is_some_and(|arg| arg.is("start") || arg.is("restart"));
            daemon(starts, "service … start")
        }
        "launchctl" => verb(args, &["load", "start", "submit", "bootstrap", "kickstart", "enable"])
            .and_then(|verb| daemon(true, &format!("launchctl {verb}"))),
        "supervisorctl" | "pm2" | "forever" => verb(args, &["start", "restart", "reload", "resurrect"])
            .filter(|_| !args.iter().any(|arg| arg.is("--no-daemon")))
            .and_then(|verb| daemon(true, &format!("{name} {verb}"))),
        "gunicorn" => itself(args.iter().any(|arg| arg.is("--daemon") || arg.is("-D")), "gunicorn --daemon"),
        "redis-server" => itself(
            args.windows(2).any(|pair| pair[0].is("--daemonize") && pair[1].is("yes")),
            "redis-server --daemonize",
        ),
        _ => None,
    }
}

/// The first operand, if it is one of these.
fn verb(args: &[Arg], verbs: &[&'static str]) -> Option<&'static str> {
    let (_, operands) = options(args, b"cHMtpns", &["host", "machine", "type", "property", "state"]);
    let first = operands.first()?;
    verbs.iter().find(|verb| first.is(verb)).copied()
}

fn tmux(args: &[Arg]) -> Option<String> {
    let (_, mut rest) = options(args, b"cfLST", &[]);
    // Several commands may follow each other, with `;` as an argument between them.
    loop {
        let end = rest.iter().position(|arg| arg.is(";")).unwrap_or(rest.len());
        if let Some((command, arguments)) = rest[..end].split_first() {
            let any_of = |names: &[&str]| names.iter().any(|name| command.is(name));
            if any_of(&["new-session", "new"]) {
                let (found, _) = options(arguments, b"cefFnstxy", &[]);
                if has(&found, b'd', "") {
                    return Some("tmux new-session -d".to_owned());
                }
            }
            let hands_over = &[
                "new-window",
                "neww",
                "split-window",
                "splitw",
                "respawn-pane",
                "respawnp",
                "respawn-window",
                "respawnw",
                "run-shell",
                "run",
                "send-keys",
                "send",
                "if-shell",
                "if",
                "pipe-pane",
                "pipep",
            ];
            if any_of(hands_over) {
                let name = String::from_utf8_lossy(command.literal.as_deref().unwrap_or(b"")).into_owned();
                return Some(format!("tmux {name}"));
            }
        }
        if end >= rest.len() {
            return None;
        }
        rest = &rest[end + 1..];
    }
}

fn screen(args: &[Arg]) -> Option<String> {
    if args.iter().any(|arg| arg.is("-ls") || arg.is("-list") || arg.is("-wipe")) {
        return None;
    }
    let (found, _) = options(args, b"ScehpstTX", &[]);
    if has(&found, b'X', "") {
        return Some("screen -X".to_owned());
    }
    let detached = has(&found, b'd', "") || has(&found, b'D', "");
    (detached && has(&found, b'm', "")).then(|| "screen -dm".to_owned())
}

const CONTAINER_SHORTS: &[u8] = b"Hcl";
const CONTAINER_LONGS: &[&str] = &[
    "host",
    "context",
    "config",
    "log-level",
    "tlscacert",
    "tlscert",
    "tlskey",
    "root",
    "runroot",
    "url",
    "connection",
    "storage-driver",
    "namespace",
    "address",
    "cgroup-manager",
    "identity",
];
const COMPOSE_SHORTS: &[u8] = b"fp";
const COMPOSE_LONGS: &[&str] =
    &["file", "project-name", "profile", "env-file", "project-directory", "ansi", "parallel", "progress"];
/// Long options of `run`, `exec` and `create` that stand alone; any other without `=` takes a value.
const RUN_FLAGS: &[&str] = &[
    "detach",
    "init",
    "interactive",
    "tty",
    "no-healthcheck",
    "oom-kill-disable",
    "privileged",
    "publish-all",
    "quiet",
    "read-only",
    "rm",
    "sig-proxy",
    "disable-content-trust",
    "help",
    "replace",
    "tls-verify",
    "rmi",
    "env-host",
    "http-proxy",
    "no-hosts",
    "no-hostname",
    "passwd",
    "read-only-tmpfs",
    "no-deps",
    "service-ports",
    "use-aliases",
    "build",
    "remove-orphans",
    "quiet-pull",
    "no-TTY",
];

fn container(name: &str, args: &[Arg]) -> Option<String> {
    let compose_program = name.ends_with("-compose");
    let (_, mut rest) =
        if compose_program { (Vec::new(), args) } else { options(args, CONTAINER_SHORTS, CONTAINER_LONGS) };
    if !compose_program && rest.first().is_some_and(|arg| arg.is("compose")) {
        rest = &rest[1..];
    } else if !compose_program {
        if rest.first().is_some_and(|arg| arg.is("container")) {
            rest = &rest[1..];
        }
        let (verb, arguments) = rest.split_first()?;
        if verb.is("run") || verb.is("exec") {
            let verb = String::from_utf8_lossy(verb.literal.as_deref()?).into_owned();
            return run_detaches(arguments).then(|| format!("{name} {verb} -d"));
        }
        if verb.is("start") {
            let (found, _) = options(arguments, b"", &["detach-keys", "checkpoint", "checkpoint-dir"]);
            let attached = has(&found, b'a', "attach") || has(&found, b'i', "interactive");
            return (!attached).then(|| format!("{name} start"));
        }
        return verb.is("restart").then(|| format!("{name} restart"));
    }
    let (_, rest) = options(rest, COMPOSE_SHORTS, COMPOSE_LONGS);
    let (verb, arguments) = rest.split_first()?;
    if verb.is("up") {
        // Its operands are services and not a command, so flags count wherever they stand.
        let detached = arguments.iter().any(|arg| {
            let literal = arg.literal.as_deref().unwrap_or(b"");
            let cluster = literal.starts_with(b"-") && !literal.starts_with(b"--") && literal.contains(&b'd');
            cluster || matches!(literal, b"--detach" | b"--detach=true" | b"--wait" | b"--wait=true")
        });
        return detached.then(|| format!("{name} compose up -d"));
    }
    if verb.is("run") || verb.is("exec") {
        return run_detaches(arguments).then(|| format!("{name} compose run -d"));
    }
    (verb.is("start") || verb.is("restart")).then(|| format!("{name} compose start"))
}

/// `-d` among the options before the image; what follows the image belongs to the command.
fn run_detaches(args: &[Arg]) -> bool {
    let mut index = 0;
    while let Some(literal) = args.get(index).and_then(|arg| arg.literal.as_deref()) {
        index += 1;
        if literal == b"--" || literal.len() < 2 || literal[0] != b'-' {
            return false;
        }
        if let Some(long) = literal.strip_prefix(b"--") {
            let (name, value) = match long.iter().position(|byte| *byte == b'=') {
                Some(at) => (&long[..at], Some(&long[at + 1..])),
                None => (long, None),
            };
            let name = String::from_utf8_lossy(name);
            if name == "detach" && value.is_none_or(|value| value != b"false" && value != b"0") {
                return true;
            }
            if value.is_none() && !RUN_FLAGS.contains(&name.as_ref()) {
                index += 1;
            }
            continue;
        }
        for (at, letter) in literal.iter().enumerate().skip(1) {
            match letter {
                b'd' => return true,
                b'i' | b't' | b'P' | b'q' | b'T' => {}
                _ => {
                    if at + 1 == literal.len() {
                        index += 1;
                    }
                    break;
                }
            }
        }
    }
    false
}
