//! TLS for both ends: who each of them is, and whom it trusts.
//!
//! A runner makes its own certificate and whoever dials it *pins* it: the certificate with this fingerprint and no other.
//! That needs no authority and no name, so neither can be lost or taken over. Where an installation has an authority, it
//! can be trusted instead. Either way the other end proves in the handshake that it holds the certificate's key.
//!
//! A pinned certificate is trusted for as long as the pin is: neither its names nor its dates are looked at. To revoke
//! one, take its pin away.
//!
//! TLS 1.3, nothing older: both ends are ours. No session is ever resumed: connections are long, and a resumed one would
//! skip the question whether the other end is still trusted.

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, OtherError,
    RootCertStore, ServerConfig, SignatureScheme, SupportedCipherSuite, SupportedProtocolVersion,
};
use std::fmt;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use thiserror::Error;

/// The ALPN name of HTTP/2.
pub const ALPN_HTTP_2: &[u8] = b"h2";
/// The ALPN name of HTTP/1.1.
pub const ALPN_HTTP_1: &[u8] = b"http/1.1";

/// The largest file of certificates or keys that is read, in bytes.
pub const PEM_FILE: u64 = 1 << 20;

/// What a fingerprint's text begins with.
const SHA256: &str = "sha256:";

static VERSIONS: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13];

/// Why TLS cannot be set up.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{path} cannot be read: {error}")]
    Read {
        /// Which.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// A file is too large to be what it should be.
    #[error("{0} has more than {PEM_FILE} bytes, the limit for a file of certificates or keys")]
    TooLarge(PathBuf),
    /// A file is not PEM.
    #[error("{path} is not PEM: {error}")]
    NotPem {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        error: pem::Error,
    },
    /// There is no certificate.
    #[error("{0} holds no certificate: a PEM section `CERTIFICATE` is expected")]
    NoCertificate(PathBuf),
    /// There is no key.
    #[error("{0} holds no private key: an unencrypted PEM section `PRIVATE KEY` is expected")]
    NoKey(PathBuf),
    /// Others may read or change a private key.
    #[error("{path} has mode {mode:04o}: others can read or change this private key; `chmod 600 {path}`")]
    OpenKey {
        /// Which.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// A certificate and a key cannot be used together.
    #[error("the certificate and the private key cannot be used: {0}")]
    Unusable(rustls::Error),
    /// A certificate cannot be an authority.
    #[error("certificate {number} of {path} cannot be an authority: {error}")]
    NoAuthority {
        /// In which file.
        path: PathBuf,
        /// Which, from 1.
        number: usize,
        /// What is wrong.
        error: rustls::Error,
    },
    /// A text that is no fingerprint.
    #[error("`{0}` is no fingerprint of a certificate; one is `sha256:` and 64 hexadecimal digits")]
    NotAFingerprint(String),
    /// Nobody is trusted.
    #[error("no pin and no authority is given, so no certificate could be trusted")]
    NobodyTrusted,
    /// The library refuses.
    #[error("TLS cannot be set up: {0}")]
    Setup(String),
}

/// The SHA-256 of a certificate's DER. As text: `sha256:` and 64 hexadecimal digits; colons between them, as `openssl x509
/// -fingerprint` writes them, are read too.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// That of a certificate.
    #[must_use]
    pub fn of(certificate: &CertificateDer<'_>) -> Fingerprint {
        // The hash of the library that is here anyway, which offers it as a part of a cipher suite.
        let SupportedCipherSuite::Tls13(suite) = ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
        let hash = suite.common.hash_provider;
        let mut bytes = [0; 32];
        for (byte, hashed) in bytes.iter_mut().zip(hash.hash(certificate).as_ref()) {
            *byte = *hashed;
        }
        Fingerprint(bytes)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SHA256)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Fingerprint {
    type Err = TlsError;

    fn from_str(text: &str) -> Result<Self, TlsError> {
        parse_fingerprint(text).ok_or_else(|| TlsError::NotAFingerprint(text.chars().take(100).collect()))
    }
}

fn parse_fingerprint(text: &str) -> Option<Fingerprint> {
    let digits: Vec<u8> = text
        .strip_prefix(SHA256)?
        .bytes()
        .filter(|byte| *byte != b':')
        .map(|byte| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
        .collect::<Option<_>>()?;
    if digits.len() != 64 {
        return None;
    }
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = pair[0] << 4 | pair[1];
    }
    Some(Fingerprint(bytes))
}

/// Whose certificates are trusted.
#[derive(Clone)]
pub enum Trust {
    /// These and no others.
    Pins(Vec<Fingerprint>),
    /// Those that one of these authorities signed, for the name that was dialled, within their dates.
    Authorities(Arc<RootCertStore>),
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trust::Pins(pins) => f.debug_tuple("Pins").field(pins).finish(),
            Trust::Authorities(roots) => f.debug_tuple("Authorities").field(&roots.len()).finish(),
        }
    }
}

impl Trust {
    /// Reads the certificates of authorities, PEM, at least one.
    ///
    /// # Errors
    /// [`TlsError`], which names the file.
    pub fn authorities_from_file(path: &Path) -> Result<Trust, TlsError> {
        let mut roots = RootCertStore::empty();
        for (index, certificate) in read_certificates(path)?.into_iter().enumerate() {
            roots.add(certificate).map_err(|error| TlsError::NoAuthority {
                path: path.to_owned(),
                number: index + 1,
                error,
            })?;
        }
        Ok(Trust::Authorities(Arc::new(roots)))
    }
}

/// What one end proves itself by: a certificate, those that link it to an authority, and its private key.
#[derive(Clone)]
pub struct Identity {
    certified: Arc<CertifiedKey>,
    fingerprint: Fingerprint,
}

impl fmt::Debug for Identity {
    // Never the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("fingerprint", &self.fingerprint).finish_non_exhaustive()
    }
}

impl Identity {
    /// Takes a certificate, followed by those that link it to an authority, and its key.
    ///
    /// # Errors
    /// [`TlsError::Unusable`], also where the key is not the certificate's.
    pub fn new(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<Identity, TlsError> {
        let Some(fingerprint) = chain.first().map(Fingerprint::of) else {
            return Err(TlsError::Unusable(rustls::Error::NoCertificatesPresented));
        };
        let certified =
            CertifiedKey::from_der(chain, key, &ring::default_provider()).map_err(TlsError::Unusable)?;
        Ok(Identity { certified: Arc::new(certified), fingerprint })
    }

    /// Reads both from PEM files. The key's file must be closed to all others but readers of its own group, whom some
    /// installations need.
    ///
    /// # Errors
    /// [`TlsError`], which names the file.
    pub fn from_files(chain: &Path, key: &Path) -> Result<Identity, TlsError> {
        let certificates = read_certificates(chain)?;
        let bytes = read(key, true)?;
        let private = PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| match error {
            pem::Error::NoItemsFound => TlsError::NoKey(key.to_owned()),
            error => TlsError::NotPem { path: key.to_owned(), error },
        })?;
        Identity::new(certificates, private)
    }

    /// The fingerprint of its certificate: what the other end pins.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}

fn read(path: &Path, is_key: bool) -> Result<Vec<u8>, TlsError> {
    let failed = |error| TlsError::Read { path: path.to_owned(), error };
    let file = std::fs::File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    let mode = metadata.mode() & 0o7777;
    if is_key && metadata.is_file() && mode & 0o027 != 0 {
        return Err(TlsError::OpenKey { path: path.to_owned(), mode });
    }
    let mut bytes = Vec::new();
    file.take(PEM_FILE + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > PEM_FILE {
        return Err(TlsError::TooLarge(path.to_owned()));
    }
    Ok(bytes)
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(&read(path, false)?)
        .collect::<Result<_, _>>()
        .map_err(|error| TlsError::NotPem { path: path.to_owned(), error })?;
    if certificates.is_empty() {
        return Err(TlsError::NoCertificate(path.to_owned()));
    }
    Ok(certificates)
}

/// What clients must prove.
#[derive(Debug, Clone)]
pub enum Clients {
    /// Nothing by certificate: tokens are to tell who calls.
    None,
    /// That they hold the key of a certificate that is trusted.
    Required(Trust),
}

/// The settings of the end that dials. Under pins any name may be given to the handshake, under authorities it must be the
/// host that was dialled.
///
/// # Errors
/// [`TlsError::NobodyTrusted`], [`TlsError::Setup`].
pub fn connector(trust: &Trust, identity: Option<&Identity>) -> Result<Arc<ClientConfig>, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(VERSIONS)
        .map_err(setup)?
        .dangerous()
        .with_custom_certificate_verifier(server_verifier(trust, &provider)?);
    let mut config = match identity {
        Some(identity) => builder
            .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(&identity.certified)))),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![ALPN_HTTP_2.to_vec(), ALPN_HTTP_1.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

fn server_verifier(
    trust: &Trust,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ServerCertVerifier>, TlsError> {
    match trust {
        Trust::Pins(pins) => Ok(Arc::new(Pinned::new(pins, provider)?)),
        Trust::Authorities(roots) => {
            let verifier =
                WebPkiServerVerifier::builder_with_provider(Arc::clone(roots), Arc::clone(provider)).build();
            Ok(verifier.map_err(setup)?)
        }
    }
}

/// The settings of the end that is dialled.
///
/// # Errors
/// [`TlsError::NobodyTrusted`], [`TlsError::Setup`].
pub fn acceptor(identity: &Identity, clients: &Clients) -> Result<Arc<ServerConfig>, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let verifier: Arc<dyn ClientCertVerifier> = match clients {
        Clients::None => WebPkiClientVerifier::no_client_auth(),
        Clients::Required(Trust::Pins(pins)) => Arc::new(Pinned::new(pins, &provider)?),
        Clients::Required(Trust::Authorities(roots)) => {
            WebPkiClientVerifier::builder_with_provider(Arc::clone(roots), Arc::clone(&provider))
                .build()
                .map_err(setup)?
        }
    };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(VERSIONS)
        .map_err(setup)?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(&identity.certified))));
    config.alpn_protocols = vec![ALPN_HTTP_2.to_vec(), ALPN_HTTP_1.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

fn setup(error: impl fmt::Display) -> TlsError {
    TlsError::Setup(error.to_string())
}

/// The other end's certificate is none of the pinned ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotPinned {
    /// The one it showed.
    pub seen: Fingerprint,
    /// Those it might have shown.
    pub pinned: Vec<Fingerprint>,
}

impl fmt::Display for NotPinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the other end's certificate is {}, which is not pinned; pinned is ", self.seen)?;
        for (index, pin) in self.pinned.iter().enumerate() {
            write!(f, "{}{pin}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl std::error::Error for NotPinned {}

/// The certificate that a handshake failed over, where it failed because it is not pinned.
#[must_use]
pub fn not_pinned(error: &io::Error) -> Option<&NotPinned> {
    match of_rustls(error)? {
        rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(other))) => {
            other.downcast_ref::<NotPinned>()
        }
        _ => None,
    }
}

/// Says what an error of a TLS stream means to a person; `ours` is what this end proved itself by, if by anything.
#[must_use]
pub fn explain(error: &io::Error, ours: Option<Fingerprint>) -> String {
    use AlertDescription as Alert;
    if let Some(not_pinned) = not_pinned(error) {
        return not_pinned.to_string();
    }
    match of_rustls(error) {
        Some(rustls::Error::InvalidMessage(_)) => {
            format!("what the other end sends is not TLS, or was damaged on its way ({error})")
        }
        Some(rustls::Error::NoCertificatesPresented) => "the other end shows no certificate".into(),
        Some(rustls::Error::AlertReceived(
            alert @ (Alert::CertificateRequired
            | Alert::BadCertificate
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied),
        )) => match ours {
            None => format!("the other end wants this end to show a certificate ({alert:?})"),
            Some(ours) => format!("the other end does not trust this end's certificate, {ours} ({alert:?})"),
        },
        Some(_) => error.to_string(),
        None if error.kind() == io::ErrorKind::UnexpectedEof => "the other end closed the connection".into(),
        None => error.to_string(),
    }
}

fn of_rustls(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// Trusts the pinned certificates; that the other end holds their keys is verified as for any certificate.
#[derive(Debug)]
struct Pinned {
    pins: Vec<Fingerprint>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Pinned {
    fn new(pins: &[Fingerprint], provider: &CryptoProvider) -> Result<Pinned, TlsError> {
        if pins.is_empty() {
            return Err(TlsError::NobodyTrusted);
        }
        Ok(Pinned { pins: pins.to_vec(), algorithms: provider.signature_verification_algorithms })
    }

    fn check(&self, certificate: &CertificateDer<'_>) -> Result<(), rustls::Error> {
        let seen = Fingerprint::of(certificate);
        if self.pins.contains(&seen) {
            return Ok(());
        }
        let why = NotPinned { seen, pinned: self.pins.clone() };
        Err(rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(why)))))
    }
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.check(end_entity).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

impl ClientCertVerifier for Pinned {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.check(end_entity).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    struct Made {
        certificate: CertificateDer<'static>,
        key: rcgen::KeyPair,
    }

    impl Made {
        fn new() -> Made {
            let key = rcgen::KeyPair::generate().unwrap();
            let params =
                rcgen::CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
            Made { certificate: params.self_signed(&key).unwrap().der().clone(), key }
        }

        fn key(&self) -> PrivateKeyDer<'static> {
            PrivateKeyDer::try_from(self.key.serialize_der()).unwrap()
        }

        fn identity(&self) -> Identity {
            Identity::new(vec![self.certificate.clone()], self.key()).unwrap()
        }

        fn pin(&self) -> Trust {
            Trust::Pins(vec![Fingerprint::of(&self.certificate)])
        }
    }

    /// An authority and a certificate that it signed.
    fn signed() -> (Trust, Identity) {
        let mut params = rcgen::CertificateParams::new([]).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let authority =
            rcgen::CertifiedIssuer::self_signed(params, rcgen::KeyPair::generate().unwrap()).unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &authority).unwrap().der().clone();
        let mut roots = RootCertStore::empty();
        roots.add(authority.der().clone()).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        (Trust::Authorities(Arc::new(roots)), Identity::new(vec![certificate], key).unwrap())
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { tokio::time::timeout(Duration::from_secs(20), future).await.unwrap() })
    }

    /// What each end makes of a connection over which the server sends its greeting and the client its own.
    async fn talk(
        client: Arc<ClientConfig>,
        server: Arc<ServerConfig>,
        name: &'static str,
    ) -> (io::Result<Option<Vec<u8>>>, io::Result<()>) {
        let (ours, theirs): (DuplexStream, DuplexStream) = tokio::io::duplex(1 << 16);
        let served = tokio::spawn(async move {
            let mut stream = TlsAcceptor::from(server).accept(theirs).await?;
            stream.write_all(b"hand").await?;
            let mut read = [0; 5];
            stream.read_exact(&mut read).await?;
            assert_eq!(&read, b"brain");
            Ok(())
        });
        let dialled = async {
            let name = ServerName::try_from(name).unwrap();
            let mut stream = TlsConnector::from(client).connect(name, ours).await?;
            stream.write_all(b"brain").await?;
            let mut read = [0; 4];
            stream.read_exact(&mut read).await?;
            assert_eq!(&read, b"hand");
            Ok(stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec))
        };
        let dialled = dialled.await;
        (dialled, served.await.unwrap())
    }

    fn check(
        client: Arc<ClientConfig>,
        server: Arc<ServerConfig>,
    ) -> (Result<(), String>, Result<(), String>) {
        let (dialled, served) = run(talk(client, server, "any.name"));
        let text = |error: io::Error| explain(&error, None);
        (dialled.map(drop).map_err(text), served.map_err(text))
    }

    #[test]
    fn the_pinned_certificate_is_trusted_under_any_name_and_http_2_is_chosen() {
        let hand = Made::new();
        let client = connector(&hand.pin(), None).unwrap();
        let server = acceptor(&hand.identity(), &Clients::None).unwrap();
        let (dialled, served) = run(talk(client, server, "other.example"));
        assert_eq!(dialled.unwrap().as_deref(), Some(ALPN_HTTP_2));
        served.unwrap();
    }

    #[test]
    fn a_certificate_that_is_not_pinned_is_refused_and_named() {
        let (hand, other) = (Made::new(), Made::new());
        let client = connector(&other.pin(), None).unwrap();
        let server = acceptor(&hand.identity(), &Clients::None).unwrap();
        let (dialled, served) = run(talk(client, server, "localhost"));
        let error = dialled.unwrap_err();
        let seen = Fingerprint::of(&hand.certificate);
        assert_eq!(not_pinned(&error).unwrap().seen, seen);
        assert!(explain(&error, None).contains(&seen.to_string()));
        // Whoever prints the error as it is has the fingerprint too.
        assert!(error.to_string().contains(&seen.to_string()), "{error}");
        served.unwrap_err();
    }

    #[test]
    fn a_pinned_certificate_without_its_key_is_worth_nothing() {
        let (hand, thief) = (Made::new(), Made::new());
        let provider = ring::default_provider();
        let stolen = Identity {
            certified: Arc::new(CertifiedKey::new(
                vec![hand.certificate.clone()],
                provider.key_provider.load_private_key(thief.key()).unwrap(),
            )),
            fingerprint: Fingerprint::of(&hand.certificate),
        };
        for version in VERSIONS {
            let client = only(version, connector(&hand.pin(), None).unwrap(), &hand.pin());
            let (dialled, served) = check(client, acceptor(&stolen, &Clients::None).unwrap());
            assert!(dialled.unwrap_err().contains("BadSignature"));
            served.unwrap_err();
        }
        // And the other way: a client that shows what it does not hold.
        let server = acceptor(&hand.identity(), &Clients::Required(hand.pin())).unwrap();
        let (_, served) = check(connector(&hand.pin(), Some(&stolen)).unwrap(), server);
        assert!(served.unwrap_err().contains("BadSignature"));
        assert!(matches!(
            Identity::new(vec![hand.certificate.clone()], thief.key()),
            Err(TlsError::Unusable(rustls::Error::InconsistentKeys(_)))
        ));
    }

    /// The same client speaking one version alone.
    fn only(
        version: &'static SupportedProtocolVersion,
        like: Arc<ClientConfig>,
        trust: &Trust,
    ) -> Arc<ClientConfig> {
        let provider = Arc::new(ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[version])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(server_verifier(trust, &provider).unwrap())
            .with_client_cert_resolver(Arc::clone(&like.client_auth_cert_resolver));
        config.alpn_protocols.clone_from(&like.alpn_protocols);
        Arc::new(config)
    }

    #[test]
    fn clients_must_show_the_certificate_that_is_wanted() {
        let (hand, brain, other) = (Made::new(), Made::new(), Made::new());
        let server = acceptor(&hand.identity(), &Clients::Required(brain.pin())).unwrap();
        for version in VERSIONS {
            let with = |identity: Option<&Identity>| {
                let client = only(version, connector(&hand.pin(), identity).unwrap(), &hand.pin());
                check(client, Arc::clone(&server))
            };
            assert_eq!(with(Some(&brain.identity())), (Ok(()), Ok(())));

            let (dialled, served) = with(None);
            assert_eq!(served, Err("the other end shows no certificate".to_owned()));
            dialled.unwrap_err();

            let (dialled, served) = with(Some(&other.identity()));
            assert!(served.unwrap_err().contains(&other.identity().fingerprint().to_string()));
            dialled.unwrap_err();
        }
        let (dialled, _) = run(talk(
            connector(&hand.pin(), Some(&other.identity())).unwrap(),
            Arc::clone(&server),
            "localhost",
        ));
        // The refused client is told which certificate it would have to have pinned there.
        let ours = other.identity().fingerprint();
        let told = explain(&dialled.unwrap_err(), Some(ours));
        assert!(told.contains("does not trust") && told.contains(&ours.to_string()), "{told}");
    }

    #[test]
    fn authorities_are_trusted_for_the_name_that_was_dialled() {
        let (trust, identity) = signed();
        let server = acceptor(&identity, &Clients::Required(trust.clone())).unwrap();
        let client = connector(&trust, Some(&identity)).unwrap();
        let (dialled, served) = run(talk(Arc::clone(&client), Arc::clone(&server), "localhost"));
        dialled.unwrap();
        served.unwrap();
        let (dialled, _) = run(talk(client, server, "other.example"));
        assert!(dialled.unwrap_err().to_string().contains("not valid for name"));
        let (stranger, _) = signed();
        let server = acceptor(&identity, &Clients::None).unwrap();
        let (dialled, _) = run(talk(connector(&stranger, None).unwrap(), server, "localhost"));
        let error = dialled.unwrap_err();
        assert!(matches!(of_rustls(&error), Some(rustls::Error::InvalidCertificate(_))), "{error}");
    }

    #[test]
    fn trusting_nobody_is_no_setting() {
        let hand = Made::new();
        let nobody = [Trust::Pins(Vec::new()), Trust::Authorities(Arc::new(RootCertStore::empty()))];
        for trust in nobody {
            connector(&trust, None).unwrap_err();
            acceptor(&hand.identity(), &Clients::Required(trust)).unwrap_err();
        }
    }

    /// A hello of TLS 1.1 without any newer version in it.
    fn hello_of_tls_1_1() -> Vec<u8> {
        let mut hello = vec![0x03, 0x02];
        hello.extend([7; 32]);
        // No session; two suites, one of them of TLS 1.1's time; no compression; how it signs, so that nothing but its
        // version is amiss.
        hello.extend([0, 0, 4, 0xc0, 0x2f, 0xc0, 0x13, 1, 0, 0, 8, 0, 13, 0, 4, 0, 2, 4, 3]);
        let length = |length: usize| u16::try_from(length).unwrap().to_be_bytes();
        let handshake = [&[1, 0][..], &length(hello.len()), &hello].concat();
        [&[0x16, 0x03, 0x01][..], &length(handshake.len()), &handshake].concat()
    }

    #[test]
    fn older_versions_and_plain_text_get_an_error_and_no_hang() {
        let hand = Made::new();
        let server = acceptor(&hand.identity(), &Clients::None).unwrap();
        let versions: Vec<u16> = VERSIONS.iter().map(|version| version.version.into()).collect();
        assert_eq!(versions, [0x0304]);
        let plain = b"GET /hello HTTP/1.1\r\nhost: hand\r\n\r\n".to_vec();
        for (sent, expected) in [(hello_of_tls_1_1(), "Tls12NotOffered"), (plain, "is not TLS")] {
            let served = run(async {
                let (mut ours, theirs) = tokio::io::duplex(1 << 16);
                ours.write_all(&sent).await.unwrap();
                TlsAcceptor::from(Arc::clone(&server)).accept(theirs).await.map(drop)
            });
            let told = explain(&served.unwrap_err(), None);
            assert!(told.contains(expected), "{told}");
        }
        // And a client whose other end is no TLS server.
        let dialled = run(async {
            let (ours, mut theirs) = tokio::io::duplex(1 << 16);
            theirs.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
            let client = TlsConnector::from(connector(&hand.pin(), None).unwrap());
            client.connect(ServerName::try_from("localhost").unwrap(), ours).await.map(drop)
        });
        assert!(explain(&dialled.unwrap_err(), None).contains("is not TLS"));
    }

    #[test]
    fn fingerprints_are_read_and_written() {
        let certificate = CertificateDer::from(b"abc".to_vec());
        let text = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let fingerprint = Fingerprint::of(&certificate);
        assert_eq!(fingerprint.to_string(), text);
        assert_eq!(text.parse::<Fingerprint>().unwrap(), fingerprint);
        let pairs: Vec<&str> =
            text.as_bytes()[7..].chunks(2).map(|pair| std::str::from_utf8(pair).unwrap()).collect();
        let of_openssl = format!("sha256:{}", pairs.join(":").to_uppercase());
        assert_eq!(of_openssl.parse::<Fingerprint>().unwrap(), fingerprint);
        for wrong in ["", &text[7..], &text[..70], &format!("{text}0"), &text.replace("ba", "xa"), "sha1:ab"]
        {
            let error = wrong.parse::<Fingerprint>().unwrap_err();
            assert!(matches!(error, TlsError::NotAFingerprint(_)), "{wrong}");
        }
    }

    #[test]
    fn files_are_read_and_errors_name_them() {
        let folder = tempfile::tempdir().unwrap();
        let (chain, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
        let made = Made::new();
        let params = rcgen::CertificateParams::new([]).unwrap();
        let certificate_pem = params.self_signed(&made.key).unwrap().pem();
        let named = |error: TlsError, path: &Path| {
            assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
            error
        };
        let read = || Identity::from_files(&chain, &key);
        assert!(matches!(named(read().unwrap_err(), &chain), TlsError::Read { .. }));
        std::fs::write(&chain, "nothing here").unwrap();
        assert!(matches!(named(read().unwrap_err(), &chain), TlsError::NoCertificate(_)));
        std::fs::write(&chain, &certificate_pem).unwrap();
        std::fs::write(&key, made.key.serialize_pem()).unwrap();
        for (mode, good) in [(0o644, false), (0o620, false), (0o604, false), (0o640, true), (0o600, true)] {
            std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode)).unwrap();
            match read() {
                Ok(_) => assert!(good, "{mode:o}"),
                Err(error) => {
                    assert!(!good && matches!(named(error, &key), TlsError::OpenKey { .. }), "{mode:o}")
                }
            }
        }
        let debugged = format!("{:?}", read().unwrap());
        assert!(debugged.contains("sha256:") && !debugged.contains("key"), "{debugged}");
        assert!(matches!(Trust::authorities_from_file(&chain).unwrap(), Trust::Authorities(_)));
        assert!(matches!(
            named(Trust::authorities_from_file(&key).unwrap_err(), &key),
            TlsError::NoCertificate(_)
        ));
        std::fs::write(&key, &certificate_pem).unwrap();
        assert!(matches!(named(read().unwrap_err(), &key), TlsError::NoKey(_)));
        std::fs::File::create(&key).unwrap().set_len(PEM_FILE + 1).unwrap();
        assert!(matches!(named(read().unwrap_err(), &key), TlsError::TooLarge(_)));
    }
}
