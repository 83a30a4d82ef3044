use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

use crate::Name;

/// Where a store of objects is.
///
/// | text | what |
/// |---|---|
/// | `PATH`, `file:PATH` | a directory |
/// | `s3://BUCKET/PREFIX?endpoint=URL&region=REGION&path_style=true` | a bucket; prefix and each parameter may be missing |
///
/// Credentials have no place in it: they come from the environment.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Location {
    /// A directory of a local file system.
    Directory(PathBuf),
    /// A bucket of S3, or of what speaks its protocol.
    S3(Bucket),
}

/// A bucket of S3, or a part of one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Bucket {
    /// Its name.
    pub bucket: String,
    /// What all names are below; all of the bucket is used without.
    pub prefix: Option<Name>,
    /// `http://HOST[:PORT]` or `https://HOST[:PORT]`; that of Amazon for the region without.
    pub endpoint: Option<String>,
    /// The region; `us-east-1` by default, where there is an endpoint.
    pub region: String,
    /// Whether the bucket is named in the path and not in the host name, as servers of one's own mostly want it.
    pub path_style: bool,
}

/// A text that is no location. The text is not repeated, since somebody may have put a secret there.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "no location of objects: {problem}; say PATH, file:PATH or \
     s3://BUCKET/PREFIX?endpoint=https://HOST&region=REGION&path_style=true"
)]
pub struct BadLocation {
    /// What is wrong with it.
    pub problem: &'static str,
}

impl FromStr for Location {
    type Err = BadLocation;

    fn from_str(text: &str) -> Result<Location, BadLocation> {
        parse(text).map_err(|problem| BadLocation { problem })
    }
}

fn parse(text: &str) -> Result<Location, &'static str> {
    if text.contains('\0') {
        return Err("it contains a zero byte");
    }
    if let Some(rest) = text.strip_prefix("s3:") {
        let rest = rest.strip_prefix("//").ok_or("`s3:` is followed by `//`")?;
        return parse_bucket(rest).map(Location::S3);
    }
    let path = match text.strip_prefix("file:") {
        // As a URL: a host between the slashes would be silently taken for a folder.
        Some(path) if path.starts_with("//") && !path.starts_with("///") => {
            return Err("a directory is named without a host, as file:/PATH");
        }
        Some(path) => path,
        None if text.contains("://") => return Err("only s3:// is known"),
        None => text,
    };
    if path.is_empty() {
        return Err("the path is empty");
    }
    Ok(Location::Directory(path.into()))
}

fn parse_bucket(text: &str) -> Result<Bucket, &'static str> {
    let (place, parameters) = text.split_once('?').unwrap_or((text, ""));
    if place.contains('@') {
        return Err("credentials come from the environment, and a bucket's name has no `@`");
    }
    let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
    let good_letter = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-');
    if !(3..=63).contains(&bucket.len()) || !bucket.bytes().all(good_letter) || bucket.contains("..") {
        return Err("a bucket's name has 3 to 63 letters of a-z, 0-9, `.` and `-`");
    }
    let prefix = match prefix.strip_suffix('/').unwrap_or(prefix) {
        "" => None,
        prefix => Some(prefix.parse::<Name>().map_err(|bad| bad.problem)?),
    };
    // A key has at most 1024 bytes.
    if prefix.as_ref().is_some_and(|prefix| prefix.as_str().len() > 400) {
        return Err("the prefix is longer than 400 bytes");
    }
    let (mut endpoint, mut region, mut path_style) = (None, None, None);
    for parameter in parameters.split('&').filter(|parameter| !parameter.is_empty()) {
        let (key, value) = parameter.split_once('=').ok_or("a parameter has no `=`")?;
        let fresh = match key {
            "endpoint" => endpoint.replace(parse_endpoint(value)?).is_none(),
            "region" => region.replace(parse_region(value)?).is_none(),
            "path_style" => {
                let flag = match value {
                    "true" => true,
                    "false" => false,
                    _ => return Err("path_style is `true` or `false`"),
                };
                path_style.replace(flag).is_none()
            }
            _ => {
                return Err(
                    "the parameters are endpoint, region and path_style (credentials come from the environment)",
                );
            }
        };
        if !fresh {
            return Err("a parameter occurs twice");
        }
    }
    let region = match (region, &endpoint) {
        (Some(region), _) => region,
        (None, Some(_)) => "us-east-1".to_owned(),
        (None, None) => return Err("without an endpoint the region must be named"),
    };
    // A dot in the bucket's name would make the host one that no certificate covers.
    let path_style = path_style.unwrap_or(bucket.contains('.'));
    Ok(Bucket { bucket: bucket.to_owned(), prefix, endpoint, region, path_style })
}

fn parse_endpoint(text: &str) -> Result<String, &'static str> {
    let text = text.strip_suffix('/').unwrap_or(text);
    let authority = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let authority = authority.ok_or("the endpoint is http://HOST[:PORT] or https://HOST[:PORT]")?;
    let good_letter =
        |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b':' | b'[' | b']' | b'_');
    if authority.is_empty() || !authority.bytes().all(good_letter) {
        return Err("the endpoint is a scheme, a host and perhaps a port: no user, path or anything else");
    }
    Ok(text.to_owned())
}

fn parse_region(text: &str) -> Result<String, &'static str> {
    if text.is_empty() || text.len() > 64 || !text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        return Err("a region consists of letters, digits and `-`");
    }
    Ok(text.to_owned())
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::Directory(path) => write!(f, "file:{}", path.display()),
            Location::S3(bucket) => bucket.fmt(f),
        }
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}", self.bucket)?;
        if let Some(prefix) = &self.prefix {
            write!(f, "/{prefix}")?;
        }
        write!(f, "?region={}", self.region)?;
        if let Some(endpoint) = &self.endpoint {
            write!(f, "&endpoint={endpoint}")?;
        }
        write!(f, "&path_style={}", self.path_style)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read_and_its_own_text_read_back() {
        let bucket = |text: &str| match text.parse().unwrap() {
            Location::S3(bucket) => bucket,
            other => panic!("{other:?}"),
        };
        for path in ["/var/lib/objects", "objects", "./a:b", "file:/var/lib/objects", "file:///x", "file:a"] {
            let location: Location = path.parse().unwrap();
            assert!(matches!(location, Location::Directory(_)), "{path}");
            assert_eq!(location.to_string().parse(), Ok(location));
        }
        let full = bucket("s3://my-bucket/a/b?endpoint=http://127.0.0.1:9000&region=eu-1&path_style=true");
        assert_eq!(full.bucket, "my-bucket");
        assert_eq!(full.prefix.as_ref().unwrap().as_str(), "a/b");
        assert_eq!(full.endpoint.as_deref(), Some("http://127.0.0.1:9000"));
        assert_eq!((full.region.as_str(), full.path_style), ("eu-1", true));
        assert_eq!(bucket(&full.to_string()), full);
        let plain = bucket("s3://my-bucket?region=eu-central-1");
        assert_eq!((plain.prefix, plain.endpoint, plain.path_style), (None, None, false));
        assert_eq!(bucket("s3://my-bucket/?endpoint=https://s3.example.org/").region, "us-east-1");
        assert!(bucket("s3://my.bucket/?region=eu-1").path_style);
    }

    #[test]
    fn a_bad_one_is_told_what_is_expected_and_not_repeated() {
        for bad in [
            "",
            "file:",
            "file://host/path",
            "gs://bucket",
            "a\0b",
            "s3:bucket",
            "s3://",
            "s3://ab?region=eu-1",
            "s3://Bucket?region=eu-1",
            "s3://bucket",
            "s3://bucket/../x?region=eu-1",
            "s3://AKIAKEY:hunter2@bucket?region=eu-1",
            "s3://bucket?region=eu-1&secret_access_key=hunter2",
            "s3://bucket?endpoint=https://user:hunter2@host",
            "s3://bucket?endpoint=https://host/path",
            "s3://bucket?endpoint=ftp://host",
            "s3://bucket?endpoint=https://",
            "s3://bucket?region=eu-1&region=eu-2",
            "s3://bucket?region=eu-1&path_style=yes",
            "s3://bucket?region=eu-1&path_style",
        ] {
            let error = bad.parse::<Location>().unwrap_err();
            let text = format!("{error} {error:?}");
            assert!(text.contains("s3://BUCKET/PREFIX"), "{text}");
            assert!(!text.contains("hunter2") && !text.contains("AKIAKEY"), "{text}");
        }
    }
}
