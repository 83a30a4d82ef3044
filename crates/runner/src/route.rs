//! Paths and queries.

use http::{Method, StatusCode};
use outlast_core::id::{Cursor, JobId};
use outlast_wire::client::Until;
use outlast_wire::limits;
use outlast_wire::problem::Problem;
use std::time::Duration;

/// What a call asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Route {
    Hello,
    List(Query),
    Admit(Query),
    Job(JobId, Query),
    Output(JobId, Query),
    Stop(JobId),
    Settle(JobId),
    Stdin(JobId, Query),
    Resize(JobId),
    Acknowledge(JobId),
    Spool,
    Fence,
    FenceView,
    Seal,
}

impl Route {
    /// Whether it changes something, and so carries what it is bound to.
    pub(crate) fn changes(&self) -> bool {
        !matches!(self, Route::Hello | Route::List(_) | Route::Job(..) | Route::Output(..) | Route::FenceView)
    }
}

/// The words after the question mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Query {
    pub(crate) until: Until,
    pub(crate) wait: Duration,
    pub(crate) from: Cursor,
    pub(crate) max: u64,
    pub(crate) stream: Option<outlast_wire::records::Stream>,
    pub(crate) committed: bool,
    pub(crate) after: Option<JobId>,
    pub(crate) limit: u32,
    pub(crate) offset: Cursor,
    pub(crate) close: bool,
}

impl Default for Query {
    fn default() -> Query {
        Query {
            until: Until::Now,
            wait: Duration::ZERO,
            from: Cursor(0),
            max: limits::OUTPUT_DEFAULT,
            stream: None,
            committed: false,
            after: None,
            limit: 100,
            offset: Cursor(0),
            close: false,
        }
    }
}

/// Which words each route takes.
const JOB: &[&str] = &["until", "wait_ms"];
const OUTPUT: &[&str] = &["from", "max", "wait_ms", "stream", "committed"];
const LIST: &[&str] = &["after", "limit"];
const STDIN: &[&str] = &["offset", "close", "wait_ms"];

/// One operation, as `docs/hand-protocol.openapi.json` is checked against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// The method.
    pub method: &'static str,
    /// The path, with `{job_id}` for a job's id.
    pub path: &'static str,
    /// The words that its query takes.
    pub query: &'static [&'static str],
    /// Whether it changes something, and so carries what it is bound to.
    pub changes: bool,
}

const fn operation(
    method: &'static str,
    path: &'static str,
    query: &'static [&'static str],
    changes: bool,
) -> Operation {
    Operation { method, path, query, changes }
}

/// Every operation there is.
pub const OPERATIONS: &[Operation] = &[
    operation("POST", "/hello", &[], false),
    operation("GET", "/v1/jobs", LIST, false),
    operation("POST", "/v1/jobs", JOB, true),
    operation("GET", "/v1/jobs/{job_id}", JOB, false),
    operation("GET", "/v1/jobs/{job_id}/output", OUTPUT, false),
    operation("POST", "/v1/jobs/{job_id}/stop", &[], true),
    operation("POST", "/v1/jobs/{job_id}/settle", &[], true),
    operation("PUT", "/v1/jobs/{job_id}/stdin", STDIN, true),
    operation("POST", "/v1/jobs/{job_id}/resize", &[], true),
    operation("POST", "/v1/jobs/{job_id}/acknowledge", &[], true),
    operation("POST", "/v1/spool", &[], true),
    operation("POST", "/v1/fence", &[], true),
    operation("GET", "/v1/fence", &[], false),
    operation("POST", "/v1/seal", &[], true),
];

/// Finds the route of a call.
pub(crate) fn route(method: &Method, path: &str, query: Option<&str>) -> Result<Route, Problem> {
    let parts: Vec<&str> = path.strip_prefix('/').unwrap_or(path).split('/').collect();
    let query = query.unwrap_or_default();
    let allowed: &[&Method] = match parts.as_slice() {
        ["hello"] => &[&Method::POST],
        ["v1", "jobs"] => &[&Method::GET, &Method::POST],
        ["v1", "jobs", _] => &[&Method::GET],
        ["v1", "jobs", _, "output"] => &[&Method::GET],
        ["v1", "jobs", _, "stop" | "settle" | "resize" | "acknowledge"] => &[&Method::POST],
        ["v1", "jobs", _, "stdin"] => &[&Method::PUT],
        ["v1", "spool" | "seal"] => &[&Method::POST],
        ["v1", "fence"] => &[&Method::GET, &Method::POST],
        _ => {
            return Err(Problem::new(
                StatusCode::NOT_FOUND,
                "NO_SUCH_PATH",
                "there is nothing under this path",
            ));
        }
    };
    if !allowed.contains(&method) {
        let methods: Vec<&str> = allowed.iter().map(|method| method.as_str()).collect();
        let detail = format!("this path takes {}", methods.join(" and "));
        return Err(Problem::new(StatusCode::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED", detail));
    }
    let job = |text: &str| -> Result<JobId, Problem> {
        text.parse().map_err(|error: outlast_core::id::NotAJobId| {
            Problem::new(StatusCode::NOT_FOUND, "NO_SUCH_JOB", error.to_string())
        })
    };
    let none = |route: Route| read_query(query, &[]).map(|_| route);
    match (parts.as_slice(), method == Method::GET) {
        (["hello"], _) => none(Route::Hello),
        (["v1", "jobs"], true) => Ok(Route::List(read_query(query, LIST)?)),
        (["v1", "jobs"], false) => Ok(Route::Admit(read_query(query, JOB)?)),
        (["v1", "jobs", id], _) => Ok(Route::Job(job(id)?, read_query(query, JOB)?)),
        (["v1", "jobs", id, "output"], _) => Ok(Route::Output(job(id)?, read_query(query, OUTPUT)?)),
        (["v1", "jobs", id, "stdin"], _) => Ok(Route::Stdin(job(id)?, read_query(query, STDIN)?)),
        (["v1", "jobs", id, "stop"], _) => none(Route::Stop(job(id)?)),
        (["v1", "jobs", id, "settle"], _) => none(Route::Settle(job(id)?)),
        (["v1", "jobs", id, "resize"], _) => none(Route::Resize(job(id)?)),
        (["v1", "jobs", id, _], _) => none(Route::Acknowledge(job(id)?)),
        (["v1", "spool"], _) => none(Route::Spool),
        (["v1", "seal"], _) => none(Route::Seal),
        (_, true) => none(Route::FenceView),
        (_, false) => none(Route::Fence),
    }
}

fn read_query(query: &str, known: &[&str]) -> Result<Query, Problem> {
    let wrong = |name: &str, what: String| {
        let detail = format!("the parameter {} {what}", name.chars().take(40).collect::<String>());
        Problem::new(StatusCode::BAD_REQUEST, "BAD_PARAMETER", detail)
    };
    let mut read = Query::default();
    let mut seen: Vec<&str> = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if !known.contains(&name) {
            let what = match known {
                [] => "is not known: this path takes none".to_owned(),
                known => format!("is not known: this path takes {}", known.join(", ")),
            };
            return Err(wrong(name, what));
        }
        if seen.contains(&name) {
            return Err(wrong(name, "is given twice".to_owned()));
        }
        seen.push(name);
        let number = || -> Result<u64, Problem> {
            let plain = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
            let number = plain.then(|| value.parse().ok()).flatten();
            number.ok_or_else(|| wrong(name, "must be a whole number of at most 64 bits".to_owned()))
        };
        let up_to = |most: u64, least: u64| -> Result<u64, Problem> {
            match number()? {
                value if (least..=most).contains(&value) => Ok(value),
                _ => Err(wrong(name, format!("must be {least} to {most}"))),
            }
        };
        let truth = || match value {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(wrong(name, "must be true or false".to_owned())),
        };
        match name {
            "until" => {
                read.until = match value {
                    "now" => Until::Now,
                    "started" => Until::Started,
                    "exited" => Until::Exited,
                    "settled" => Until::Settled,
                    _ => return Err(wrong(name, "must be now, started, exited or settled".to_owned())),
                }
            }
            // A longer wait is cut, not refused: the call is answered early and asks again.
            "wait_ms" => read.wait = Duration::from_millis(number()?).min(limits::WAIT_AT_MOST),
            "from" => read.from = Cursor(number()?),
            "max" => read.max = up_to(limits::OUTPUT_AT_MOST, 1)?,
            "stream" => {
                read.stream = match value {
                    "both" => None,
                    "stdout" => Some(outlast_wire::records::Stream::Stdout),
                    "stderr" => Some(outlast_wire::records::Stream::Stderr),
                    _ => return Err(wrong(name, "must be both, stdout or stderr".to_owned())),
                }
            }
            "committed" => read.committed = truth()?,
            "after" => {
                read.after = Some(value.parse().map_err(|_| wrong(name, "must be a job id".to_owned()))?);
            }
            "limit" => {
                let limit = up_to(u64::from(limits::LIST_AT_MOST), 1)?;
                read.limit = u32::try_from(limit).unwrap_or(limits::LIST_AT_MOST);
            }
            "offset" => read.offset = Cursor(number()?),
            _ => read.close = truth()?,
        }
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0000000000000000.1.1";

    fn get(path: &str, query: &str) -> Result<Route, Problem> {
        route(&Method::GET, path, Some(query))
    }

    #[test]
    fn each_path_has_its_methods() {
        let id: JobId = ID.parse().unwrap();
        let post = |path: &str| route(&Method::POST, path, None);
        assert_eq!(post("/hello"), Ok(Route::Hello));
        assert_eq!(post("/v1/seal"), Ok(Route::Seal));
        assert_eq!(post("/v1/spool"), Ok(Route::Spool));
        assert_eq!(post("/v1/fence"), Ok(Route::Fence));
        assert_eq!(get("/v1/fence", ""), Ok(Route::FenceView));
        for (verb, expected) in [
            ("stop", Route::Stop(id)),
            ("settle", Route::Settle(id)),
            ("resize", Route::Resize(id)),
            ("acknowledge", Route::Acknowledge(id)),
        ] {
            assert_eq!(post(&format!("/v1/jobs/{ID}/{verb}")), Ok(expected));
            assert_eq!(get(&format!("/v1/jobs/{ID}/{verb}"), "").unwrap_err().status, 405);
        }
        for path in ["", "/", "/v1", "/v1/jobs/x/y/z", "/v2/jobs", "//v1/jobs", "/v1/jobs/", "/v1/../hello"] {
            assert_eq!(route(&Method::GET, path, None).unwrap_err().status, 404, "{path}");
        }
        assert_eq!(route(&Method::DELETE, "/v1/jobs", None).unwrap_err().code, "METHOD_NOT_ALLOWED");
    }

    #[test]
    fn every_route_is_an_operation() {
        // A route that is added fails to compile here until it has a number, and then must be an operation.
        let number = |route: &Route| match route {
            Route::Hello => 0,
            Route::List(_) => 1,
            Route::Admit(_) => 2,
            Route::Job(..) => 3,
            Route::Output(..) => 4,
            Route::Stop(_) => 5,
            Route::Settle(_) => 6,
            Route::Stdin(..) => 7,
            Route::Resize(_) => 8,
            Route::Acknowledge(_) => 9,
            Route::Spool => 10,
            Route::Fence => 11,
            Route::FenceView => 12,
            Route::Seal => 13,
        };
        let words = [
            ("until", "now"),
            ("wait_ms", "1"),
            ("from", "1"),
            ("max", "1"),
            ("stream", "both"),
            ("committed", "true"),
            ("after", ID),
            ("limit", "1"),
            ("offset", "1"),
            ("close", "true"),
        ];
        let mut seen = Vec::new();
        for operation in OPERATIONS {
            let path = operation.path.replace("{job_id}", ID);
            let method: Method = operation.method.parse().unwrap();
            let found = route(&method, &path, None).unwrap();
            assert_eq!(found.changes(), operation.changes, "{operation:?}");
            seen.push(number(&found));
            for (word, value) in words {
                let taken = route(&method, &path, Some(&format!("{word}={value}"))).is_ok();
                assert_eq!(taken, operation.query.contains(&word), "{word}: {operation:?}");
            }
            assert!(operation.query.iter().all(|word| words.iter().any(|(known, _)| known == word)));
            for method in ["GET", "POST", "PUT", "DELETE", "PATCH"] {
                let known =
                    OPERATIONS.iter().any(|other| (other.method, other.path) == (method, operation.path));
                assert_eq!(route(&method.parse().unwrap(), &path, None).is_ok(), known, "{method} {path}");
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..14).collect::<Vec<_>>());
    }

    #[test]
    fn parameters_are_read_strictly() {
        let path = format!("/v1/jobs/{ID}/output");
        let Ok(Route::Output(_, query)) =
            get(&path, "from=7&max=10&wait_ms=999999&stream=stderr&committed=true")
        else {
            panic!("not read")
        };
        assert_eq!((query.from, query.max, query.committed), (Cursor(7), 10, true));
        assert_eq!(query.wait, limits::WAIT_AT_MOST);
        for bad in [
            "from=-1",
            "from=",
            "from=1&from=2",
            "from=18446744073709551616",
            "max=0",
            "max=4194305",
            "stream=x",
            "committed=yes",
            "until=now",
            "x",
            "from=+1",
            "from=%31",
        ] {
            assert_eq!(get(&path, bad).unwrap_err().status, 400, "{bad}");
        }
        assert_eq!(route(&Method::POST, "/hello", Some("a=1")).unwrap_err().code, "BAD_PARAMETER");
    }
}
