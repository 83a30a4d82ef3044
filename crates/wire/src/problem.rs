//! Errors, as RFC 9457 has them.

use outlast_core::id::JobId;
use serde::{Deserialize, Serialize};

/// The content type.
pub const CONTENT_TYPE: &str = "application/problem+json";

/// Why a call was not done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(transform = crate::schema::problem))]
pub struct Problem {
    /// Always `about:blank`: the code says which.
    #[serde(rename = "type")]
    pub kind: String,
    /// The HTTP status in words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// `^[A-Z][A-Z0-9_]+$`: what programs decide by.
    pub code: String,
    /// What happened, in one sentence.
    pub detail: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// Whether the same call may succeed later.
    pub retryable: bool,
    /// The job it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<JobId>,
    /// Facts that belong to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<serde_json::Value>,
}

impl Problem {
    /// A problem that will not go away by itself.
    #[must_use]
    pub fn new(status: http::StatusCode, code: &str, detail: impl Into<String>) -> Problem {
        Problem {
            kind: "about:blank".to_owned(),
            title: status.canonical_reason().unwrap_or("Error").to_owned(),
            status: status.as_u16(),
            code: code.to_owned(),
            detail: detail.into(),
            remedy: None,
            retryable: false,
            job_id: None,
            context: None,
        }
    }

    /// With what to do about it.
    #[must_use]
    pub fn remedy(self, remedy: impl Into<String>) -> Problem {
        Problem { remedy: Some(remedy.into()), ..self }
    }

    /// The same call may succeed later.
    #[must_use]
    pub fn retryable(self) -> Problem {
        Problem { retryable: true, ..self }
    }

    /// It is about this job.
    #[must_use]
    pub fn about(self, job_id: JobId) -> Problem {
        Problem { job_id: Some(job_id), ..self }
    }

    /// With facts.
    #[must_use]
    pub fn context(self, context: serde_json::Value) -> Problem {
        Problem { context: Some(context), ..self }
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({}): {}", self.code, self.status, self.detail)?;
        match &self.remedy {
            Some(remedy) => write!(f, "; {remedy}"),
            None => Ok(()),
        }
    }
}
