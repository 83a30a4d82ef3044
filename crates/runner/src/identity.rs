//! The runner's own certificate, which it makes once and keeps in its home.
//!
//! Whoever dials it pins the certificate, so a new one would lock everybody out: it is made once, for
//! [`VALID_FOR`], and a home that is copied takes it along. Certificate and key are prepared in a folder aside, which is
//! then renamed to `tls`: two processes that start at once end with one pair, and the two files always belong together.

use outlast_hand::files;
use outlast_hand::home::fill_random;
use outlast_wire::tls::{Fingerprint, Identity, TlsError};
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose,
};
use rustix::fs::{AtFlags, Mode};
use std::fmt::Write;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use thiserror::Error;

/// The folder in the home.
pub const FOLDER: &str = "tls";
/// The certificate in it, PEM.
pub const CERTIFICATE: &str = "cert.pem";
/// Its private key, PEM.
pub const KEY: &str = "key.pem";

/// How long the certificate is valid: ten years of 365.25 days. Pins look at no date; other tools may.
pub const VALID_FOR: Duration = Duration::from_secs(10 * 365 * 86_400 + 10 * 86_400 / 4);

/// How far a clock may be behind this one and still find the certificate valid.
const CLOCKS_DIFFER: Duration = Duration::from_secs(86_400);

/// The latest second that a certificate's dates are counted from, in the year 2200: a clock beyond it is wrong.
const LATEST: Duration = Duration::from_secs(7_258_118_400);

/// Why the runner has no certificate.
#[derive(Debug, Error)]
pub enum IdentityError {
    /// The one that is there cannot be used.
    #[error(
        "this runner's own certificate cannot be used: {error}; remove the folder {folder} to have a new one made, \
         which whoever pinned the old one must then pin"
    )]
    Unusable {
        /// The folder it lies in.
        folder: PathBuf,
        /// What is wrong.
        error: TlsError,
    },
    /// It cannot be made.
    #[error("no certificate can be made for this runner: {0}")]
    Make(rcgen::Error),
    /// It cannot be kept.
    #[error("this runner's certificate cannot be kept in {folder}: {error}")]
    Keep {
        /// The folder.
        folder: PathBuf,
        /// What the system says.
        error: io::Error,
    },
}

/// Reads the certificate and key of the home `dir`, and makes them first where there are none. A certificate that is there
/// is kept whatever its names; `names`, host names and addresses, are for a new one.
///
/// # Errors
/// [`IdentityError`].
pub fn load_or_make(dir: &Path, names: &[String]) -> Result<(Identity, Fingerprint), IdentityError> {
    let folder = dir.join(FOLDER);
    let failed = |error| IdentityError::Keep { folder: folder.clone(), error };
    let home = files::open_dir(dir).map_err(failed)?;
    match rustix::fs::statat(&home, FOLDER, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => {}
        Err(rustix::io::Errno::NOENT) => {
            let (certificate, key) = make(names).map_err(IdentityError::Make)?;
            keep(home.as_fd(), &certificate, &key).map_err(failed)?;
        }
        Err(errno) => return Err(failed(errno.into())),
    }
    let identity = Identity::from_files(&folder.join(CERTIFICATE), &folder.join(KEY))
        .map_err(|error| IdentityError::Unusable { folder: folder.clone(), error })?;
    let fingerprint = identity.fingerprint();
    Ok((identity, fingerprint))
}

/// A certificate that signs itself, and its key; both PEM.
fn make(names: &[String]) -> Result<(String, String), rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "outlast hand");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    // Also what it proves itself by where it dials.
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().min(LATEST);
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + now.saturating_sub(CLOCKS_DIFFER);
    params.not_after = epoch + (now + VALID_FOR);
    Ok((params.self_signed(&key)?.pem(), key.serialize_pem()))
}

/// Keeps a pair unless another process was first; then there is that one's.
fn keep(home: BorrowedFd<'_>, certificate: &str, key: &str) -> io::Result<()> {
    let mut random = [0; 8];
    fill_random(&mut random)?;
    let mut aside = format!("{FOLDER}.");
    for byte in random {
        // Writing into a text cannot fail.
        let _ = write!(aside, "{byte:02x}");
    }
    aside.push_str(".new");
    rustix::fs::mkdirat(home, aside.as_str(), Mode::RWXU)?;
    let kept = write_pair(home, &aside, certificate, key).and_then(|()| {
        files::rename_new(home, &aside, home, FOLDER)?;
        Ok(rustix::fs::fsync(home)?)
    });
    let Err(error) = kept else { return Ok(()) };
    remove(home, &aside);
    if error.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(error) }
}

fn write_pair(home: BorrowedFd<'_>, aside: &str, certificate: &str, key: &str) -> io::Result<()> {
    let folder = files::open_subdir(home, aside)?;
    files::create_new(folder.as_fd(), KEY, key.as_bytes())?.sync_all()?;
    files::create_new(folder.as_fd(), CERTIFICATE, certificate.as_bytes())?.sync_all()?;
    Ok(rustix::fs::fsync(&folder)?)
}

/// Removes what was prepared aside, as far as it is there.
fn remove(home: BorrowedFd<'_>, aside: &str) {
    if let Ok(folder) = files::open_subdir(home, aside) {
        for name in [KEY, CERTIFICATE] {
            let _ = rustix::fs::unlinkat(&folder, name, AtFlags::empty());
        }
        let _ = rustix::fs::unlinkat(home, aside, AtFlags::REMOVEDIR);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outlast_wire::tls::{Clients, Trust, acceptor, connector};
    use std::os::unix::fs::PermissionsExt;
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    fn names() -> Vec<String> {
        vec!["localhost".into(), "127.0.0.1".into(), "::1".into()]
    }

    #[test]
    fn it_is_made_once_and_closed_to_others() {
        let home = tempfile::tempdir().unwrap();
        let (_, made) = load_or_make(home.path(), &names()).unwrap();
        let (_, again) = load_or_make(home.path(), &["other.example".into()]).unwrap();
        assert_eq!(made, again);
        let mode =
            |path: &str| std::fs::metadata(home.path().join(path)).unwrap().permissions().mode() & 0o777;
        assert_eq!([mode("tls"), mode("tls/key.pem"), mode("tls/cert.pem")], [0o700, 0o600, 0o600]);
        let other = tempfile::tempdir().unwrap();
        assert_ne!(load_or_make(other.path(), &names()).unwrap().1, made);
    }

    #[test]
    fn of_those_that_make_it_at_once_one_wins_and_all_use_its_pair() {
        for _ in 0..10 {
            let home = tempfile::tempdir().unwrap();
            let start = std::sync::Barrier::new(8);
            let made: Vec<Fingerprint> = std::thread::scope(|scope| {
                let make = || {
                    start.wait();
                    load_or_make(home.path(), &names()).unwrap().1
                };
                let threads: Vec<_> = (0..8).map(|_| scope.spawn(make)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert!(made.iter().all(|fingerprint| *fingerprint == made[0]));
            let left: Vec<_> =
                std::fs::read_dir(home.path()).unwrap().flatten().map(|e| e.file_name()).collect();
            assert_eq!(left, [FOLDER]);
        }
    }

    #[test]
    fn one_that_cannot_be_used_is_kept_and_named() {
        let home = tempfile::tempdir().unwrap();
        load_or_make(home.path(), &names()).unwrap();
        let key = home.path().join("tls/key.pem");
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
        let error = load_or_make(home.path(), &names()).unwrap_err().to_string();
        assert!(error.contains("key.pem") && error.contains("chmod 600"), "{error}");
        std::fs::remove_file(&key).unwrap();
        let error = load_or_make(home.path(), &names()).unwrap_err().to_string();
        assert!(error.contains("key.pem") && error.contains("remove the folder"), "{error}");
        assert!(!key.exists());
        let missing = load_or_make(&home.path().join("none"), &names()).unwrap_err();
        assert!(matches!(missing, IdentityError::Keep { .. }));
    }

    #[test]
    fn both_ends_can_prove_themselves_by_it() {
        let home = tempfile::tempdir().unwrap();
        let (identity, fingerprint) = load_or_make(home.path(), &names()).unwrap();
        let trust = Trust::Pins(vec![fingerprint]);
        let server = acceptor(&identity, &Clients::Required(trust.clone())).unwrap();
        let client = connector(&trust, Some(&identity)).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (ours, theirs) = tokio::io::duplex(1 << 16);
            let name = "localhost".try_into().unwrap();
            let served = TlsAcceptor::from(server).accept(theirs);
            let (dialled, served) = tokio::join!(TlsConnector::from(client).connect(name, ours), served);
            dialled.unwrap();
            served.unwrap();
        });
    }
}
