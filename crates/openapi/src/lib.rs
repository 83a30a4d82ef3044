//! The document of the hand protocol (OpenAPI 3.1), made from the types that travel.
//!
//! Shapes come from the types, limits from [`outlast_wire::limits`], headers from [`outlast_wire::call`]; operations and
//! codes are tables here, which a test checks against the runner. The document that is checked in,
//! `docs/hand-protocol.openapi.json`, is renewed with:
//!
//! ```text
//! cargo run -p outlast-openapi --example openapi > docs/hand-protocol.openapi.json
//! ```
#![forbid(unsafe_code)]

pub mod codes;
mod operations;
pub mod samples;

use codes::CODES;
use operations::{Answer, Body, Operation, operations};
use outlast_core::id::{Generation, JobId, SandboxGeneration, Scope};
use outlast_wire::problem::{self, Problem};
use outlast_wire::{admission, attach, call, hello, limits, records, verbs, version, view};
use schemars::generate::{Contract, SchemaSettings};
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

/// The keys of the document, in the order in which it is read.
const ORDER: [&str; 9] = [
    "openapi",
    "info",
    "servers",
    "security",
    "tags",
    "paths",
    "webhooks",
    "components",
    "jsonSchemaDialect",
];

/// The document.
#[must_use]
pub fn document() -> Value {
    let operations = operations();
    let mut refusals = Refusals::default();
    let paths = paths(&operations, &mut refusals);
    let document = json!({
        "openapi": "3.1.0",
        "jsonSchemaDialect": "https://spec.openapis.org/oas/3.1/dialect/base",
        "info": {
            "title": "Outlast hand protocol",
            "version": version::SUPPORTED.last().map(u32::to_string),
            "summary": "What a brain, or any client, and the runner on a hand say to each other.",
            "description": about(),
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [
            {
                "url": "http://hand",
                "description": "Over a byte stream that leads to the runner: its Unix socket, the standard streams of \
                    `outlast-hand connect` (run through ssh or a container's exec), or a connection that the hand dialled. \
                    The host's name is not looked at.",
            },
            {
                "url": "https://{host}:{port}",
                "description": "TCP with TLS.",
                "variables": {
                    "host": { "default": "127.0.0.1", "description": "The hand." },
                    "port": { "default": "7443", "description": "The port that the runner was told to listen on." },
                },
            },
        ],
        "security": [{ "token": [] }, { "certificate": [] }, {}],
        "tags": [
            { "name": "connection", "description": "Who is there, and what is spoken." },
            { "name": "jobs", "description": "Commands, from admission to receipt." },
            { "name": "output", "description": "What commands wrote, by cursor." },
            { "name": "input", "description": "What commands read." },
            { "name": "fences", "description": "What is admitted no more." },
        ],
        "paths": paths,
        "webhooks": { "attach": { "post": attaching() } },
        "components": {
            "schemas": schemas(),
            "parameters": parameters(),
            "headers": headers(),
            "responses": refusals.responses(),
            "examples": examples(),
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token of the runner's token file. It opens the scopes that the file says. A call that \
                        presents one is held to it, however its connection proved itself otherwise.",
                },
                "certificate": {
                    "type": "mutualTLS",
                    "description": "A client certificate that the runner was told to trust, by authority or by pin.",
                },
            },
        },
    });
    sorted(document)
}

/// The document as it is checked in.
#[must_use]
pub fn text() -> String {
    let document = document();
    let member = |key: &str| {
        // A tree of plain values can always be written.
        let value = serde_json::to_string_pretty(&document[key]).unwrap_or_default();
        format!("  \"{key}\": {}", value.replace('\n', "\n  "))
    };
    let members: Vec<String> = ORDER.iter().map(|key| member(key)).collect();
    format!("{{\n{}\n}}\n", members.join(",\n"))
}

fn about() -> String {
    format!(
        "Outlast runs commands that outlive who asked for them. A *hand* is the machine they run on, a *brain* is what asks. \
         The runner on a hand speaks this protocol over any byte stream, as HTTP/1.1 or HTTP/2.\n\n\
         **No call lasts longer than {} s.** Whoever wants to wait on asks again. Jobs do not depend on connections: a \
         connection that breaks is no more than that.\n\n\
         **Calls that change something carry what they are bound to**: a request id, an expiry, the sandbox and its \
         generation, the caller's generation. What is stale is dropped and recorded, and answered with `STALE`.\n\n\
         **Who calls** is proved by a bearer token, by a client certificate, or, on the Unix socket, by the kernel's word for \
         the user at the other end: the runner's own, root, and those it was told to allow. Then no credentials are sent.\n\n\
         **Reading answers.** Fields that are not known are to be passed over; later runners may add some. A field that is \
         absent is never `null`. Numbers may have 64 bits. The words of an enumeration are those of the version. A request whose \
         body has a field that is not known is refused.\n\n\
         **Errors** are `application/problem+json` (RFC 9457); programs decide by `code`, and by the status where they do not \
         know the code. Two codes belong to no operation here: `NO_SUCH_PATH` (404) and `METHOD_NOT_ALLOWED` (405). Headers \
         of more than {} bytes, and what is no HTTP, are refused without a body.\n\n\
         `docs/HAND-PROTOCOL.md` tells the same in order, with examples.",
        limits::WAIT_AT_MOST.as_secs(),
        limits::HEADERS,
    )
}

/// The same value with the fields of every object in order of name, whatever the map keeps.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<(String, Value)> = fields.into_iter().collect();
            fields.sort_by(|(a, _), (b, _)| a.cmp(b));
            Value::Object(fields.into_iter().map(|(name, value)| (name, sorted(value))).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        plain => plain,
    }
}

fn reference(kind: &str, name: &str) -> Value {
    json!({ "$ref": format!("#/components/{kind}/{name}") })
}

// ---- paths ----

/// The refusals there are, each once: by status, and by the codes it can have where it is.
#[derive(Default)]
struct Refusals {
    known: Vec<(u16, Vec<&'static str>)>,
}

impl Refusals {
    fn name(&self, at: usize) -> String {
        let (status, _) = self.known[at];
        let earlier = self.known[..at].iter().filter(|(other, _)| *other == status).count();
        let letter = u8::try_from(earlier).map_or('z', |earlier| char::from(b'a'.saturating_add(earlier)));
        format!("problem{status}{letter}")
    }

    /// The name of one, which is made where there is none.
    fn of(&mut self, status: u16, codes: &[&'static str]) -> String {
        let codes: Vec<&'static str> = codes
            .iter()
            .copied()
            .filter(|name| codes::find(name).is_some_and(|code| code.status == status))
            .collect();
        let wanted = (status, codes);
        let at = self.known.iter().position(|known| *known == wanted).unwrap_or_else(|| {
            self.known.push(wanted);
            self.known.len() - 1
        });
        self.name(at)
    }

    fn responses(&self) -> Value {
        let named = self
            .known
            .iter()
            .enumerate()
            .map(|(at, (status, codes))| (self.name(at), refusal(*status, codes)));
        Value::Object(named.collect())
    }
}

fn paths(operations: &[Operation], refusals: &mut Refusals) -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for operation in operations {
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        path[operation.method] = described(operation, refusals);
    }
    Value::Object(paths)
}

fn described(operation: &Operation, refusals: &mut Refusals) -> Value {
    let mut parameters = Vec::new();
    if operation.of_job() {
        parameters.push(reference("parameters", "job_id"));
    }
    parameters.extend(operation.query.iter().map(|word| reference("parameters", word)));
    if operation.in_scope() {
        parameters.push(reference("parameters", call::SCOPE));
    }
    if operation.changes {
        parameters.extend(BOUND.iter().map(|name| reference("parameters", name)));
    }
    let mut responses = Map::new();
    responses.insert("200".to_owned(), success(operation));
    let codes = operation.all_codes();
    let mut statuses: Vec<u16> =
        codes.iter().filter_map(|code| codes::find(code)).map(|code| code.status).collect();
    statuses.sort_unstable();
    statuses.dedup();
    for status in statuses {
        responses.insert(status.to_string(), reference("responses", &refusals.of(status, &codes)));
    }
    let mut described = json!({
        "operationId": operation.id,
        "tags": [operation.tag],
        "summary": operation.summary,
        "description": operation.says,
        "parameters": parameters,
        "responses": responses,
    });
    match &operation.body {
        Body::Nothing => {}
        Body::Json(schema, examples) => {
            described["requestBody"] = json!({
                "required": true,
                "description": format!("At most {} bytes.", limits::JSON_BODY),
                "content": { "application/json": { "schema": reference("schemas", schema), "examples": named(examples) } },
            });
        }
        Body::Bytes(most, what) => {
            described["requestBody"] = json!({
                "required": false,
                "description": format!("{what} At most {most} bytes."),
                "content": { "application/octet-stream": { "schema": bytes(*most) } },
            });
        }
    }
    described
}

/// Bytes as they are: `maxLength` bounds the length of such a body.
fn bytes(most: u64) -> Value {
    json!({ "type": "string", "format": "binary", "maxLength": most })
}

fn named(examples: &[(&'static str, Value)]) -> Value {
    let named = examples.iter().map(|(name, value)| (name.replace(' ', "_"), json!({ "value": value })));
    Value::Object(named.collect())
}

/// Headers of every answer with a body.
fn common_headers() -> Value {
    json!({
        "cache-control": reference("headers", "cache-control"),
        "x-content-type-options": reference("headers", "x-content-type-options"),
    })
}

fn success(operation: &Operation) -> Value {
    let mut headers = common_headers();
    let content = match &operation.answer {
        Answer::Json(schema, examples) => {
            json!({ "application/json": { "schema": reference("schemas", schema), "examples": named(examples) } })
        }
        Answer::Done => json!({ "application/json": { "schema": { "type": "object" }, "example": {} } }),
        Answer::Output => {
            for name in OUTPUT {
                headers[name] = reference("headers", name);
            }
            headers["content-disposition"] = reference("headers", "content-disposition");
            let mut framed = bytes(limits::OUTPUT_AT_MOST);
            framed["description"] = record_format().into();
            // The heads come on top of what `max` counts.
            if let Some(framed) = framed.as_object_mut() {
                framed.remove("maxLength");
            }
            json!({
                "application/octet-stream": { "schema": bytes(limits::OUTPUT_AT_MOST) },
                records::CONTENT_TYPE: { "schema": framed },
            })
        }
    };
    json!({ "description": operation.answers, "headers": headers, "content": content })
}

fn record_format() -> String {
    format!(
        "Records, one after the other. Each is a head of {} bytes, little-endian, and a payload.\n\n\
         | bytes | what |\n|---|---|\n\
         | 0 | kind: 1 data, 2 gap of known length, 3 gap of unknown length |\n\
         | 1 | stream of data: 1 standard output, 2 standard error; 0 for a gap |\n\
         | 2–3 | 0 |\n\
         | 4–7 | length of the payload, at most {} |\n\
         | 8–15 | cursor of the first byte |\n\
         | 16–23 | data: when it was drained, µs since the Unix epoch; gap: its end, 0 where unknown |\n\n\
         The payload of data is the bytes, of a gap the word for its cause. A body never ends within a record.",
        records::HEAD,
        records::PAYLOAD_AT_MOST,
    )
}

fn refusal(status: u16, codes: &[&'static str]) -> Value {
    let these: Vec<_> = codes.iter().filter_map(|name| codes::find(name)).collect();
    let says: Vec<String> = these.iter().map(|code| format!("`{}`: {}.", code.code, code.means)).collect();
    let examples: Map<String, Value> =
        these.iter().map(|code| (code.code.to_owned(), reference("examples", code.code))).collect();
    let mut headers = common_headers();
    if status == 401 {
        headers["www-authenticate"] = reference("headers", "www-authenticate");
    }
    json!({
        "description": says.join(" "),
        "headers": headers,
        "content": { problem::CONTENT_TYPE: { "schema": reference("schemas", "Problem"), "examples": examples } },
    })
}

/// A hand that dials asks its brain to become its client.
fn attaching() -> Value {
    json!({
        "operationId": "attach",
        "tags": ["connection"],
        "summary": "A hand that dialled asks to be attached",
        "description": format!(
            "Not a call to a runner: what a runner that was told to dial asks of a brain, over TLS with HTTP/1.1, at `{}` with \
             `connection: upgrade` and `upgrade: {}`. Once it is granted, the brain is the client of this protocol on that \
             connection and the runner its server, over HTTP/1.1 or HTTP/2. The brain has proved itself by its certificate.",
            attach::PATH,
            attach::UPGRADE,
        ),
        "security": [{ "token": [] }, { "certificate": [] }],
        "parameters": [reference("parameters", call::SANDBOX), reference("parameters", call::SANDBOX_GENERATION)],
        "responses": {
            "101": { "description": "Granted: the roles are turned round." },
            "400": { "description": "A header is missing." },
            "401": { "description": "Neither token nor certificate is good here." },
            "403": { "description": "It may not be attached." },
            "404": { "description": "This is no place for hands." },
            "409": { "description": "It may not be attached now." },
        },
    })
}

// ---- components ----

/// The headers that bind a call.
const BOUND: [&str; 5] =
    [call::REQUEST_ID, call::EXPIRES_AT, call::SANDBOX, call::SANDBOX_GENERATION, call::GENERATION];
/// The headers of output.
const OUTPUT: [&str; 4] =
    [call::output::NEXT, call::output::COMMITTED, call::output::TAIL, call::output::GAPS];

fn parameters() -> Value {
    let header = |name: &str, required: bool, says: &str, schema: Value| json!({ "name": name, "in": "header", "required": required, "description": says, "schema": schema });
    let query = |name: &str, says: &str, schema: Value| json!({ "name": name, "in": "query", "required": false, "description": says, "schema": schema });
    let schema = |name: &str| reference("schemas", name);
    let request_id =
        json!({ "type": "string", "pattern": "^[!-~]+$", "minLength": 1, "maxLength": limits::REQUEST_ID });
    let moment = json!({ "type": "integer", "format": "uint64", "minimum": 0 });
    let count = |least: u64, most: u64, usual: u64| json!({ "type": "integer", "format": "uint64", "minimum": least, "maximum": most, "default": usual });
    let cursor =
        |usual: u64| json!({ "type": "integer", "format": "uint64", "minimum": 0, "default": usual });
    let all = [
        json!({
            "name": "job_id",
            "in": "path",
            "required": true,
            "description": "The job. A job of another scope is not found.",
            "schema": schema("JobId"),
        }),
        header(call::SCOPE, false, "The circle of callers. Without it: `default`.", schema("Scope")),
        header(
            call::REQUEST_ID,
            true,
            "Unique to one request, and repeated with its retries: then they are the same request. One id for two requests is \
             refused.",
            request_id,
        ),
        header(
            call::EXPIRES_AT,
            true,
            &format!(
                "Milliseconds since the Unix epoch by the hand's clock, which hello tells. A call that comes later is dropped. At \
                 most {} s ahead.",
                limits::EXPIRY_AT_MOST.as_secs()
            ),
            moment,
        ),
        header(
            call::SANDBOX,
            true,
            "The sandbox it is meant for, as hello tells it.",
            json!({ "type": "string", "minLength": 1 }),
        ),
        header(
            call::SANDBOX_GENERATION,
            true,
            "Which incarnation of it, as hello tells it.",
            schema("SandboxGeneration"),
        ),
        header(
            call::GENERATION,
            true,
            "The generation of the run that asks. Admissions, fences and seals below the highest seen are stale; a stop must \
             carry its job's own.",
            schema("Generation"),
        ),
        query(
            "until",
            "What to wait for, for `wait_ms` at most: nothing; that the command's process exists; that it ended; that there is a \
             receipt. A job that is settled, paused or unknown is waited for no more.",
            json!({ "type": "string", "enum": ["now", "started", "exited", "settled"], "default": "now" }),
        ),
        query(
            "wait_ms",
            &format!(
                "How long to wait, in milliseconds. More than {} is cut to that.",
                limits::WAIT_AT_MOST.as_millis()
            ),
            cursor(0),
        ),
        query("from", "The cursor of the first byte.", cursor(0)),
        query(
            "max",
            "The most bytes of output in the answer. While many read at once, it may be fewer.",
            count(1, limits::OUTPUT_AT_MOST, limits::OUTPUT_DEFAULT),
        ),
        query(
            "stream",
            "One stream alone. Cursors count both all the same.",
            json!({ "type": "string", "enum": ["both", "stdout", "stderr"], "default": "both" }),
        ),
        query(
            "committed",
            "Have the log synced first, so that what is answered is committed.",
            json!({ "type": "boolean", "default": false }),
        ),
        query("after", "Jobs after this one.", schema("JobId")),
        query("limit", "The most jobs in the answer.", count(1, limits::LIST_AT_MOST.into(), 100)),
        query("offset", "Where in the whole input the body begins.", cursor(0)),
        query("close", "Close the input after the body.", json!({ "type": "boolean", "default": false })),
    ];
    let named = all
        .into_iter()
        .map(|parameter| (parameter["name"].as_str().unwrap_or_default().to_owned(), parameter));
    Value::Object(named.collect())
}

fn headers() -> Value {
    let gaps = r"^[0-9]+-[0-9]*;[a-z_]+(, [0-9]+-[0-9]*;[a-z_]+)*$";
    json!({
        call::output::NEXT: {
            "description": "The cursor to ask at next.",
            "required": true,
            "schema": reference("schemas", "Cursor"),
        },
        call::output::COMMITTED: {
            "description": "The cursor up to which output is known to be synced: it survives a crash of the machine.",
            "required": true,
            "schema": reference("schemas", "Cursor"),
        },
        call::output::TAIL: {
            "description": "Whether more is there now (`more`), may come (`open`), or never will (`ended`).",
            "required": true,
            "schema": { "type": "string", "enum": ["more", "open", "ended"] },
        },
        call::output::GAPS: {
            "description": "Ranges in this answer that the log does not keep: `FROM-TO;CAUSE`, comma-separated, `TO` empty where \
                unknown. Absent where there are none.",
            "required": false,
            "schema": { "type": "string", "pattern": gaps, "examples": ["1048576-2097152;log_limit"] },
        },
        "cache-control": { "description": "Answers are of a moment.", "schema": { "type": "string", "const": "no-store" } },
        "x-content-type-options": { "description": "Types are not guessed.", "schema": { "type": "string", "const": "nosniff" } },
        "content-disposition": { "description": "Output is no page.", "schema": { "type": "string", "const": "attachment" } },
        "www-authenticate": { "description": "What would be good.", "schema": { "type": "string", "const": "Bearer" } },
    })
}

/// A problem of each code.
fn examples() -> Value {
    let titles = |status: u16| match status {
        400 => "Bad Request",
        401 => "Unauthorized",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        408 => "Request Timeout",
        409 => "Conflict",
        413 => "Payload Too Large",
        415 => "Unsupported Media Type",
        416 => "Range Not Satisfiable",
        422 => "Unprocessable Entity",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        503 => "Service Unavailable",
        507 => "Insufficient Storage",
        _ => "Error",
    };
    let example = |code: &codes::Code| {
        let problem = Problem {
            kind: "about:blank".to_owned(),
            title: titles(code.status).to_owned(),
            status: code.status,
            code: code.code.to_owned(),
            detail: code.means.to_owned(),
            remedy: None,
            retryable: code.retryable,
            job_id: None,
            context: None,
        };
        (code.code.to_owned(), json!({ "summary": code.means, "value": problem }))
    };
    Value::Object(CODES.iter().map(example).collect())
}

/// The schemas of all bodies and of what they hold.
fn schemas() -> Value {
    let mut requests = generator(Contract::Deserialize);
    ask::<hello::HelloRequest>(&mut requests);
    ask::<admission::Admission>(&mut requests);
    ask::<verbs::Stop>(&mut requests);
    ask::<verbs::Settle>(&mut requests);
    ask::<verbs::Fence>(&mut requests);
    ask::<verbs::Seal>(&mut requests);
    ask::<verbs::Resize>(&mut requests);
    ask::<verbs::Acknowledge>(&mut requests);
    ask::<Scope>(&mut requests);
    ask::<Generation>(&mut requests);
    ask::<SandboxGeneration>(&mut requests);
    ask::<JobId>(&mut requests);
    let mut answers = generator(Contract::Serialize);
    ask::<hello::Hello>(&mut answers);
    ask::<view::JobView>(&mut answers);
    ask::<view::JobList>(&mut answers);
    ask::<view::FenceView>(&mut answers);
    ask::<view::Acknowledged>(&mut answers);
    ask::<verbs::Stopped>(&mut answers);
    ask::<verbs::Settled>(&mut answers);
    ask::<verbs::Sealed>(&mut answers);
    ask::<verbs::Spooled>(&mut answers);
    ask::<verbs::StdinTaken>(&mut answers);
    ask::<Problem>(&mut answers);
    let mut all = requests.take_definitions(true);
    for (name, mut schema) in answers.take_definitions(true) {
        never_null(&mut schema);
        let before = all.get(&name);
        assert!(
            before.is_none_or(|before| *before == schema),
            "{name} is read in another form than it is written"
        );
        all.insert(name, schema);
    }
    let means = CODES.iter().map(|code| format!("| `{}` | {} | {} |", code.code, code.status, code.means));
    let means: Vec<String> = means.collect();
    let known: Vec<&str> = CODES.iter().map(|code| code.code).collect();
    all.insert(
        "ProblemCode".to_owned(),
        json!({
            "description": format!("What programs decide by. Later runners may have more.\n\n| code | status | means |\n|---|---|---|\n{}", means.join("\n")),
            "anyOf": [
                { "type": "string", "enum": known },
                { "type": "string", "pattern": "^[A-Z][A-Z0-9_]+$" },
            ],
        }),
    );
    if let Some(code) = all.get_mut("Problem").and_then(|problem| problem.pointer_mut("/properties/code")) {
        *code = reference("schemas", "ProblemCode");
    }
    let mut all = Value::Object(all);
    plain_words(&mut all);
    all
}

fn generator(contract: Contract) -> SchemaGenerator {
    let mut settings = SchemaSettings::draft2020_12();
    settings.definitions_path = "/components/schemas".into();
    settings.contract = contract;
    settings.into_generator()
}

fn ask<T: JsonSchema>(generator: &mut SchemaGenerator) {
    let _ = generator.subschema_for::<T>();
}

/// A field of an answer that may be absent is left out where it is, and never `null`.
fn never_null(schema: &mut Value) {
    if let Some(fields) = schema.as_object_mut() {
        let required: Vec<String> = fields
            .get("required")
            .and_then(|list| serde_json::from_value(list.clone()).ok())
            .unwrap_or_default();
        for (name, field) in fields.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten()
        {
            if !required.contains(name) {
                without_null(field);
            }
        }
    }
    match schema {
        Value::Object(fields) => fields.values_mut().for_each(never_null),
        Value::Array(items) => items.iter_mut().for_each(never_null),
        _ => {}
    }
}

fn without_null(field: &mut Value) {
    let Some(fields) = field.as_object_mut() else { return };
    if let Some(Value::Array(types)) = fields.get("type") {
        let rest: Vec<Value> = types.iter().filter(|kind| **kind != json!("null")).cloned().collect();
        if let [only] = rest.as_slice() {
            fields.insert("type".to_owned(), only.clone());
        }
    }
    if let Some(Value::Array(choices)) = fields.get("anyOf") {
        let rest: Vec<Value> =
            choices.iter().filter(|choice| **choice != json!({ "type": "null" })).cloned().collect();
        if let [Value::Object(only)] = rest.as_slice() {
            let only = only.clone();
            fields.remove("anyOf");
            fields.extend(only);
        }
    }
}

/// Takes the marks of links out of what was written for readers of the code.
fn plain_words(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if let Some(Value::String(text)) = fields.get_mut("description") {
                *text = text.replace("[`", "`").replace("`]", "`");
            }
            fields.values_mut().for_each(plain_words);
        }
        Value::Array(items) => items.iter_mut().for_each(plain_words),
        _ => {}
    }
}
