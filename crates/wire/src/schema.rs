//! What types alone do not say of the bodies: limits and formats that a runner checks.

use crate::{limits, version};
use schemars::Schema;
use serde_json::{Value, json};

/// No control characters, as [`char::is_control`] has them.
const PLAIN: &str = r"^[^\x00-\x1f\x7f-\x9f]+$";
/// What can be the name of an environment variable.
const VARIABLE: &str = r"^[^=\x00]+$";
const CODE: &str = "^[A-Z][A-Z0-9_]+$";
const BLAKE3: &str = "^[0-9a-f]{64}$";

/// The name of a spooled input, as a runner gives it.
const SPOOL: &str = r"^spool\.[0-9a-f]{24}\.[0-9a-f]{64}\.[0-9]+$";

/// Adds `more` to the schema at `path`, which must be there: a field that was renamed is no silent loss.
fn add(schema: &mut Schema, path: &str, more: Value) {
    let place = schema.pointer_mut(path).and_then(Value::as_object_mut);
    assert!(place.is_some(), "the schema has nothing at {path}");
    if let (Some(place), Value::Object(more)) = (place, more) {
        place.extend(more);
    }
}

pub(crate) fn admission(schema: &mut Schema) {
    for variables in ["env", "inherited", "secrets"] {
        let bounds = json!({
            "maxProperties": limits::LIST_ITEMS,
            "propertyNames": { "minLength": 1, "pattern": VARIABLE },
        });
        add(schema, &format!("/properties/{variables}"), bounds);
    }
}

pub(crate) fn stdin_from(schema: &mut Schema) {
    add(schema, "/oneOf/2/properties/spool", json!({ "pattern": SPOOL }));
}

pub(crate) fn hello_request(schema: &mut Schema) {
    let bounds = json!({ "minItems": 1, "maxItems": version::OFFER_AT_MOST });
    add(schema, "/properties/versions", bounds);
    add(schema, "/properties/client", json!({ "maxLength": 200 }));
}

pub(crate) fn problem(schema: &mut Schema) {
    add(schema, "/properties/type", json!({ "const": "about:blank" }));
    add(schema, "/properties/status", json!({ "minimum": 400, "maximum": 599 }));
    add(schema, "/properties/code", json!({ "pattern": CODE }));
}

pub(crate) fn code(schema: &mut Schema) {
    add(schema, "/properties/code", json!({ "pattern": CODE }));
}

pub(crate) fn stop(schema: &mut Schema) {
    let id = json!({ "minLength": 1, "maxLength": limits::STOP_ID, "pattern": PLAIN });
    add(schema, "/properties/id", id);
}

pub(crate) fn settle(schema: &mut Schema) {
    add(schema, "/oneOf/3/properties/name", json!({ "minLength": 1, "maxLength": 200, "pattern": r"\S" }));
}

pub(crate) fn spooled(schema: &mut Schema) {
    add(schema, "/properties/spool", json!({ "pattern": SPOOL }));
    add(schema, "/properties/blake3", json!({ "pattern": BLAKE3 }));
}
