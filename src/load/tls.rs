//! TLS sessions on non-blocking sockets.

use std::fs::File;
use std::io::{self, BufReader, Read as _, Write as _};
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::socket::LoadSocket;
use crate::server::own_server_tls;

/// TLS configuration that all connections of a load share.
#[derive(Clone, Debug)]
pub(super) struct TlsSettings {
    config: Arc<ClientConfig>,
    server: ServerName<'static>,
}

impl TlsSettings {
    /// Creates a configuration that trusts the certificates of a PEM file, or those of the system (`SSL_CERT_FILE` and
    /// `SSL_CERT_DIR` apply).
    ///
    /// # Errors
    /// The file or name that cannot be used, with the reason.
    pub(super) fn new(host: &str, ca_file: Option<&Path>) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        if let Some(path) = ca_file {
            let name = path.display();
            let file = File::open(path).map_err(|error| format!("cannot read {name}: {error}"))?;
            for certificate in CertificateDer::pem_reader_iter(BufReader::new(file)) {
                let certificate = certificate.map_err(|error| format!("{name} is not a PEM file: {error}"))?;
                roots.add(certificate).map_err(|error| format!("invalid certificate in {name}: {error}"))?;
            }
            if roots.is_empty() {
                return Err(format!("{name} contains no certificate"));
            }
        } else {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            if roots.is_empty() {
                let why = found.errors.first().map(|error| format!(": {error}")).unwrap_or_default();
                return Err(format!("this system has no trusted certificates{why}"));
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let server =
            ServerName::try_from(host.to_owned()).map_err(|error| format!("host name {host:?} is invalid: {error}"))?;
        Ok(Self { config: Arc::new(config), server })
    }

    /// Creates a configuration for a server that this process has launched. It accepts every certificate.
    ///
    /// # Errors
    /// The name that cannot be used, with the reason.
    pub(super) fn of_own_server(host: &str) -> Result<Self, String> {
        let config = own_server_tls().map_err(|error| error.to_string())?;
        let server =
            ServerName::try_from(host.to_owned()).map_err(|error| format!("host name {host:?} is invalid: {error}"))?;
        Ok(Self { config: Arc::new(config), server })
    }

    /// # Errors
    /// If the configuration cannot be used for this name.
    pub(super) fn session(&self) -> io::Result<TlsSession> {
        let mut connection =
            ClientConnection::new(Arc::clone(&self.config), self.server.clone()).map_err(io::Error::other)?;
        // The session buffers a long prompt as a whole until it is sent.
        connection.set_buffer_limit(None);
        Ok(TlsSession { connection, plain: Vec::new(), sealed: Vec::new(), sent: 0, over: false })
    }
}

/// TLS session of one connection.
#[derive(Debug)]
pub(super) struct TlsSession {
    connection: ClientConnection,
    /// Decrypted bytes of the last read.
    plain: Vec<u8>,
    /// Encrypted bytes to send.
    sealed: Vec<u8>,
    /// Bytes of `sealed` that the socket has taken.
    sent: usize,
    /// Whether the server has ended the session. It may keep the connection open until the client closes it.
    over: bool,
}

impl TlsSession {
    /// Accepts plain bytes to encrypt and send.
    ///
    /// # Errors
    /// If the session has failed.
    pub(super) fn seal(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.connection.writer().write_all(bytes)
    }

    /// Writes as much as the socket takes, including the handshake. Returns whether everything is sent.
    ///
    /// # Errors
    /// If the socket fails.
    pub(super) fn flush(&mut self, socket: &LoadSocket) -> io::Result<bool> {
        loop {
            while self.connection.wants_write() {
                self.connection.write_tls(&mut self.sealed)?;
            }
            if self.sent == self.sealed.len() {
                self.sealed.clear();
                self.sent = 0;
                // During the handshake, plain bytes still wait inside the session.
                return Ok(!self.connection.is_handshaking());
            }
            match socket.write(&self.sealed[self.sent..]) {
                Ok(written) => self.sent += written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns whether the handshake is over.
    pub(super) fn is_ready(&self) -> bool {
        !self.connection.is_handshaking()
    }

    /// Returns whether the server has ended the session.
    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    /// Returns whether there are bytes to write to the socket.
    pub(super) fn wants_write(&self) -> bool {
        self.connection.wants_write() || self.sent < self.sealed.len()
    }

    /// Decrypts bytes that were read from the socket. Returns the plain bytes, and whether the server has ended the
    /// session. Bytes after its end are ignored.
    ///
    /// # Errors
    /// If the bytes are no TLS, or the peer's certificate is not trusted.
    pub(super) fn open(&mut self, mut bytes: &[u8]) -> io::Result<(&[u8], bool)> {
        self.plain.clear();
        // A session that is over accepts no more bytes.
        while !bytes.is_empty() && !self.over {
            self.connection.read_tls(&mut bytes)?;
            let state = self.connection.process_new_packets().map_err(io::Error::other)?;
            let before = self.plain.len();
            self.plain.resize(before + state.plaintext_bytes_to_read(), 0);
            self.connection.reader().read_exact(&mut self.plain[before..])?;
            self.over = state.peer_has_closed();
        }
        Ok((&self.plain, self.over))
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::Duration;

    use rustls::pki_types::PrivateKeyDer;
    use rustls::{ServerConfig, ServerConnection, StreamOwned};
    use tokio::sync::watch;

    use super::*;
    use crate::load::{LoadPlan, LoadRun, LoadTarget, RequestError, RunFlow, drive};
    use crate::workload::RandomWorkload;

    /// More than a packet needs on this machine.
    const SOON: Duration = Duration::from_millis(25);

    const HEAD: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    const EVENTS: [&str; 4] = [
        "data: {\"choices\":[{\"text\":\"a\",\"finish_reason\":null}]}\n\n",
        "data: {\"choices\":[{\"text\":\"b\",\"finish_reason\":\"length\"}]}\n\n",
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":50000,\"completion_tokens\":2}}\n\n",
        "data: [DONE]\n\n",
    ];

    type Stream = StreamOwned<ServerConnection, std::net::TcpStream>;

    /// Starts a server with its own certificate for `localhost`. Returns its port and the certificate's file.
    fn serve() -> (u16, tempfile::NamedTempFile) {
        serve_with(|mut stream| while answer(&mut stream).is_ok() {})
    }

    fn serve_with(serve: impl Fn(Stream) + Clone + Send + 'static) -> (u16, tempfile::NamedTempFile) {
        let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(own.cert.pem().as_bytes()).unwrap();
        let key = PrivateKeyDer::try_from(own.signing_key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![own.cert.der().clone()], key)
            .unwrap();
        let config = Arc::new(config);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
                let (stream, serve) = (StreamOwned::new(connection, stream.unwrap()), serve.clone());
                std::thread::spawn(move || serve(stream));
            }
        });
        (port, file)
    }

    /// Reads one request and answers it.
    fn answer<S: io::Read + io::Write>(stream: &mut S) -> io::Result<()> {
        take(stream)?;
        stream.write_all(HEAD.as_bytes())?;
        for event in EVENTS {
            stream.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes())?;
            stream.flush()?;
        }
        stream.write_all(b"0\r\n\r\n")
    }

    /// Reads one request.
    fn take<S: io::Read + io::Write>(stream: &mut S) -> io::Result<()> {
        let mut request = Vec::new();
        let mut piece = [0; 4096];
        // The body's closing brace is the only one after a bracket: requests are not pipelined.
        while !request.ends_with(b"]}") {
            let read = stream.read(&mut piece)?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            request.extend_from_slice(&piece[..read]);
        }
        Ok(())
    }

    async fn load(host: &str, port: u16, ca_file: Option<&Path>) -> LoadRun {
        let mut target = LoadTarget::new(format!("https://{host}:{port}"), "m");
        target.ca_file = ca_file.map(Path::to_owned);
        // The prompts are longer than a session and a socket take at once.
        drive_with(target, LoadPlan::closed(2, 6), 50_000).await
    }

    async fn drive_with(target: LoadTarget, plan: LoadPlan, input_len: u32) -> LoadRun {
        let workload = Arc::new(RandomWorkload { input_len, output_len: 2, vocab_size: 32_000, seed: 0 });
        let (_stop, stop) = watch::channel(false);
        drive(target, workload, plan, |_| RunFlow::Continue, stop).await.unwrap()
    }

    /// Sends a body that ends with the session, and leaves the connection open.
    fn end_the_session(mut stream: Stream, behind: &[u8]) {
        let Ok(()) = take(&mut stream) else { return };
        let body = r#"{"choices":[{"text":"a b","finish_reason":"length"}],"usage":{"prompt_tokens":10,"completion_tokens":2}}"#;
        stream.write_all(format!("HTTP/1.1 200 OK\r\n\r\n{body}").as_bytes()).unwrap();
        stream.conn.send_close_notify();
        stream.flush().unwrap();
        std::thread::sleep(SOON);
        let _ = stream.sock.write_all(behind);
        // Waits until the client has closed the connection.
        let _ = stream.sock.read_to_end(&mut Vec::new());
    }

    #[tokio::test]
    async fn a_session_that_the_server_ends_is_the_end_of_the_stream_whatever_follows() {
        for behind in [&b""[..], b"bytes that belong to no session"] {
            let (port, file) = serve_with(move |stream| end_the_session(stream, behind));
            let mut target = LoadTarget::new(format!("https://localhost:{port}"), "m");
            (target.stream, target.ca_file) = (false, Some(file.path().to_owned()));
            let plan = LoadPlan { request_timeout: 200 * SOON, ..LoadPlan::closed(2, 6) };
            let run = drive_with(target, plan, 10).await;
            let results: Vec<_> = run.records.iter().map(|record| &record.result).collect();
            assert_eq!(results, [&Ok(()); 6]);
        }
    }

    #[tokio::test]
    async fn a_session_that_breaks_in_a_reply_is_a_lost_connection_and_no_failure_to_connect() {
        let (port, file) = serve_with(|mut stream| {
            let Ok(()) = take(&mut stream) else { return };
            stream.write_all(HEAD.as_bytes()).unwrap();
            stream.flush().unwrap();
            std::thread::sleep(SOON);
            stream.sock.write_all(&[0; 100]).unwrap();
            let _ = stream.sock.read_to_end(&mut Vec::new());
        });
        let run = load("localhost", port, Some(file.path())).await;
        assert!(
            run.records.iter().all(|record| matches!(record.result, Err(RequestError::Reset(_)))),
            "{:?}",
            run.records
        );
    }

    #[tokio::test]
    async fn handshakes_are_over_before_the_first_request() {
        let pause = 10 * SOON;
        let (port, file) = serve_with(move |mut stream| {
            std::thread::sleep(pause);
            while answer(&mut stream).is_ok() {}
        });
        let mut target = LoadTarget::new(format!("https://localhost:{port}"), "m");
        target.ca_file = Some(file.path().to_owned());
        let run = drive_with(target, LoadPlan::closed(2, 6), 10).await;
        for record in &run.records {
            assert!(record.result.is_ok() && record.ttft().is_some_and(|ttft| ttft < pause / 2), "{record:?}");
        }
    }

    #[tokio::test]
    async fn requests_to_an_untrusted_server_are_slowed_down() {
        let ((port, _), (_, other)) = (serve(), serve());
        let mut target = LoadTarget::new(format!("https://localhost:{port}"), "m");
        target.ca_file = Some(other.path().to_owned());
        let run = drive_with(target, LoadPlan::closed(1, 5), 10).await;
        let paced = run.records.windows(2).all(|pair| pair[1].sent >= pair[0].end + Duration::from_millis(9));
        assert!(paced && run.records.len() == 5, "{:?}", run.records);
    }

    #[tokio::test]
    async fn long_prompts_and_kept_connections_work_over_tls() {
        let (port, file) = serve();
        let run = load("localhost", port, Some(file.path())).await;
        for record in &run.records {
            assert_eq!((&record.result, record.output_tokens, record.chunks.len()), (&Ok(()), 2, 2));
        }
        assert_eq!((run.records.len(), run.client.connections), (6, 2));
    }

    #[tokio::test]
    async fn a_certificate_that_is_not_trusted_or_of_another_name_is_a_connect_failure() {
        let ((port, file), (_, other)) = (serve(), serve());
        for (host, file) in [("localhost", other.path()), ("127.0.0.1", file.path())] {
            let run = load(host, port, Some(file)).await;
            assert_eq!(run.records.len(), 6);
            let failed = run.records.iter().all(|record| {
                let said = |text: &String| text.contains("certificate");
                matches!(&record.result, Err(RequestError::Connect(text)) if said(text))
            });
            assert!(failed, "{host}: {:?}", run.records);
        }
    }
}
