//! A TLS tunnel to our own launch, for the requests of readiness and telemetry, whose HTTP client has no TLS. Measured
//! requests do not use it: the load generator has TLS of its own.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;

use super::HOST;

/// A verifier that accepts every certificate. The certificate of a launch contains the name of its later deployment and
/// is often self-signed. The server's identity is verified differently: the listening socket belongs to a process of
/// the launch.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Returns the TLS configuration of a client that accepts every certificate. It is only for servers that this process
/// has started.
///
/// # Errors
/// If the cryptographic library supports no protocol version.
pub fn own_server_tls() -> Result<ClientConfig, Error> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
    let verifier = Arc::new(AnyCertificate(provider));
    Ok(builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
}

/// A local port that forwards to the port of a TLS server.
#[derive(Debug)]
pub(super) struct TlsTunnel {
    pub(super) port: u16,
    task: tokio::task::JoinHandle<()>,
}

impl TlsTunnel {
    /// Starts to forward to the port `server` of [`HOST`]. To be called within a Tokio runtime.
    ///
    /// # Errors
    /// If no local port can be bound.
    pub(super) fn start(server: u16) -> std::io::Result<Self> {
        let connector = TlsConnector::from(Arc::new(own_server_tls().map_err(std::io::Error::other)?));
        let listener = std::net::TcpListener::bind((HOST, 0))?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let listener = TcpListener::from_std(listener)?;
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, connector.clone(), server));
            }
        });
        Ok(Self { port, task })
    }
}

impl Drop for TlsTunnel {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Forwards one connection. It closes if the server does not answer or does not speak TLS.
async fn carry(mut client: TcpStream, connector: TlsConnector, server: u16) -> std::io::Result<()> {
    let plain = TcpStream::connect((HOST, server)).await?;
    let name = ServerName::try_from(HOST).map_err(std::io::Error::other)?;
    let mut sealed = connector.connect(name, plain).await?;
    tokio::io::copy_bidirectional(&mut client, &mut sealed).await?;
    Ok(())
}
