//! TLS in front of the web server (`--ssl-certfile` and `--ssl-keyfile`). The web server itself listens on another
//! port.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::config::Config;

/// The time limit of a TLS handshake, after which the connection is closed.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

/// Reads the TLS configuration from the flags. As in uvicorn, either file enables TLS, and the certificate's file may
/// contain the key.
///
/// # Errors
/// If a file cannot be read or contains no certificate or key.
pub(super) fn acceptor(config: &Config) -> io::Result<Option<TlsAcceptor>> {
    let (certificates, key) = (config.get_str("ssl-certfile"), config.get_str("ssl-keyfile"));
    let Some(file) = certificates.or(key) else { return Ok(None) };
    let failed = |file: &str, problem: String| io::Error::other(format!("{file}: {problem}"));
    let read = CertificateDer::pem_file_iter(Path::new(file)).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = read.map_err(|error| failed(file, error.to_string()))?;
    let key_file = key.unwrap_or(file);
    let key = PrivateKeyDer::from_pem_file(Path::new(key_file)).map_err(|error| failed(key_file, error.to_string()))?;
    let server = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(io::Error::other)?;
    Ok(Some(TlsAcceptor::from(Arc::new(server))))
}

/// The handle of the forwarding task, which ends when this is dropped.
pub(super) struct TlsForwarder(pub(super) tokio::task::JoinHandle<()>);

impl Drop for TlsForwarder {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Forwards every connection of `outside` to the web server at `inside`.
pub(super) async fn forward_connections(acceptor: TlsAcceptor, outside: TcpListener, inside: SocketAddr) {
    while let Ok((socket, _)) = outside.accept().await {
        let acceptor = acceptor.clone();
        tokio::spawn(async move {
            let _ = socket.set_nodelay(true);
            let Ok(Ok(mut sealed)) = tokio::time::timeout(HANDSHAKE_LIMIT, acceptor.accept(socket)).await else {
                return;
            };
            let Ok(mut plain) = TcpStream::connect(inside).await else { return };
            let _ = plain.set_nodelay(true);
            // If either side closes, the other side is closed as well.
            let _ = tokio::io::copy_bidirectional(&mut sealed, &mut plain).await;
        });
    }
}
