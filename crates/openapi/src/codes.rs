//! The codes of problems.

/// One code.
#[derive(Debug, Clone, Copy)]
pub struct Code {
    /// The code.
    pub code: &'static str,
    /// The HTTP status it comes with.
    pub status: u16,
    /// Whether the same call may succeed later.
    pub retryable: bool,
    /// What it means.
    pub means: &'static str,
}

const fn once(status: u16, code: &'static str, means: &'static str) -> Code {
    Code { code, status, retryable: false, means }
}

const fn again(status: u16, code: &'static str, means: &'static str) -> Code {
    Code { code, status, retryable: true, means }
}

/// Every code that a runner answers with, by status.
pub const CODES: &[Code] = &[
    once(
        400,
        "BAD_HEADER",
        "a header is missing, says nothing that can be understood, or names an expiry too far ahead",
    ),
    once(
        400,
        "BAD_PARAMETER",
        "a word of the query is not known here, is given twice, or has a value that cannot be",
    ),
    again(400, "BODY_BROKEN", "the body broke off"),
    once(
        401,
        "UNAUTHENTICATED",
        "the call proves nobody: it carries no token where one is needed, or one that is not good here",
    ),
    once(404, "NO_SUCH_JOB", "there is no such job in this scope, or the path holds no job id"),
    once(404, "NO_SUCH_PATH", "there is nothing under this path"),
    once(404, "NO_SUCH_SCOPE", "the token gives no access to this scope"),
    once(405, "METHOD_NOT_ALLOWED", "the path does not take this method"),
    once(406, "NOT_ACCEPTABLE", "output is not to be had in the form that was asked for"),
    again(408, "BODY_TIMEOUT", "the body did not go on in time"),
    once(409, "BAD_OFFSET", "the input does not follow what was taken before"),
    once(
        409,
        "KEY_CONFLICT",
        "the key belongs to a job with another command; `context.differs` says in what",
    ),
    once(409, "LATER_VERSION", "the files were written by a later version of the program"),
    once(409, "NO_COMMON_VERSION", "no version of the protocol is spoken by both"),
    once(409, "NO_OPEN_STDIN", "the job was not admitted with open standard input"),
    once(409, "NO_TERMINAL", "the job has no terminal now"),
    again(409, "NOT_PROVED_DEAD", "the attempt before this one is not proved dead"),
    once(
        409,
        "REQUEST_ID_REUSED",
        "the request id belongs to another request; the call was dropped and recorded",
    ),
    once(409, "RUN_SEALED", "the run is sealed and admits nothing more"),
    once(
        409,
        "STALE",
        "the call is meant for another sandbox, incarnation or generation, is not for the latest attempt, or has expired; it was dropped and recorded",
    ),
    again(409, "WORKSPACE_UNKNOWN", "a job of the same workspace is unknown and may still write there"),
    once(413, "TOO_LARGE", "the body, or a part of the command, is larger than the limit"),
    once(415, "NOT_JSON", "the body is not of type application/json"),
    once(416, "CURSOR_BEYOND_END", "the cursor lies past the end of all output of a job that has ended"),
    once(422, "BAD_BODY", "the body is no JSON, or says something that does not belong there"),
    once(422, "BAD_COMMAND", "the command names no program, or cannot be passed to one"),
    once(422, "BAD_HELLO", "the offer lists no version or too many, or the client's name is too long"),
    once(422, "BAD_NAME", "the name of the person who attests is empty or too long"),
    once(422, "BAD_STOP", "the id of the stop is empty, too long or unprintable"),
    once(422, "BAD_LIMIT", "a limit is too small to be kept"),
    once(422, "BAD_VARIABLE", "a name or value cannot be an environment variable"),
    once(422, "BUSY_WAIT_REFUSED", "the command only waits, and a model wrote it"),
    once(
        422,
        "CWD_NOT_FOUND",
        "the folder it starts in, or its workspace, is not an absolute path of a folder on the hand",
    ),
    once(422, "DETACH_REFUSED", "the command would leave its job"),
    once(422, "NO_SUCH_SPOOL", "there is no such spooled input of this scope, or it was taken already"),
    once(422, "SECRET_IN_COMMAND", "the value of a secret stands in what is kept in clear"),
    once(422, "SECRET_NOT_MASKABLE", "a secret is too short or too long to be masked"),
    again(429, "TOO_MANY_JOBS", "as many jobs are open as the runner takes"),
    once(500, "DAMAGED", "a file of the home does not parse; it is kept as it is"),
    again(500, "INTERNAL", "a fault of the runner"),
    again(500, "STORAGE_FAILED", "the home could not be read or written"),
    again(503, "BUSY", "too many calls wait already, or the memory for bodies is in use"),
    again(503, "KEEPER_SILENT", "the job's keeper lives and does not answer"),
    again(503, "OUT_OF_RESOURCES", "the machine has no descriptors, processes or memory left"),
    again(507, "STORAGE_FULL", "the disk of the home is full; stops and reads go on"),
];

/// The code by its name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Code> {
    CODES.iter().find(|code| code.code == name)
}
