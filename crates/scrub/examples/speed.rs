//! Prints how fast each filter is on ordinary output and on the worst kind, in chunks of 64 KiB.
#![allow(clippy::unwrap_used, reason = "a measurement has nobody to report errors to")]

use std::time::Instant;

use outlast_scrub::secrets::Secrets;
use outlast_scrub::terminal::TerminalFilter;
use outlast_scrub::view::ViewMasker;

const LEN: usize = 64 << 20;

fn measure(name: &str, text: &str, mut push: impl FnMut(&[u8], &mut Vec<u8>)) {
    let chunk = text.as_bytes().iter().copied().cycle().take(64 << 10).collect::<Vec<u8>>();
    let mut out = Vec::new();
    let start = Instant::now();
    for _ in 0..LEN / chunk.len() {
        out.clear();
        push(&chunk, &mut out);
    }
    let rate = LEN as f64 / start.elapsed().as_secs_f64() / 1e6;
    println!("{name:28} {rate:7.0} MB/s");
}

fn main() {
    let log =
        "   Compiling serde_json v1.0.145 (/src/x)\nwarning: unused variable: `key` at src/main.rs:12:5\n";
    let values = ["s3cret-hunter2-password", "3f2504e0-4f89-41d3-9a0c-0305e82c3301", "AbCdEfGhIjKlMnOpQrSt"];
    let named = values.map(|value| (value.to_owned(), value.as_bytes().to_vec())).to_vec();
    let start = Instant::now();
    let secrets = Secrets::new(named).unwrap();
    println!("3 secrets prepared in {:?}", start.elapsed());
    for (kind, text) in [("log", log), ("dense", values[1]), ("near miss", "s3cret-hunter2-passwor")] {
        let mut masker = secrets.masker();
        measure(&format!("secrets, {kind}"), text, |chunk, out| masker.push(chunk, out));
    }
    let mut masker = Secrets::none().masker();
    measure("secrets, none declared", log, |chunk, out| masker.push(chunk, out));
    for (kind, text) in [("log", log), ("near miss", "sk-aaaa eyJa http://a:b password=x ")] {
        let mut masker = ViewMasker::new();
        measure(&format!("view, {kind}"), text, |chunk, out| masker.push(chunk, out));
    }
    for (kind, text) in [("log", log), ("hostile", "\x1b[1m\x1b]0;x\x07\u{202e}é\x1b[")] {
        let mut filter = TerminalFilter::new();
        measure(&format!("terminal, {kind}"), text, |chunk, out| filter.push(chunk, out));
    }
}
