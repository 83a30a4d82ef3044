//! Objects in a bucket of S3, or of what speaks its protocol.
//!
//! Creation is a PUT with `If-None-Match: *`. A bucket that does not honour that header would replace objects; Amazon's
//! and the servers that people run themselves honour it.

mod transport;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::aws::{AmazonS3, AmazonS3Builder, AwsCredential};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{
    Error, GetOptions, GetRange, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, RetryConfig,
    StaticCredentialProvider,
};

use crate::memory::within;
use crate::{
    Backend, Bucket, Created, Doing, Entry, Found, Meta, Name, OBJECT_AT_MOST, ObjectError, Page, Span, Verb,
};
use transport::{Answer, Connector};

/// How often a request is repeated that failed in a way that passes, at most and for how long.
const RETRIES_AT_MOST: usize = 5;
const RETRIES_WITHIN: Duration = Duration::from_secs(60);

/// How much of what a server answered is passed on in an error, in characters.
const ANSWER_AT_MOST: usize = 500;

/// What a store in a bucket proves itself with. Its debug output shows nothing of it.
#[derive(Clone)]
pub struct Credentials {
    access_key_id: String,
    secret_access_key: String,
    session_token: Option<String>,
}

impl Credentials {
    /// Credentials that were had from elsewhere.
    pub fn new(
        access_key_id: impl Into<String>,
        secret_access_key: impl Into<String>,
        session_token: Option<String>,
    ) -> Credentials {
        Credentials {
            access_key_id: access_key_id.into(),
            secret_access_key: secret_access_key.into(),
            session_token,
        }
    }

    /// Those of the environment: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and, where there is one,
    /// `AWS_SESSION_TOKEN`.
    ///
    /// # Errors
    /// [`ObjectError::Denied`], naming the variable that is missing.
    pub fn from_env() -> Result<Credentials, ObjectError> {
        let read = |variable: &str| std::env::var(variable).ok().filter(|value| !value.is_empty());
        let required = |variable: &str| {
            let missing = || ObjectError::Denied {
                verb: Verb::Open,
                source: format!("{variable} is not set in the environment").into(),
            };
            read(variable).ok_or_else(missing)
        };
        Ok(Credentials {
            access_key_id: required("AWS_ACCESS_KEY_ID")?,
            secret_access_key: required("AWS_SECRET_ACCESS_KEY")?,
            session_token: read("AWS_SESSION_TOKEN"),
        })
    }

    fn secrets(&self) -> impl Iterator<Item = &str> {
        [&self.access_key_id, &self.secret_access_key]
            .into_iter()
            .chain(&self.session_token)
            .map(String::as_str)
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(…)")
    }
}

/// A store in a bucket.
///
/// It needs the rights to get, put and delete objects, and to list the bucket: without the last, Amazon refuses to say
/// that an object is missing. Versions are those of the bucket, where it keeps them.
///
/// Requests that fail in a way that passes are repeated for up to a minute; all of them may safely be. It needs a runtime
/// with time and I/O.
pub struct S3 {
    place: Bucket,
    store: AmazonS3,
    credentials: Credentials,
}

impl S3 {
    /// Opens a store, without asking anything of it.
    ///
    /// # Errors
    /// [`ObjectError::Unavailable`] where the bucket is reached by TLS and this machine trusts no authority.
    pub fn open(place: &Bucket, credentials: Credentials) -> Result<S3, ObjectError> {
        let plain = place.endpoint.as_ref().is_some_and(|endpoint| endpoint.starts_with("http://"));
        let connector = if plain {
            Connector::plain()
        } else {
            Connector::tls().map_err(|e| ObjectError::unavailable(Verb::Open, false, e))?
        };
        let retry = RetryConfig {
            max_retries: RETRIES_AT_MOST,
            retry_timeout: RETRIES_WITHIN,
            ..RetryConfig::default()
        };
        // Not from the environment: it would bring in settings, and ways to come by credentials, that nobody named.
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(&place.bucket)
            .with_region(&place.region)
            .with_virtual_hosted_style_request(!place.path_style)
            .with_allow_http(plain)
            // Not every server can delete many at once, and this deletes one.
            .with_disable_bulk_delete(true)
            .with_retry(retry)
            .with_http_connector(connector)
            .with_credentials(Arc::new(StaticCredentialProvider::new(AwsCredential {
                key_id: credentials.access_key_id.clone(),
                secret_key: credentials.secret_access_key.clone(),
                token: credentials.session_token.clone(),
            })));
        if let Some(endpoint) = &place.endpoint {
            // It is taken as it is, so where the bucket is part of the host's name it is put there here.
            let whole = match endpoint.split_once("://") {
                Some((scheme, host)) if !place.path_style => format!("{scheme}://{}.{host}", place.bucket),
                _ => endpoint.clone(),
            };
            builder = builder.with_endpoint(whole);
        }
        let store = builder.build();
        let store = store.map_err(|error| {
            ObjectError::unavailable(Verb::Open, false, quiet(&error.to_string(), &credentials))
        })?;
        Ok(S3 { place: place.clone(), store, credentials })
    }

    fn key(&self, name: &Name) -> String {
        match &self.place.prefix {
            Some(prefix) => format!("{prefix}/{name}"),
            None => name.to_string(),
        }
    }

    fn path(&self, name: &Name) -> Path {
        // A name has neither anything that would be escaped nor a segment that would be refused.
        Path::from(self.key(name))
    }

    /// What went wrong, by the status of the last answer, or the lack of one.
    fn fault(&self, verb: Verb, error: &Error, status: Option<u16>) -> ObjectError {
        let text = error.to_string();
        let source = quiet(&text, &self.credentials);
        let denied = matches!(status, Some(401 | 403))
            || status == Some(400) && (text.contains("ExpiredToken") || text.contains("InvalidToken"));
        if denied {
            return ObjectError::Denied { verb, source: source.into() };
        }
        // Without an answer there is nothing to be learnt about the request. Other refusals stay as they are.
        let passing =
            status.is_none_or(|status| status >= 500 || matches!(status, 408 | 409 | 429) || status < 300);
        ObjectError::unavailable(verb, passing, source)
    }

    async fn create(&self, name: &Name, bytes: Bytes) -> Result<Created, ObjectError> {
        let options = PutOptions::from(PutMode::Create);
        let path = self.path(name);
        let (stored, status) = Answer::to(self.store.put_opts(&path, bytes.into(), options)).await;
        match stored {
            Ok(stored) => Ok(Created::New { version: stored.version.and_then(real_version) }),
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(Created::Exists),
            Err(error) => Err(self.fault(Verb::Put, &error, status)),
        }
    }

    async fn read(
        &self,
        name: &Name,
        version: Option<&str>,
        span: Option<Span>,
    ) -> Result<Found, ObjectError> {
        // No range of HTTP is empty, nor can all servers count as far. And one that is too long need only be seen to be.
        let nothing = span.is_some_and(|span| span.len == 0 || i64::try_from(span.start).is_err());
        let range = span.filter(|_| !nothing).map(|span| {
            GetRange::Bounded(span.start..span.start.saturating_add(span.len.min(OBJECT_AT_MOST + 1)))
        });
        let options =
            GetOptions { range, version: version.map(str::to_owned), head: nothing, ..GetOptions::default() };
        let path = self.path(name);
        let (got, status) = Answer::to(self.store.get_opts(&path, options)).await;
        let got = match got {
            Ok(got) => got,
            Err(error) => return self.without(name, version, span, &error, status).await,
        };
        let meta = Meta { len: got.meta.size, version: got.meta.version.clone().and_then(real_version) };
        match (version, &meta.version) {
            (Some(_), None) => return Err(ObjectError::NoVersions),
            (Some(asked), Some(had)) if asked != had => {
                return Err(ObjectError::NotFound { name: name.clone() });
            }
            _ => {}
        }
        let range = within(name, meta.len, span)?;
        if nothing {
            return Ok(Found { bytes: Bytes::new(), meta });
        }
        let bytes = got.bytes().await.map_err(|error| self.fault(Verb::Get, &error, None))?;
        if bytes.len() as u64 != range.end - range.start {
            return Err(ObjectError::unavailable(Verb::Get, true, "the answer ended early"));
        }
        Ok(Found { bytes, meta })
    }

    /// What a read means that brought nothing.
    async fn without(
        &self,
        name: &Name,
        version: Option<&str>,
        span: Option<Span>,
        error: &Error,
        status: Option<u16>,
    ) -> Result<Found, ObjectError> {
        match (status, span) {
            (Some(404), _) if !error.to_string().contains("NoSuchBucket") => {
                Err(ObjectError::NotFound { name: name.clone() })
            }
            (Some(404), _) => {
                let source = format!("there is no bucket `{}`", self.place.bucket);
                Err(ObjectError::unavailable(Verb::Get, false, source))
            }
            // A text that this store cannot have made is no version of it.
            (Some(400), _) if version.is_some() => Err(ObjectError::NotFound { name: name.clone() }),
            // It begins at the end or beyond. The answer need not say how long the object is.
            (Some(416), Some(_)) => {
                let meta =
                    self.head(name).await?.ok_or_else(|| ObjectError::NotFound { name: name.clone() })?;
                let range = within(name, meta.len, span)?;
                if range.is_empty() {
                    return Ok(Found { bytes: Bytes::new(), meta });
                }
                Err(ObjectError::unavailable(
                    Verb::Get,
                    true,
                    "the store refused a range that the object has",
                ))
            }
            _ => Err(self.fault(Verb::Get, error, status)),
        }
    }

    async fn head(&self, name: &Name) -> Result<Option<Meta>, ObjectError> {
        let path = self.path(name);
        match Answer::to(self.store.head(&path)).await {
            (Ok(found), _) => {
                Ok(Some(Meta { len: found.size, version: found.version.and_then(real_version) }))
            }
            (Err(Error::NotFound { .. }), _) => Ok(None),
            (Err(error), status) => Err(self.fault(Verb::Head, &error, status)),
        }
    }

    async fn list(
        &self,
        folder: Option<&Name>,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Page, ObjectError> {
        let own = self.place.prefix.as_ref().map_or(String::new(), |prefix| format!("{prefix}/"));
        let below = folder.map_or(own.clone(), |folder| format!("{own}{folder}/"));
        let below = Some(below.as_str()).filter(|below| !below.is_empty());
        let mut page = Page { entries: Vec::new(), more: true };
        let mut page_token = None;
        while page.more && page.entries.len() < limit {
            let options = PaginatedListOptions {
                offset: after.map(|after| self.key(after)),
                max_keys: Some(limit - page.entries.len()),
                page_token,
                ..PaginatedListOptions::default()
            };
            let (listed, status) = Answer::to(self.store.list_paginated(below, options)).await;
            let listed = listed.map_err(|error| self.fault(Verb::List, &error, status))?;
            page.entries.extend(listed.result.objects.into_iter().filter_map(|object| {
                let name: Name = object.location.as_ref().strip_prefix(&own)?.parse().ok()?;
                (Some(&name) > after).then_some(Entry { name, len: object.size })
            }));
            page.more = listed.page_token.is_some();
            page_token = listed.page_token;
        }
        Ok(page)
    }

    async fn delete(&self, name: &Name) -> Result<(), ObjectError> {
        let path = self.path(name);
        match Answer::to(self.store.delete(&path)).await {
            (Ok(()) | Err(Error::NotFound { .. }), _) => Ok(()),
            (Err(error), status) => Err(self.fault(Verb::Delete, &error, status)),
        }
    }
}

/// A bucket whose versions are switched off calls all it stores then by one name, which says nothing.
fn real_version(version: String) -> Option<String> {
    (version != "null").then_some(version)
}

/// A server may repeat in its answer what it was sent, credentials included; so they are taken out, before the text is
/// cut.
fn quiet(text: &str, credentials: &Credentials) -> String {
    let mut quiet = text.to_owned();
    for secret in credentials.secrets().filter(|secret| !secret.is_empty()) {
        quiet = quiet.replace(secret, "…");
    }
    quiet.chars().take(ANSWER_AT_MOST).collect()
}

impl fmt::Debug for S3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "S3({})", self.place)
    }
}

impl Backend for S3 {
    fn create<'a>(&'a self, name: &'a Name, bytes: Bytes) -> Doing<'a, Created> {
        Box::pin(S3::create(self, name, bytes))
    }

    fn read<'a>(&'a self, name: &'a Name, version: Option<&'a str>, span: Option<Span>) -> Doing<'a, Found> {
        Box::pin(S3::read(self, name, version, span))
    }

    fn head<'a>(&'a self, name: &'a Name) -> Doing<'a, Option<Meta>> {
        Box::pin(S3::head(self, name))
    }

    fn list<'a>(
        &'a self,
        folder: Option<&'a Name>,
        after: Option<&'a Name>,
        limit: usize,
    ) -> Doing<'a, Page> {
        Box::pin(S3::list(self, folder, after, limit))
    }

    fn delete<'a>(&'a self, name: &'a Name) -> Doing<'a, ()> {
        Box::pin(S3::delete(self, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_repeats_of_credentials_is_taken_out() {
        let credentials = Credentials::new("AKIAKEY", "hunter2", Some("token+/=".to_owned()));
        let answer = format!("<Key>AKIAKEY</Key> hunter2 token+/= {}", "x".repeat(1000));
        let text = quiet(&answer, &credentials);
        assert!(text.starts_with("<Key>…</Key> … … xxx"), "{text}");
        assert_eq!(text.chars().count(), ANSWER_AT_MOST);
        assert_eq!(format!("{credentials:?}"), "Credentials(…)");
    }
}
