//! What the program says of itself.

use crate::args::Failure;
use std::io::Write;

const ABOUT: &str = "outlast-hand serves the jobs of a home to brains and other clients, and keeps them.";

pub(crate) const SERVE: &str = "\
outlast-hand serve [--home DIR] [--listen ADDRESS]... [--dial HOST:PORT]...
    Runs the runner in the foreground. Without --listen it listens on HOME/runner.sock.
      --listen unix | unix:PATH | tls:IP:PORT   where to listen
      --dial HOST:PORT           dial a brain, which becomes the client on that connection
      --sandbox ID               the sandbox this hand answers for (default: the home's own id)
      --sandbox-generation N     which incarnation of it (default: 1)
      --token-file FILE          bearer tokens, hashed (make them with `outlast-hand token new`)
      --tls-cert FILE --tls-key FILE   this hand's certificate (default: its own, kept in the home)
      --client-ca FILE | --client-pin sha256:HEX   require client certificates
      --dial-ca FILE | --dial-pin sha256:HEX       who may answer where this hand dials
      --dial-token FILE          the token to present there
      --allow-uid UID            a user that may use the Unix socket, beside this one and root
      --inherit NAME             a variable that commands inherit (replaces the default list)
      --idle-exit SECONDS        end once nobody is connected and no job is open for so long
";

pub(crate) const CONNECT: &str = "\
outlast-hand connect [--home DIR] [--no-start]
    Joins standard input and output to the runner, for `ssh HOST outlast-hand connect` and container exec.
    Where no runner serves the home it starts one, which ends by itself when it is idle.
      --no-start                 fail instead of starting one
";

pub(crate) const TOKEN: &str = "\
outlast-hand token new [--scope PREFIX] [--expires SECONDS] [--name WORD] --file FILE
    Adds a token to FILE, hashed, and prints it once.
      --file FILE                the file that `serve --token-file` reads
      --scope PREFIX             what the scopes begin with that it opens (default: all); `team` opens `team`,
                                 `team/a` and `team:a`, and not `teams`
      --expires SECONDS          how long it is good from now (default: for ever)
      --name WORD                what records call its holder (default: the beginning of its hash)
    Take its line out of FILE to revoke it.
";

const CLOSE: &str = "\
HOME is OUTLAST_HOME, else outlast below XDG_STATE_HOME, else ~/.local/state/outlast.
Exit codes: 0 done, 1 failed, 2 bad argument, 6 another runner serves the home.
";

/// Prints how these are used.
pub(crate) fn of(usages: &[&str]) -> Result<(), Failure> {
    print(&format!("{}\n{CLOSE}", usages.join("\n")))
}

/// Prints all there is.
pub(crate) fn whole() -> Result<(), Failure> {
    let usages = [SERVE, CONNECT, TOKEN, "outlast-hand --version\n"].join("\n");
    print(&format!("{ABOUT}\n\n{usages}\n{CLOSE}"))
}

/// Whoever has seen enough may close before all is printed, which is no failure.
fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(Failure::of(&error)),
        _ => Ok(()),
    }
}
