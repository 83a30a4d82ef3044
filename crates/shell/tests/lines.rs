//! One line per case: the script, then why.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a test says so by failing")]

use outlast_shell::{Dialect, FindingKind, Parsed, analyze_argv, analyze_script};

/// Accepted: read as a whole, nothing found.
const ACCEPTED: &[(&str, &str)] = &[
    ("", "nothing at all"),
    ("# a & b\n", "only a comment"),
    ("make", "a plain command"),
    ("grep nohup f", "a word to look for"),
    ("a && b", "and"),
    ("a || b", "or"),
    ("a 2>&1", "a descriptor copied"),
    ("a >&2", "a descriptor copied"),
    ("a &>f", "bash: both outputs to a file"),
    ("a &>>f", "bash: both outputs appended"),
    ("a |& b", "bash: both outputs into the pipe"),
    ("echo $((a & b))", "arithmetic and"),
    ("echo $[a & b]", "old arithmetic"),
    ("((a & b))", "arithmetic command"),
    ("for ((i = 0; i < 3 & 1; i++)); do x; done", "arithmetic loop"),
    ("echo 'x &'", "quoted"),
    ("echo \"x & y\"", "quoted"),
    ("echo x\\&", "escaped"),
    ("echo $'x &'", "quoted the other way"),
    ("git commit -m \"nohup &\"", "a message"),
    ("man setsid", "a page"),
    ("which nohup", "a question"),
    ("command -v nohup", "a question"),
    ("type -p setsid", "a question"),
    ("apt-get install screen tmux at", "package names"),
    ("nohup --help", "asks for help"),
    ("docker run -it --rm ubuntu bash", "in the foreground"),
    ("docker ps -d", "no run"),
    ("docker run --rm img cmd -d", "the flag belongs to the command"),
    ("docker run --rm -e A=b -v /a:/b img daemon -d", "values are told from the image"),
    ("docker run --detach=false img", "expressly not"),
    ("docker exec -it c sh", "in the foreground"),
    ("docker compose up", "in the foreground"),
    ("docker compose up --no-deps web", "in the foreground"),
    ("docker compose down -v", "ends work"),
    ("docker start -a box", "attached"),
    ("crontab -l", "lists"),
    ("at -l", "lists"),
    ("tmux ls", "lists"),
    ("tmux kill-session -t x", "ends work"),
    ("screen -ls", "lists"),
    ("systemctl status x", "a question"),
    ("ssh host ls -f", "the flag belongs to the command"),
    ("start-stop-daemon --start --exec /bin/x", "stays in the foreground"),
    ("[[ a && b ]]", "a test"),
    ("[[ $x =~ ^(a|b*)?$ ]] && y", "a pattern"),
    ("[[ $x == @(a|b) ]]", "a pattern"),
    ("case x in a|b) c;; esac", "alternatives"),
    ("case x in (a) b ;; *) c ; esac", "no `;;` at the end"),
    ("case $x in a) y ;& b) z ;;& *) ;; esac", "falling through"),
    ("cat <<EOF\na & b\nEOF\n", "a document, not a script"),
    ("cat <<'EOF' | tee f\nnohup x &\nEOF\n", "a document, not a script"),
    ("cat <<-EOF\n\tx &\n\tEOF\n", "a document with tabs"),
    ("cat <<A <<B\n1 &\nA\n2 &\nB\n", "two documents"),
    ("cat <<< 'x &'", "a here-string for cat"),
    ("cat > run.sh <<'EOF'\n#!/bin/sh\nserver &\nEOF\n", "a file that is only written"),
    ("python3 - <<'EOF'\nx = 1 & 2\nEOF\n", "another language"),
    ("a & b & wait", "joined"),
    ("a & wait $!", "joined by id"),
    ("a & p=$!; b; wait $p", "joined by a variable"),
    ("a & p=$!; b & q=$!; wait $p $q", "both joined"),
    ("a & p=$!; wait \"${p}\" || exit 1", "the wait comes first in its list"),
    ("a & if ! wait $!; then exit 1; fi", "a condition is always reached"),
    ("for i in 1 2; do x $i & done; wait", "joined after the loop"),
    ("for i in 1 2; do x & pids+=($!); done; wait \"${pids[@]}\"", "an array of ids"),
    ("for i in 1 2; do x & pids=\"$pids $!\"; done; for p in $pids; do wait $p; done", "each id in turn"),
    ("while read -r f; do x \"$f\" & done < list; wait", "the loop runs in this shell"),
    ("(a & wait)", "joined in its own shell"),
    ("(a & b & wait) | tee log", "joined in its own stage"),
    ("{ a & }; wait", "braces are this shell"),
    ("f() { a & }; f; wait", "a function is this shell"),
    ("f() { a & wait; }; f", "joined inside the function"),
    ("f() { wait; }; a & f", "the function waits"),
    ("main() { help; wait; }; help() { a & }; main", "called before it is written"),
    ("eval 'a &'; wait", "eval is this shell"),
    ("bash -c 'a & b & wait'", "joined inside"),
    ("if x; then a & wait; fi", "started and joined in one branch"),
    ("a & if x; then wait; else wait; fi", "joined either way"),
    ("case x in a) wait;; esac", "nothing to join"),
    ("a & case x in a) wait;; *) wait;; esac", "joined in every arm"),
    ("a & wait $(jobs -p)", "all jobs"),
    ("a & wait %1", "by number"),
    ("coproc a; wait", "a coprocess joined"),
    ("coproc P { a; }; wait $P_PID", "a coprocess joined by its id"),
    ("exec > >(tee f) 2>&1; make", "an asynchronous reader that ends with us"),
    ("diff <(a) <(b)", "substitutions"),
    ("a | b | c", "a pipeline"),
    ("! a | b", "negated"),
    ("time a | b", "timed"),
    ("a=(1 2 '&'); echo \"${a[@]}\"", "an array"),
    ("echo ${x:-a&b}", "a default value"),
    ("echo \"${x:-'a & b'}\"", "quotes inside"),
    ("echo `a`", "backquotes"),
    ("echo \"$(echo \"$(echo ')')\")\"", "quotes inside substitutions"),
    ("echo $(case x in a) echo y;; esac)", "an unbalanced parenthesis"),
    ("echo $(( $(echo 1) + 2 ))", "substitution in arithmetic"),
    ("$( (a) )", "a subshell in a substitution"),
    ("x() { :; }\nx", "a function"),
    ("function x { :; }; x", "a bash function"),
    ("select x in a b; do break; done", "bash only"),
    ("if a; then b; elif c; then d; else e; fi", "branches"),
    ("until a; do b; done", "a loop that does work"),
    ("sleep 1; make", "a pause before work"),
    ("echo 'nohup x &' | tee f", "a text"),
    ("sudo -u x make", "another user"),
    ("timeout 60 make", "a limit"),
    ("xargs -n1 echo < f", "arguments"),
    ("find . -name '*.o' -exec rm {} +", "a search"),
    ("bash script.sh", "a file we cannot see"),
    ("trap 'rm -f x' EXIT; make", "a clean-up"),
    ("set -euo pipefail\ncd x\nmake 2>&1 | tail -n 20\n", "an ordinary script"),
    ("npm install && npm run build", "an ordinary line"),
    ("x=$(a) y=b cmd", "assignments"),
    ("[ -f x ] && . ./x", "a sourced file"),
    ("for f in *.log; do tail -n1 \"$f\"; done", "each file once"),
    ("while read -r p; do ps -p $p; done < pids", "each line once"),
    ("echo a#b", "no comment"),
    ("a \\\n  && b", "a joined line"),
    ("echo {a,b}{1..3}", "braces in words"),
    ("a >f 2>&1 </dev/null", "redirections"),
    ("exec 3<>/dev/tcp/h/80; cat <&3", "descriptors"),
    ("systemd-analyze blame", "another program"),
];

/// Refused: the kind of the first finding.
const REFUSED: &[(&str, FindingKind, &str)] = {
    use FindingKind::*;
    &[
        ("a &", UnjoinedBackground, "the plain case"),
        ("a & b", UnjoinedBackground, "nobody waits"),
        ("sleep 300 & echo started", UnjoinedBackground, "case A14"),
        ("npm start > log 2>&1 &", UnjoinedBackground, "a server"),
        ("(a &)", UnjoinedBackground, "left in a subshell"),
        ("(a &); wait", UnjoinedBackground, "another shell's job"),
        ("(sleep 3 &) ; true", UnjoinedBackground, "case A11"),
        ("wait; a &", UnjoinedBackground, "waited before"),
        ("a & b && wait", UnjoinedBackground, "not reached if b fails"),
        ("a & b || wait", UnjoinedBackground, "not reached if b succeeds"),
        ("a & if x; then wait; fi", UnjoinedBackground, "in one branch only"),
        ("a & case x in y) wait;; esac", UnjoinedBackground, "in one arm only"),
        ("a & while x; do wait; done", UnjoinedBackground, "perhaps never"),
        ("a & exit 0; wait", UnjoinedBackground, "left before"),
        ("a & exec b", UnjoinedBackground, "the shell is gone"),
        ("a & p=$!; b & wait $p", UnjoinedBackground, "only one of two"),
        ("a & b & wait $!", UnjoinedBackground, "only the last"),
        ("a & b & wait -n", UnjoinedBackground, "any one of two"),
        ("a & p=$!; p=3; wait $p", UnjoinedBackground, "another id"),
        ("a & wait $q", UnjoinedBackground, "an unknown id"),
        ("a & kill $!", UnjoinedBackground, "a signal is no join"),
        ("a & trap 'wait' EXIT", UnjoinedBackground, "a trap is no join"),
        ("ls | while read x; do y & done; wait", UnjoinedBackground, "the loop is a stage of its own"),
        ("f() { a & }; f", UnjoinedBackground, "started by a function"),
        ("f() { a & }", UnjoinedBackground, "whoever calls it"),
        ("f() { a & }; wait; f", UnjoinedBackground, "called after the wait"),
        ("f() { a & }; (f); wait", UnjoinedBackground, "called in a subshell"),
        ("{ a & }", UnjoinedBackground, "braces"),
        ("if x; then a & fi", UnjoinedBackground, "in a branch"),
        ("case x in y) a & ;; esac", UnjoinedBackground, "in an arm"),
        ("for i in 1; do a & done", UnjoinedBackground, "in a loop"),
        ("echo $(a &)", UnjoinedBackground, "in a substitution"),
        ("echo \"`a &`\"", UnjoinedBackground, "in backquotes"),
        ("echo ${x:-$(a &)}", UnjoinedBackground, "in a default value"),
        ("echo \"${x:-\"$(a &)\"}\"", UnjoinedBackground, "in a quoted default value"),
        ("echo $(( $(a &) ))", UnjoinedBackground, "in arithmetic"),
        ("cat <<EOF\n$(a &)\nEOF\n", UnjoinedBackground, "in a document that is expanded"),
        ("cat <(a &)", UnjoinedBackground, "in a process substitution"),
        ("x=(1 $(a &))", UnjoinedBackground, "in an array"),
        ("[[ -n $(a &) ]]", UnjoinedBackground, "in a test"),
        ("sh <<EOF\na &\nEOF\n", UnjoinedBackground, "a document that is a script"),
        ("bash -s <<'EOF'\na &\nEOF\n", UnjoinedBackground, "a document that is a script"),
        ("bash <<< 'a &'", UnjoinedBackground, "a here-string that is a script"),
        ("echo 'a &' | sh", UnjoinedBackground, "a script through a pipe"),
        ("printf 'a &\\n' | bash -s", UnjoinedBackground, "a script through a pipe"),
        ("cat <<'E' | sh\na &\nE\n", UnjoinedBackground, "a script through a pipe"),
        ("bash -c 'a &'", UnjoinedBackground, "a string that is a script"),
        ("bash -c 'a &'; wait", UnjoinedBackground, "another shell's job"),
        ("bash -lc \"a &\"", UnjoinedBackground, "combined flags"),
        ("/bin/sh -ec 'a &'", UnjoinedBackground, "by path"),
        ("bash -o pipefail -c 'a &'", UnjoinedBackground, "an option with a value"),
        ("env A=b bash -c 'a &'", UnjoinedBackground, "behind env"),
        ("timeout 5 bash -c 'a &'", UnjoinedBackground, "behind timeout"),
        ("sudo -u x sh -c 'a &'", UnjoinedBackground, "behind sudo"),
        ("busybox sh -c 'a &'", UnjoinedBackground, "behind busybox"),
        ("bash -c \"bash -c 'a &'\"", UnjoinedBackground, "two deep"),
        ("bash -c \"cd $d && a &\"", UnjoinedBackground, "with an expansion in it"),
        ("eval 'a &'", UnjoinedBackground, "a string for this shell"),
        ("eval a '&'", UnjoinedBackground, "put together"),
        ("trap 'a &' EXIT", UnjoinedBackground, "a string for later"),
        ("xargs sh -c 'a &' < f", UnjoinedBackground, "for each argument"),
        ("find . -exec sh -c 'a &' \\;", UnjoinedBackground, "for each file"),
        ("su x -c 'a &'", UnjoinedBackground, "as another user"),
        ("flock f -c 'a &'", UnjoinedBackground, "under a lock"),
        ("time (a &)", UnjoinedBackground, "timed"),
        ("! (a &)", UnjoinedBackground, "negated"),
        ("a | (b &)", UnjoinedBackground, "in a stage"),
        ("a & # wait", UnjoinedBackground, "the wait is a comment"),
        ("a & echo wait", UnjoinedBackground, "the wait is a word"),
        ("coproc a", UnjoinedCoprocess, "nobody waits"),
        ("coproc P { a; }", UnjoinedCoprocess, "nobody waits"),
        ("nohup a", Nohup, "the plain case"),
        ("nohup a &", UnjoinedBackground, "both, the `&` covering all of it"),
        ("(nohup x >/dev/null 2>&1 &)", UnjoinedBackground, "both, in a subshell"),
        ("/usr/bin/nohup a", Nohup, "by path"),
        ("no'hu'p a", Nohup, "quotes inside the word"),
        ("\\nohup a", Nohup, "escaped"),
        ("$'\\x6eohup' a", Nohup, "spelt in numbers"),
        ("x && nohup a", Nohup, "later in the list"),
        ("A=b nohup a", Nohup, "after an assignment"),
        ("env A=b nohup a", Nohup, "behind env"),
        ("command nohup a", Nohup, "behind command"),
        ("exec nohup a", Nohup, "behind exec"),
        ("nice -n 5 nohup a", Nohup, "behind nice"),
        ("sudo -E nohup a", Nohup, "behind sudo"),
        ("stdbuf -oL nohup a", Nohup, "behind stdbuf"),
        ("xargs -n 1 nohup < f", Nohup, "behind xargs"),
        ("find . -exec nohup {} \\;", Nohup, "behind find"),
        ("echo $(nohup a)", Nohup, "in a substitution"),
        ("env -S 'nohup a'", Nohup, "split by env"),
        ("setsid a", Setsid, "the plain case"),
        ("timeout 2 sh -c 'setsid sleep 600'", Setsid, "case A7"),
        ("setsid -w a", Setsid, "waits, yet leaves the session"),
        ("npm run build & disown", UnjoinedBackground, "both"),
        ("a & wait; disown -a", Disown, "by itself"),
        ("daemonize /bin/x", Daemonizer, "its only use"),
        ("daemon -- x", Daemonizer, "its only use"),
        ("start-stop-daemon --start --background --exec /bin/x", Daemonizer, "in the background"),
        ("start-stop-daemon -S -b -x /bin/x", Daemonizer, "in short"),
        ("sudo -b make", Daemonizer, "in the background"),
        ("ssh -f host sleep 60", Daemonizer, "in the background"),
        ("ssh -fN -L 1:h:2 host", Daemonizer, "a tunnel"),
        ("eval \"$(ssh-agent)\"", Daemonizer, "stays behind"),
        ("gunicorn app --daemon", Daemonizer, "in the background"),
        ("systemd-run --user x", OtherDaemon, "the service manager"),
        ("echo x | at now", OtherDaemon, "the at daemon"),
        ("at -f job now + 1 hour", OtherDaemon, "the at daemon"),
        ("batch < job", OtherDaemon, "the at daemon"),
        ("crontab f", OtherDaemon, "the cron daemon"),
        ("crontab -e", OtherDaemon, "the cron daemon"),
        ("(crontab -l; echo '* * * * * x') | crontab -", OtherDaemon, "the cron daemon"),
        ("tmux new -d x", OtherDaemon, "the tmux server"),
        ("tmux new-session -Ads s", OtherDaemon, "combined flags"),
        ("tmux -L sock new-session -d -s x 'y'", OtherDaemon, "options before"),
        ("tmux send-keys -t x 'make' Enter", OtherDaemon, "typed into the server"),
        ("screen -dmS x y", OtherDaemon, "detached"),
        ("screen -d -m y", OtherDaemon, "detached"),
        ("docker run -d img", OtherDaemon, "detached"),
        ("docker run --rm -itd img", OtherDaemon, "combined flags"),
        ("docker run --name x -e A=b --detach img", OtherDaemon, "after values"),
        ("podman run -d img", OtherDaemon, "detached"),
        ("docker -H tcp://h run -d img", OtherDaemon, "options before"),
        ("docker container run -d img", OtherDaemon, "the long name"),
        ("docker exec -d c x", OtherDaemon, "detached"),
        ("docker start box", OtherDaemon, "not attached"),
        ("docker compose up -d", OtherDaemon, "detached"),
        ("docker compose -f a.yml up web --detach", OtherDaemon, "after the service"),
        ("docker-compose up -d", OtherDaemon, "the older program"),
        ("systemctl start x", OtherDaemon, "the service manager"),
        ("service x start", OtherDaemon, "the service manager"),
        ("launchctl load x.plist", OtherDaemon, "the service manager"),
        ("pm2 start x.js", OtherDaemon, "its own daemon"),
        ("if docker run -d img; then x; fi", OtherDaemon, "in a condition"),
        ("x=$(docker run -d img)", OtherDaemon, "in an assignment"),
    ]
};

/// Only waits or polls.
const BUSY: &[(&str, FindingKind, &str)] = {
    use FindingKind::*;
    &[
        ("sleep 30", BareSleep, "nothing else"),
        ("sleep 30; echo done", BareSleep, "nothing that works"),
        ("echo wait; sleep 5 && date", BareSleep, "nothing that works"),
        ("make; sleep 5", BareSleep, "last"),
        ("timeout 9 sleep 30", BareSleep, "behind timeout"),
        ("bash -c 'sleep 30'", BareSleep, "inside"),
        ("while ! curl -s localhost; do sleep 1; done", PollLoop, "until it answers"),
        ("until nc -z h 80; do sleep 1; done; make", PollLoop, "until it answers, then work"),
        ("while :; do echo c; sleep 1; done", PollLoop, "for ever"),
        ("for i in 1 2 3; do curl h && break; sleep 2; done", PollLoop, "some times"),
        ("for ((;;)); do sleep 1; done", PollLoop, "for ever"),
        ("while pgrep make; do :; done", PollLoop, "in the condition"),
        ("while kill -0 $p; do x; done", PollLoop, "is it alive"),
        ("while ps -p 3 >/dev/null; do x; done", PollLoop, "is it there"),
        ("until tail -n1 log | grep done; do x; done", PollLoop, "has it been written"),
        ("while read l; do sleep 1; done < f", PollLoop, "sleeps for each line"),
        ("w() { sleep 1; }; while x; do w; done", PollLoop, "in a function"),
        ("timeout 60 bash -c 'until x; do sleep 1; done'", PollLoop, "in a string"),
        ("if a; then while b; do sleep 1; done; fi", PollLoop, "in a branch"),
        ("until [ -f x ]; do sleep 1; done", PollLoop, "until a file is there"),
        (
            "until [[ -s x ]]; do echo waiting; sleep 1; done",
            PollLoop,
            "until a file is there, said meanwhile",
        ),
        ("while true; do sleep 5; done", PollLoop, "for ever"),
        ("while true; do [ -e x ] && break; sleep 1; done", PollLoop, "the condition inside"),
        ("while true; do if grep -q ok log; then break; fi; sleep 1; done", PollLoop, "the condition inside"),
        (
            "while true; do s=$(gh run view 1); [ \"$s\" = ok ] && break; echo $s; sleep 9; done",
            PollLoop,
            "asks others",
        ),
        ("until [ \"$s\" = ok ]; do s=$(state); sleep 1; done", PollLoop, "what it asks is a value then"),
        ("until [ \"$(state)\" = ok ]; do sleep 1; done", PollLoop, "asks in the condition"),
        ("for i in $(seq 60); do test -e x && exit; echo $i; sleep 1; done", PollLoop, "some times"),
        ("for i in 1 2 3; do ps aux; sleep 1; done", PollLoop, "looks at processes"),
        ("for i in 1 2 3; do docker logs box; echo $i; sleep 1; done", PollLoop, "looks at output"),
        ("for i in 1 2 3; do sleep 1; done", PollLoop, "nothing but sleep"),
        ("for ((i = 0; i < 9; i++)); do sleep 1; done", PollLoop, "nothing but sleep"),
        ("for i in 1 2; do for j in 1 2; do curl h; done; sleep 1; done", PollLoop, "looks in a loop inside"),
    ]
};

const NOT_BUSY: &[(&str, &str)] = &[
    ("sleep 1; make", "a pause before work"),
    ("sleep 1 && make", "a pause before work"),
    ("echo sleep 5", "a word"),
    ("while read l; do echo $l; done < f", "goes over lines"),
    ("for f in *; do make $f; done", "goes over files"),
    ("kill -0 $p", "asked once"),
    ("ps aux | grep x", "asked once"),
    ("sleep --help", "asks for help"),
    ("for f in *.log; do tail -n1 $f; done", "each file once"),
    ("for i in 1 2 3; do echo $i; sleep 0.7; done", "says how far it is"),
    ("for i in {1..40}; do echo \"line $i\"; sleep 0.05; done; echo done", "says how far it is"),
    ("for ((i = 0; i < 9; i++)); do printf '%s\\n' $i; sleep 1; done", "says how far it is"),
    ("while read l; do echo $l; sleep 1; done < f", "each line"),
    ("while [ $i -lt 9 ]; do echo $i; i=$((i + 1)); sleep 1; done", "counts"),
    ("while ((i < 9)); do echo $i; i=$(expr $i + 1); sleep 1; done", "counts"),
    ("for i in 1 2 3; do make test; sleep 1; done", "works"),
    ("while :; do make; sleep 1; done", "works"),
    ("while true; do for f in *; do make $f; done; sleep 5; done", "works in a loop inside"),
    ("for i in 1 2 3; do bash step.sh; sleep 1; done", "works"),
    ("for i in 1 2 3; do $STEP; sleep 1; done", "works, whatever it is"),
    ("f() { make; }; for i in 1 2 3; do f; sleep 1; done", "works in a function"),
    ("for u in a b; do curl -O h/$u; sleep 1; done", "something else each time"),
    ("for f in a b; do [ -e $f ] && echo $f; sleep 1; done", "something else each time"),
    ("while read u; do wget -q \"$u\"; done < urls", "goes over lines"),
];

#[test]
fn accepted() {
    for (script, why) in ACCEPTED {
        let got = analyze_script(script.as_bytes(), Dialect::Bash);
        assert_eq!(got.parsed, Parsed::Parsed, "{script:?} ({why})");
        assert!(got.findings.is_empty(), "{script:?} ({why}): {:#?}", got.findings);
    }
}

#[test]
fn refused() {
    for (script, kind, why) in REFUSED {
        let got = analyze_script(script.as_bytes(), Dialect::Bash);
        assert_eq!(got.parsed, Parsed::Parsed, "{script:?} ({why})");
        let first = got.findings.first().unwrap_or_else(|| panic!("{script:?} ({why}): nothing found"));
        assert_eq!(first.kind, *kind, "{script:?} ({why}): {:#?}", got.findings);
        assert!(!first.message.is_empty() && !first.instead.is_empty());
        assert!(first.end <= script.len() && first.start < first.end, "{script:?}: {first:?}");
    }
}

#[test]
fn busy_waits() {
    for (script, kind, why) in BUSY {
        let got = analyze_script(script.as_bytes(), Dialect::Bash);
        let kinds: Vec<_> = got.busy_waits.iter().map(|finding| finding.kind).collect();
        assert_eq!(kinds, [*kind], "{script:?} ({why})");
        assert!(got.findings.is_empty(), "{script:?}: busy waits are a list of their own");
    }
    for (script, why) in NOT_BUSY {
        let got = analyze_script(script.as_bytes(), Dialect::Bash);
        assert!(got.busy_waits.is_empty(), "{script:?} ({why}): {:#?}", got.busy_waits);
    }
}

#[test]
fn places() {
    // The text at the finding's place, its line and its column.
    let rows: &[(&str, &str, usize, usize)] = &[
        ("make\nserver --port 80 &\necho x", "server --port 80 &", 2, 1),
        ("x; nohup make all; y", "nohup make all", 1, 4),
        ("bash -c 'cd x\nnohup make'", "nohup make", 2, 1),
        ("bash -c \"echo \\\"é\\\"; setsid b\"", "setsid b", 1, 22),
        ("echo `echo; a &`", "a &", 1, 13),
        ("sh <<E\nx\n  a &\nE\n", "a &", 3, 3),
        ("echo \"${x:-$(nohup é)}\"", "nohup é", 1, 14),
        ("eval 'x; at now'", "at now", 1, 10),
        ("f() {\n  a &\n}\nf\n", "a &", 2, 3),
        ("a | b && docker run -d img >f", "docker run -d img", 1, 10),
        ("a |\nb & true", "a |\nb &", 1, 1),
    ];
    for (script, text, line, column) in rows {
        let got = analyze_script(script.as_bytes(), Dialect::Bash);
        let first = got.findings.first().unwrap_or_else(|| panic!("{script:?}: nothing found"));
        assert_eq!(&script[first.start..first.end], *text, "{script:?}");
        assert_eq!((first.line, first.column), (*line, *column), "{script:?}");
        assert_eq!(first.excerpt, text.replace('\n', " "), "{script:?}");
    }
}

#[test]
fn every_finding_is_listed_in_order() {
    let got = analyze_script(b"nohup a; setsid b; c & at now; sleep 1", Dialect::Bash);
    let kinds: Vec<_> = got.findings.iter().map(|finding| finding.kind).collect();
    use FindingKind::*;
    assert_eq!(kinds, [Nohup, Setsid, UnjoinedBackground, OtherDaemon]);
    assert_eq!(got.busy_waits.len(), 1);
}

#[test]
fn excerpts_are_bounded() {
    let script = format!("nohup {}", "é".repeat(5000));
    let got = analyze_script(script.as_bytes(), Dialect::Bash);
    assert!(got.findings[0].excerpt.chars().count() <= 81);
    let got = analyze_script(b"nohup \xff\x1b[31m &", Dialect::Bash);
    assert!(got.findings.iter().all(|finding| !finding.excerpt.contains('\x1b')));
}

#[test]
fn dialects_differ() {
    // In a POSIX shell `&>` starts the command in the background.
    for (dialect, findings) in [(Dialect::Bash, 0), (Dialect::Sh, 1), (Dialect::Dash, 1)] {
        let got = analyze_script(b"make &>log", dialect);
        assert_eq!(got.findings.len(), findings, "{dialect:?}");
    }
    // A string that one shell ends where the other does not hides nothing.
    let hidden = b"echo $'\\' ; nohup x #'";
    assert_eq!(analyze_script(hidden, Dialect::Bash).findings.len(), 0);
    assert_eq!(analyze_script(hidden, Dialect::Sh).findings.len(), 1);
    // And `((` is two subshells.
    assert_eq!(analyze_script(b"((a & b))", Dialect::Dash).findings.len(), 1);
    assert!(!analyze_script(b"a |& b", Dialect::Dash).is_parsed());
    assert!(analyze_script(b"a | b & wait; x=$(y)", Dialect::Dash).findings.is_empty());
}

fn argv(words: &[&str]) -> Vec<Vec<u8>> {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

#[test]
fn command_lines() {
    use FindingKind::*;
    let refused: &[(&[&str], FindingKind)] = &[
        (&["nohup", "make"], Nohup),
        (&["setsid", "-f", "x"], Setsid),
        (&["systemd-run", "x"], OtherDaemon),
        (&["docker", "run", "-d", "img"], OtherDaemon),
        (&["docker", "compose", "up", "-d"], OtherDaemon),
        (&["tmux", "new", "-d"], OtherDaemon),
        (&["screen", "-dm", "x"], OtherDaemon),
        (&["crontab", "f"], OtherDaemon),
        (&["start-stop-daemon", "--background", "--exec", "x"], Daemonizer),
        (&["daemonize", "x"], Daemonizer),
        (&["bash", "-c", "sleep 10 &"], UnjoinedBackground),
        (&["bash", "-lc", "sleep 10 &"], UnjoinedBackground),
        (&["/usr/bin/sh", "-ec", "a &"], UnjoinedBackground),
        (&["env", "A=b", "bash", "-c", "a &"], UnjoinedBackground),
        (&["timeout", "5", "bash", "-c", "a &"], UnjoinedBackground),
        (&["sudo", "-n", "bash", "-c", "a &"], UnjoinedBackground),
        (&["nice", "zsh", "-c", "a &"], UnjoinedBackground),
        (&["xargs", "sh", "-c", "a &"], UnjoinedBackground),
        (&["busybox", "sh", "-c", "a &"], UnjoinedBackground),
        (&["sh", "-c", "sleep 600 & exit 0"], UnjoinedBackground),
        (&["env", "nohup", "x"], Nohup),
    ];
    for (words, kind) in refused {
        let got = analyze_argv(&argv(words));
        assert_eq!(got.findings.first().map(|finding| finding.kind), Some(*kind), "{words:?}");
    }
    let accepted: &[&[&str]] = &[
        &[],
        &[""],
        &["make", "&"],
        &["echo", "nohup", "&"],
        &["bash", "-c", "a & wait"],
        &["bash", "-c", "echo \"$1\"", "x", "a &"],
        &["bash", "a.sh", "-c", "x &"],
        &["grep", "-r", "nohup x &"],
        &["docker", "run", "img", "-d"],
        &["crontab", "-l"],
    ];
    for words in accepted {
        let got = analyze_argv(&argv(words));
        assert!(got.findings.is_empty() && got.is_parsed(), "{words:?}: {got:#?}");
    }
    let got = analyze_argv(&argv(&["timeout", "5", "bash", "-c", "x; a &"]));
    assert_eq!(got.findings[0].start, "timeout 5 bash -c x; ".len());
    assert_eq!(got.findings[0].excerpt, "a &");
    for words in [&["sleep", "60"][..], &["timeout", "9", "sleep", "1"], &["bash", "-c", "make; sleep 60"]] {
        assert_eq!(analyze_argv(&argv(words)).busy_waits.len(), 1, "{words:?}");
    }
}

#[test]
fn tables_are_large_enough() {
    assert!(ACCEPTED.len() >= 70 && REFUSED.len() >= 70, "{} {}", ACCEPTED.len(), REFUSED.len());
    println!(
        "accepted {} refused {} busy {} not busy {}",
        ACCEPTED.len(),
        REFUSED.len(),
        BUSY.len(),
        NOT_BUSY.len()
    );
}
