//! Prints the document of the hand protocol, as `docs/hand-protocol.openapi.json` holds it.
#![forbid(unsafe_code)]

fn main() {
    print!("{}", outlast_openapi::text());
}
