//! TLS over a socket that somebody else reads and writes.

use std::fs::File;
use std::io::{self, BufReader, Read as _, Write as _};
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::socket::Socket;

/// What every connection of a load shares.
#[derive(Clone, Debug)]
pub(super) struct Tls {
    config: Arc<ClientConfig>,
    server: ServerName<'static>,
}

impl Tls {
    /// Trusts the certificates of a PEM file, or those that the system trusts (`SSL_CERT_FILE` and `SSL_CERT_DIR` are
    /// heeded).
    ///
    /// # Errors
    /// Says which file or name cannot be used, and why.
    pub(super) fn new(host: &str, ca_file: Option<&Path>) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        match ca_file {
            Some(path) => {
                let name = path.display();
                let file = File::open(path).map_err(|error| format!("cannot read {name}: {error}"))?;
                for certificate in CertificateDer::pem_reader_iter(BufReader::new(file)) {
                    let certificate = certificate.map_err(|error| format!("{name} is no PEM file: {error}"))?;
                    roots.add(certificate).map_err(|error| format!("a certificate of {name}: {error}"))?;
                }
                if roots.is_empty() {
                    return Err(format!("{name} holds no certificate"));
                }
            }
            None => {
                let found = rustls_native_certs::load_native_certs();
                roots.add_parsable_certificates(found.certs);
                if roots.is_empty() {
                    let why = found.errors.first().map(|error| format!(": {error}")).unwrap_or_default();
                    return Err(format!("this system has no certificates to trust{why}"));
                }
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let server = ServerName::try_from(host.to_owned()).map_err(|error| format!("host {host:?}: {error}"))?;
        Ok(Self { config: Arc::new(config), server })
    }

    /// # Errors
    /// When the configuration cannot serve this name.
    pub(super) fn session(&self) -> io::Result<Session> {
        let mut connection =
            ClientConnection::new(Arc::clone(&self.config), self.server.clone()).map_err(io::Error::other)?;
        // A long prompt waits here as a whole until it is sent.
        connection.set_buffer_limit(None);
        Ok(Session { connection, plain: Vec::new(), sealed: Vec::new(), sent: 0 })
    }
}

/// The TLS of one connection.
#[derive(Debug)]
pub(super) struct Session {
    connection: ClientConnection,
    plain: Vec<u8>,
    sealed: Vec<u8>,
    /// Bytes of `sealed` that the socket has taken.
    sent: usize,
}

impl Session {
    /// Takes bytes to send.
    ///
    /// # Errors
    /// When the session has failed.
    pub(super) fn seal(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.connection.writer().write_all(bytes)
    }

    /// Hands the socket what it takes, handshake included. Whether everything is out.
    ///
    /// # Errors
    /// When the socket fails.
    pub(super) fn flush(&mut self, socket: &Socket) -> io::Result<bool> {
        loop {
            while self.connection.wants_write() {
                self.connection.write_tls(&mut self.sealed)?;
            }
            if self.sent == self.sealed.len() {
                self.sealed.clear();
                self.sent = 0;
                // What waits for the handshake is still inside the session.
                return Ok(!self.connection.is_handshaking());
            }
            match socket.write(&self.sealed[self.sent..]) {
                Ok(written) => self.sent += written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether there is anything for the socket to take.
    pub(super) fn wants_write(&self) -> bool {
        self.connection.wants_write() || self.sent < self.sealed.len()
    }

    /// Opens what the socket has read and gives the plain bytes.
    ///
    /// # Errors
    /// When it is no TLS, or the peer's certificate is not trusted.
    pub(super) fn open(&mut self, mut bytes: &[u8]) -> io::Result<&[u8]> {
        self.plain.clear();
        while !bytes.is_empty() {
            self.connection.read_tls(&mut bytes)?;
            let state = self.connection.process_new_packets().map_err(io::Error::other)?;
            let before = self.plain.len();
            self.plain.resize(before + state.plaintext_bytes_to_read(), 0);
            self.connection.reader().read_exact(&mut self.plain[before..])?;
        }
        Ok(&self.plain)
    }
}
