//! The commands an answer names as the next step. They are exact: run as they stand, they reach the same job.

use crate::args::Format;
use crate::quote;
use outlast_core::id::JobId;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// How this program is called again.
#[derive(Debug, Clone)]
pub(crate) struct FollowUp {
    program: OsString,
    /// Options that the next call needs to reach the same home and give the same form of answer.
    options: Vec<OsString>,
    /// This call's own words, without the program.
    words: Vec<OsString>,
}

impl FollowUp {
    /// From the words of this call. A home that was named by an option has to be named again; one that was found by
    /// the environment is found again. A form of answer is named again where it is not what the next call would choose.
    pub(crate) fn new(
        words: &[OsString],
        home: Option<&Path>,
        chosen: Option<Format>,
        default: Format,
    ) -> FollowUp {
        let program = words.first().cloned().unwrap_or_else(|| "outlast".into());
        let program = match program.to_str() {
            // Found through PATH, and found there again.
            Some(name) if !name.contains('/') && !name.is_empty() => program,
            _ => std::path::absolute(&program).map(OsString::from).unwrap_or(program),
        };
        let mut options = Vec::new();
        if let Some(home) = home {
            let absolute = std::path::absolute(home).unwrap_or_else(|_| home.to_owned());
            options.extend([OsString::from("--home"), absolute.into()]);
        }
        if let Some(format) = chosen.filter(|format| *format != default) {
            let name = if format == Format::Json { "json" } else { "text" };
            options.extend([OsString::from("--output"), name.into()]);
        }
        FollowUp { program, options, words: words.iter().skip(1).cloned().collect() }
    }

    /// `outlast job VERB JOB …`.
    pub(crate) fn job(&self, verb: &str, job_id: JobId, rest: &[&str]) -> String {
        let job_id = job_id.to_string();
        let words = ["job", verb, &job_id].into_iter().chain(rest.iter().copied()).map(OsStr::new);
        let all = std::iter::once(self.program.as_os_str()).chain(words);
        quote::line(all.chain(self.options.iter().map(OsString::as_os_str)))
    }

    /// This very call, made again. `--new` would start the work anew instead of continuing it, so it is left out.
    pub(crate) fn same_call(&self) -> String {
        let options = self.words.iter().position(|word| word == "--").unwrap_or(self.words.len());
        let kept = self.words.iter().enumerate().filter(|(at, word)| *at >= options || *word != "--new");
        quote::line(std::iter::once(&self.program).chain(kept.map(|(_, word)| word)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    fn job() -> JobId {
        "0000000000000000.1.1".parse().unwrap()
    }

    #[test]
    fn only_what_is_needed_is_named() {
        let plain = FollowUp::new(&words("outlast run -- make"), None, None, Format::Json);
        assert_eq!(plain.job("wait", job(), &[]), "outlast job wait 0000000000000000.1.1");
        let same = FollowUp::new(&words("outlast run -- make"), None, Some(Format::Json), Format::Json);
        assert_eq!(same.job("wait", job(), &[]), "outlast job wait 0000000000000000.1.1");
        let other =
            FollowUp::new(&words("outlast run"), Some(Path::new("/a b")), Some(Format::Json), Format::Text);
        assert_eq!(
            other.job("logs", job(), &["--cursor", "7"]),
            "outlast job logs 0000000000000000.1.1 --cursor 7 --home '/a b' --output json"
        );
    }

    #[test]
    fn a_program_named_by_a_path_is_named_by_an_absolute_one() {
        let here = std::env::current_dir().unwrap();
        let follow_up = FollowUp::new(&words("./outlast run"), None, None, Format::Json);
        let expected = here.join("outlast").display().to_string();
        assert_eq!(
            follow_up.job("cancel", job(), &[]),
            format!("{expected} job cancel 0000000000000000.1.1")
        );
        let relative = FollowUp::new(&words("outlast run"), Some(Path::new("h")), None, Format::Json);
        let home = here.join("h").display().to_string();
        assert_eq!(
            relative.job("wait", job(), &[]),
            format!("outlast job wait 0000000000000000.1.1 --home {home}")
        );
    }

    #[test]
    fn the_same_call_continues() {
        let call = FollowUp::new(&words("outlast run --new --resume -- cmd --new"), None, None, Format::Json);
        assert_eq!(call.same_call(), "outlast run --resume -- cmd --new");
    }
}
