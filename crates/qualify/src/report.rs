//! What is shown to people and kept for programs.

use crate::latency::Figures;
use crate::machine::Machine;
use crate::probe::Verdict;
use crate::subject::Description;
use serde::Serialize;
use serde_json::Value;

/// The version of the record.
pub const SCHEMA: &str = "outlast-qualification/1";

/// What a run exits with where a probe did not pass.
pub const FAILED: u8 = 1;

/// What a run exits with where the subject could not be reached.
pub const UNAVAILABLE: u8 = 12;

/// How thoroughly it was probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// All samples and bytes.
    Full,
    /// Fewer of both.
    Quick,
}

/// The record of one subject.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The version of the record.
    pub schema: &'static str,
    /// The version of what probed.
    pub tool_version: &'static str,
    /// When it was made.
    pub date: String,
    /// How thoroughly.
    pub mode: Mode,
    /// Bytes of the probe of much output.
    pub bulk_bytes: u64,
    /// Samples of each latency.
    pub samples: usize,
    /// The machine the probes were put from.
    pub machine: Machine,
    /// What was probed.
    pub subject: Description,
    /// Why it could not be probed at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<String>,
    /// What each probe found.
    pub probes: Vec<Row>,
    /// How long things take, and what they cost.
    pub latencies: Vec<Figures>,
    /// How long all of it took.
    pub duration_ms: u64,
}

/// What one probe found.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The probe.
    pub id: &'static str,
    /// The behaviour that is right.
    pub title: &'static str,
    /// The cases it stands for.
    pub cases: &'static [u16],
    /// What it comes to.
    pub verdict: Verdict,
    /// What was seen, for people.
    pub line: String,
    /// What was seen, for programs.
    pub evidence: Value,
    /// How long it took.
    pub duration_ms: u64,
}

impl Report {
    /// How many probes came to this.
    #[must_use]
    pub fn count(&self, verdict: Verdict) -> usize {
        self.probes.iter().filter(|row| row.verdict == verdict).count()
    }

    /// All verdicts, counted, in a few words.
    #[must_use]
    pub fn summary(&self) -> String {
        if let Some(why) = &self.unavailable {
            return format!("{} could not be probed: {why}", self.subject.name);
        }
        let words: Vec<String> =
            [Verdict::Pass, Verdict::Fail, Verdict::Partial, Verdict::Unsupported, Verdict::Inconclusive]
                .into_iter()
                .map(|verdict| (self.count(verdict), verdict))
                .filter(|(count, _)| *count > 0)
                .map(|(count, verdict)| format!("{count} {}", verdict.word()))
                .collect();
        if words.is_empty() { "no probe was put".to_owned() } else { words.join(", ") }
    }

    /// 0 where every probe passed, 1 where one did not, 12 where the subject could not be probed at all. What it has no
    /// such thing for counts as not passed, unless the caller allows it.
    #[must_use]
    pub fn exit_code(&self, allow_unsupported: bool) -> u8 {
        let accepted = |row: &Row| crate::qualify::is_accepted(row.verdict, allow_unsupported);
        match &self.unavailable {
            Some(_) => UNAVAILABLE,
            None if self.probes.iter().all(accepted) => 0,
            None => FAILED,
        }
    }
}

/// Records for people: one has a line for each probe, several stand side by side with what was seen below.
#[must_use]
pub fn table(reports: &[Report]) -> String {
    let mut text = head(reports);
    match reports {
        [report] => text.push_str(&one(report)),
        reports => text.push_str(&several(reports)),
    }
    text
}

fn head(reports: &[Report]) -> String {
    let mut text = String::new();
    if let Some(Report { machine, date, mode, .. }) = reports.first() {
        let memory =
            machine.memory_kib.map_or(String::new(), |kib| format!(", {:.0} GiB", kib as f64 / 1_048_576.0));
        text.push_str(&format!(
            "{date}, {} mode; Linux {} ({}), {} CPUs{memory}, {}{}\n",
            if *mode == Mode::Quick { "quick" } else { "full" },
            machine.kernel,
            machine.architecture,
            machine.cpus,
            machine.file_system.as_deref().unwrap_or("file system not known"),
            if machine.root { ", as root" } else { "" }
        ));
    }
    for Report { subject, .. } in reports {
        let boundary = subject.boundary.as_deref().map_or(String::new(), |boundary| format!("; {boundary}"));
        text.push_str(&format!("{} {}: {}{boundary}\n", subject.name, subject.version, subject.reached));
    }
    text.push('\n');
    text
}

fn one(report: &Report) -> String {
    let mut text = String::new();
    for row in &report.probes {
        let seconds = row.duration_ms as f64 / 1000.0;
        text.push_str(&format!("{:<12} {:<21} {seconds:>5.1} s  {}\n", row.verdict.word(), row.id, row.line));
    }
    text.push_str(&format!("\n{}\n", report.summary()));
    if !report.latencies.is_empty() {
        let heads = ["samples", "min", "p50", "p90", "p99", "max"].map(|head| format!(" {head:>9}")).concat();
        text.push_str(&format!("\n{:<16}{heads}\n", "figure"));
    }
    for Figures { id, title, unit, distribution, trouble } in &report.latencies {
        text.push_str(&format!("{:<16}", format!("{id}, {unit}")));
        if let Some(figures) = distribution {
            text.push_str(&format!(" {:>9}", figures.samples));
            for figure in [figures.min, figures.p50, figures.p90, figures.p99, figures.max] {
                text.push_str(&format!(" {figure:>9.2}"));
            }
            text.push_str(&format!("  {title}"));
        }
        text.push_str(&trouble.as_deref().map_or(String::new(), |trouble| format!("  {trouble}")));
        text.push('\n');
    }
    text
}

fn several(reports: &[Report]) -> String {
    // Whoever could not be probed has no rows, and still a column.
    let rows =
        reports.iter().max_by_key(|report| report.probes.len()).map_or(&[][..], |report| &report.probes);
    let kinds = reports
        .iter()
        .max_by_key(|report| report.latencies.len())
        .map_or(&[][..], |report| &report.latencies);
    let mut lines = vec![cells("probe", reports, |report| report.subject.name.clone())];
    for row in rows {
        lines.push(cells(row.id, reports, |report| {
            find(report, row.id).map_or("-", |row| row.verdict.word()).to_owned()
        }));
    }
    lines.push(cells("passed", reports, |report| match &report.unavailable {
        Some(_) => "not probed".to_owned(),
        None => format!("{} of {}", report.count(Verdict::Pass), report.probes.len()),
    }));
    lines.push(vec!["p50 / p99".to_owned()]);
    for kind in kinds {
        lines.push(cells(&format!("{}, {}", kind.id, kind.unit), reports, |report| {
            let found = report.latencies.iter().find(|other| other.id == kind.id);
            match found.and_then(|found| found.distribution) {
                Some(figures) if figures.samples == 1 => format!("{:.0}", figures.p50),
                Some(figures) => format!("{:.1} / {:.1}", figures.p50, figures.p99),
                None => "-".to_owned(),
            }
        }));
    }
    let mut text = aligned(&lines);
    for row in rows {
        text.push_str(&format!("\n{}: {}\n", row.id, row.title));
        for report in reports {
            if let Some(row) = find(report, row.id) {
                text.push_str(&format!(
                    "  {:<18} {:<12} {}\n",
                    report.subject.name,
                    row.verdict.word(),
                    row.line
                ));
            }
        }
    }
    for report in reports.iter().filter(|report| report.unavailable.is_some()) {
        text.push_str(&format!("\n{}\n", report.summary()));
    }
    text
}

/// A line of the table: its head, and a cell for each subject.
fn cells(head: &str, reports: &[Report], cell: impl Fn(&Report) -> String) -> Vec<String> {
    std::iter::once(head.to_owned()).chain(reports.iter().map(cell)).collect()
}

/// Lines whose columns are as wide as their widest cell.
fn aligned(lines: &[Vec<String>]) -> String {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for line in lines {
        let padded = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}  "));
        text.push_str(padded.collect::<String>().trim_end());
        text.push('\n');
    }
    text
}

fn find<'r>(report: &'r Report, id: &str) -> Option<&'r Row> {
    report.probes.iter().find(|row| row.id == id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::Distribution;
    use std::path::Path;

    fn report(name: &str, verdicts: &[Verdict]) -> Report {
        let row = |verdict: &Verdict| Row {
            id: "bulk-output",
            title: "all of it",
            cases: &[52],
            verdict: *verdict,
            line: "seen".to_owned(),
            evidence: serde_json::json!({"a": 1}),
            duration_ms: 1234,
        };
        Report {
            schema: SCHEMA,
            tool_version: "1",
            date: "2000-01-01T00:00:00Z".to_owned(),
            mode: Mode::Quick,
            bulk_bytes: 1,
            samples: 3,
            machine: Machine::look(Path::new("/")),
            subject: Description {
                name: name.to_owned(),
                version: "1".to_owned(),
                reached: "here".to_owned(),
                boundary: None,
            },
            unavailable: None,
            probes: verdicts.iter().map(row).collect(),
            latencies: vec![Figures {
                id: "round-trip",
                title: "there and back",
                unit: "ms",
                distribution: Distribution::of(vec![1.0, 2.0, 3.0]),
                trouble: None,
            }],
            duration_ms: 1234,
        }
    }

    #[test]
    fn the_exit_code_says_the_worst() {
        use Verdict::{Fail, Inconclusive, Partial, Pass, Unsupported};
        for (verdicts, strict, lenient) in [
            (&[Pass, Pass][..], 0, 0),
            (&[Pass, Unsupported], 1, 0),
            (&[Pass, Fail], 1, 1),
            (&[Partial], 1, 1),
            (&[Inconclusive], 1, 1),
        ] {
            let report = report("x", verdicts);
            assert_eq!((report.exit_code(false), report.exit_code(true)), (strict, lenient), "{verdicts:?}");
        }
        let absent = Report { unavailable: Some("gone".to_owned()), ..report("x", &[]) };
        assert_eq!(absent.exit_code(true), 12);
        assert_eq!(absent.summary(), "x could not be probed: gone");
    }

    #[test]
    fn one_has_lines_and_several_have_columns() {
        let (a, b) = (report("a", &[Verdict::Pass]), report("b", &[Verdict::Unsupported]));
        let single = table(std::slice::from_ref(&a));
        assert!(single.contains("pass         bulk-output             1.2 s  seen\n"), "{single}");
        assert!(single.contains("\n1 pass\n"), "{single}");
        assert!(single.contains("round-trip, ms           3      1.00      2.00"), "{single}");
        let absent = Report { unavailable: Some("gone".to_owned()), ..report("c", &[]) };
        let side_by_side = table(&[a, absent, b]);
        assert!(
            side_by_side.contains("bulk-output     pass       -           unsupported\n"),
            "{side_by_side}"
        );
        assert!(side_by_side.contains("passed          1 of 1     not probed  0 of 1\n"), "{side_by_side}");
        assert!(side_by_side.contains("  b                  unsupported  seen"), "{side_by_side}");
        assert!(
            side_by_side.contains("round-trip, ms  2.0 / 3.0  2.0 / 3.0   2.0 / 3.0\n"),
            "{side_by_side}"
        );
    }

    #[test]
    fn the_record_has_what_the_table_rests_on() {
        let value = serde_json::to_value(report("a", &[Verdict::Pass])).unwrap();
        assert_eq!(value["schema"], SCHEMA);
        let row = &value["probes"][0];
        assert_eq!((&row["verdict"], &row["evidence"]["a"]), (&"pass".into(), &1.into()));
        assert_eq!(row["cases"], serde_json::json!([52]));
        assert_eq!(value["latencies"][0]["distribution"]["p50"], 2.0);
    }
}
