//! JSON Schemas of what has an encoding of its own. Everything else on the wire derives its schema where it is defined.
//!
//! A limit in bytes stands here as one in characters, which is never lower: what a schema refuses, a hand refuses, too.

use crate::bytes::Bytes;
use crate::id::{
    Attempt, BootId, BrainId, Cursor, Generation, JobId, Key, MutationMark, NAME_LIMIT, RunId,
    SandboxGeneration, Scope,
};
use crate::spec::Digest;
use crate::time::{Millis, UnixMicros};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use std::borrow::Cow;

macro_rules! schema {
    ($type:ident, $schema:expr) => {
        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }

            fn schema_id() -> Cow<'static, str> {
                concat!(module_path!(), "::", stringify!($type)).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                $schema
            }
        }
    };
}

fn name(what: &str, example: &str) -> Schema {
    json_schema!({
        "description": format!("{what} 1 to {NAME_LIMIT} bytes of UTF-8 without control characters."),
        "type": "string",
        "minLength": 1,
        "maxLength": NAME_LIMIT,
        "pattern": r"^[^\x00-\x1f\x7f-\x9f]+$",
        "examples": [example],
    })
}

fn number(what: &str, example: u64) -> Schema {
    json_schema!({
        "description": what,
        "type": "integer",
        "format": "uint64",
        "minimum": 0,
        "examples": [example],
    })
}

schema!(Scope, name("The circle of callers that may find, read and stop one another's jobs.", "default"));
schema!(
    Key,
    name("The identity of a logical command within its scope, as its caller chose it.", "build-1842")
);
schema!(RunId, name("The work for one person's request, as the brain names it.", "run-77"));
schema!(BrainId, name("A control plane that admits jobs.", "brain-a"));
schema!(
    BootId,
    name(
        "The kernel's identity of one boot. Another boot means that no process of the earlier one lives.",
        "6f0c6d4e-5d0a-4d5b-9b43-0d5f3f3c7d11"
    )
);
schema!(
    Cursor,
    number("A byte offset into a job's output, both streams together: everything before it.", 4096)
);
schema!(
    Generation,
    number(
        "A counter of the conversation, raised to stop everything that was admitted under a lower one.",
        3
    )
);
schema!(SandboxGeneration, number("Which incarnation of a sandbox.", 1));
schema!(MutationMark, number("An offset in the hand's file of mutation marks. It never falls.", 1536));
schema!(
    UnixMicros,
    number("Microseconds since 1970-01-01T00:00:00Z, by the hand's clock.", 1_767_225_600_000_000)
);
schema!(Millis, number("A length of time in milliseconds.", 10_000));
schema!(
    Attempt,
    json_schema!({
        "description": "Which execution of one logical command, from 1.",
        "type": "integer",
        "format": "uint32",
        "minimum": 1,
        "maximum": u32::MAX,
        "examples": [1],
    })
);
schema!(
    JobId,
    json_schema!({
        "description": "The name of a job: CALL.NUMBER.ATTEMPT. CALL is 16 digits of Crockford's base 32, the others count from 1.",
        "type": "string",
        "pattern": r"^[0-9a-hjkmnp-tv-z]{16}\.[1-9][0-9]{0,9}\.[1-9][0-9]{0,9}$",
        "maxLength": 38,
        "examples": ["7k2m9qxw4t1rz5cb.1.1"],
    })
);
schema!(
    Digest,
    json_schema!({
        "description": "BLAKE3, hexadecimal.",
        "type": "string",
        "pattern": "^[0-9a-f]{64}$",
    })
);
schema!(
    Bytes,
    json_schema!({
        "description": "Bytes that are usually text: a string where they are UTF-8, else their hexadecimal digits.",
        "oneOf": [
            { "type": "string" },
            {
                "type": "object",
                "properties": { "hex": { "type": "string", "pattern": "^([0-9a-fA-F]{2})*$" } },
                "required": ["hex"],
            },
        ],
        "examples": ["make", { "hex": "ff00" }],
    })
);
