//! TLS for clients of other machines.
//!
//! | module | what it holds |
//! |---|---|
//! | here | the server's certificate, and which clients it trusts: [`Tls`] |
//! | `stream` | a connection that becomes encrypted when the client asks for it |

mod stream;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::version::TLS13;
use rustls::{RootCertStore, ServerConfig};

pub(super) use stream::TlsSocket;

/// Names of the files, as qemu, nbdkit and libnbd have them.
const AUTHORITY: &str = "ca-cert.pem";
const CERTIFICATE: &str = "server-cert.pem";
const KEY: &str = "server-key.pem";

/// Which clients a server with TLS serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clients {
    /// Those that have a certificate which the authority (`ca-cert.pem`) has signed.
    Certified,
    /// All that can connect.
    Any,
}

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read as certificates, or as a key.
    #[error("cannot read {} from {}: {source}", what, path.display())]
    File {
        /// What should be in it.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: pem::Error,
    },
    /// A file has no certificate.
    #[error("{} has no certificate in PEM (-----BEGIN CERTIFICATE-----)", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// A certificate cannot be an authority's.
    #[error("cannot trust clients by {}: {source}", path.display())]
    Authority {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The certificate and the key do not belong together.
    #[error("cannot use {CERTIFICATE} with {KEY} in {}: {source}", folder.display())]
    Pair {
        /// The folder.
        folder: PathBuf,
        /// Why.
        source: rustls::Error,
    },
}

/// What a server needs for TLS 1.3: its certificate and key, and which clients it trusts.
#[derive(Clone)]
pub struct Tls(Arc<ServerConfig>);

impl Tls {
    /// Reads `server-cert.pem` and `server-key.pem` in the folder, and `ca-cert.pem` where
    /// clients need a certificate.
    ///
    /// # Errors
    /// When one of them cannot be read, or they do not belong together.
    pub fn from_folder(folder: &Path, clients: Clients) -> Result<Tls, TlsError> {
        let provider = Arc::new(default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(|source| TlsError::Pair { folder: folder.into(), source })?;
        let builder = match clients {
            Clients::Any => builder.with_no_client_auth(),
            Clients::Certified => {
                let path = folder.join(AUTHORITY);
                let verifier = verifier(certificates(&path)?, provider)
                    .map_err(|source| TlsError::Authority { path, source })?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let path = folder.join(KEY);
        let key = PrivateKeyDer::from_pem_file(&path).map_err(|source| TlsError::File {
            what: "the server's private key",
            path,
            source,
        })?;
        let mut config = builder
            .with_single_cert(certificates(&folder.join(CERTIFICATE))?, key)
            .map_err(|source| TlsError::Pair { folder: folder.into(), source })?;
        // Clients connect once and stay: no session is taken up again.
        config.send_tls13_tickets = 0;
        Ok(Tls(Arc::new(config)))
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key stays where it is.
        to.write_str("Tls")
    }
}

fn verifier(
    authorities: Vec<CertificateDer<'static>>,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, Box<dyn std::error::Error + Send + Sync>> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority)?;
    }
    Ok(WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build()?)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let what = "certificates";
    let all = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|source| TlsError::File { what, path: path.into(), source });
    match all {
        Ok(all) if Vec::is_empty(&all) => Err(TlsError::Empty { path: path.into() }),
        all => all,
    }
}
