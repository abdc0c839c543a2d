//! Destination of requests: address, TLS, and the HTTP head that all requests share.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use url::{Host, Url};

use super::tls::TlsSettings;
use super::{LoadError, LoadTarget};

/// Connect timeout for each address of a name that has several.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// A resolved server address with the prepared parts of a request.
#[derive(Clone, Debug)]
pub(super) struct ServerEndpoint {
    pub(super) address: SocketAddr,
    pub(super) tls: Option<TlsSettings>,
    /// Everything up to the value of `Content-Length`.
    head: Vec<u8>,
}

impl ServerEndpoint {
    /// Resolves the target's host; blocks for as long as that takes.
    ///
    /// # Errors
    /// If the URL, a header or the certificates cannot be used, or the name has no address.
    pub(super) fn new(target: &LoadTarget, path: &str) -> Result<Self, LoadError> {
        let invalid = |reason: String| LoadError::Url { url: target.base_url.clone(), reason };
        let url: Url = target.base_url.parse().map_err(|error| invalid(format!("{error}")))?;
        let host = url.host().ok_or_else(|| invalid("it has no host".to_owned()))?;
        let tls = match url.scheme() {
            "http" => None,
            "https" => {
                // Certificates contain an IPv6 address without brackets.
                let name = match &host {
                    Host::Ipv6(address) => address.to_string(),
                    other => other.to_string(),
                };
                let tls = if target.own_server {
                    TlsSettings::of_own_server(&name)
                } else {
                    TlsSettings::new(&name, target.ca_file.as_deref())
                };
                Some(tls.map_err(LoadError::Tls)?)
            }
            other => return Err(invalid(format!("the scheme is {other:?}, not \"http\" or \"https\""))),
        };
        let port = url.port_or_known_default().unwrap_or(80);
        let address = resolve(&url).map_err(invalid)?;
        let base = url.path().trim_end_matches('/').trim_end_matches("/v1");
        let authority = url.port().map_or_else(|| host.to_string(), |_| format!("{host}:{port}"));
        Ok(Self { address, tls, head: head(target, &format!("{base}{path}"), &authority)? })
    }

    /// Returns a whole request: head and `body`.
    pub(super) fn request(&self, body: &[u8]) -> Vec<u8> {
        let length = body.len().to_string();
        let mut request = Vec::with_capacity(self.head.len() + length.len() + 4 + body.len());
        for part in [&self.head, length.as_bytes(), b"\r\n\r\n", body] {
            request.extend_from_slice(part);
        }
        request
    }
}

/// Returns the address of the host. If a name has several (`localhost` often has one without a listener), returns the
/// first that accepts a connection, or else the first.
fn resolve(url: &Url) -> Result<SocketAddr, String> {
    let addresses = url.socket_addrs(|| None).map_err(|error| format!("its host has no address: {error}"))?;
    let first = *addresses.first().ok_or("its host has no address")?;
    if addresses.len() == 1 {
        return Ok(first);
    }
    let answers = |address: &&SocketAddr| TcpStream::connect_timeout(address, PROBE_TIMEOUT).is_ok();
    Ok(addresses.iter().find(answers).copied().unwrap_or(first))
}

fn head(target: &LoadTarget, path: &str, authority: &str) -> Result<Vec<u8>, LoadError> {
    let mut lines = vec![
        ("host".to_owned(), authority.to_owned()),
        ("user-agent".to_owned(), concat!("setpoint/", env!("CARGO_PKG_VERSION")).to_owned()),
        ("accept".to_owned(), "*/*".to_owned()),
        ("content-type".to_owned(), "application/json".to_owned()),
    ];
    if let Some(key) = &target.api_key {
        lines.push(("authorization".to_owned(), format!("Bearer {}", key.0)));
    }
    for (name, value) in &target.headers {
        let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
        if name.is_empty() || !name.chars().all(token) {
            return Err(LoadError::Header { name: name.clone(), reason: "is not a valid header name" });
        }
        if ["content-length", "transfer-encoding", "connection"].iter().any(|own| name.eq_ignore_ascii_case(own)) {
            return Err(LoadError::Header { name: name.clone(), reason: "is set by the load generator" });
        }
        lines.retain(|(own, _)| !own.eq_ignore_ascii_case(name));
        lines.push((name.clone(), value.clone()));
    }
    if let Some((name, _)) = lines.iter().find(|(_, value)| value.contains(|c: char| c.is_control() && c != '\t')) {
        return Err(LoadError::Header { name: name.clone(), reason: "has a line end or another control character" });
    }
    let mut head = format!("POST {path} HTTP/1.1\r\n");
    for (name, value) in lines {
        head.extend([&name, ": ", &value, "\r\n"]);
    }
    head.push_str("content-length: ");
    Ok(head.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::BearerKey;

    fn request(target: &LoadTarget) -> String {
        String::from_utf8(ServerEndpoint::new(target, "/v1/completions").unwrap().request(b"{}")).unwrap()
    }

    #[test]
    fn a_request_has_its_head_its_length_and_its_body() {
        let mut target = LoadTarget::new("http://127.0.0.1:8000/v1/", "m");
        target.headers = vec![("X-Trace".to_owned(), "a b".to_owned()), ("User-Agent".to_owned(), "me".to_owned())];
        target.api_key = Some(BearerKey("secret".to_owned()));
        assert_eq!(
            request(&target),
            "POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:8000\r\naccept: */*\r\ncontent-type: application/json\r\n\
             authorization: Bearer secret\r\nX-Trace: a b\r\nUser-Agent: me\r\ncontent-length: 2\r\n\r\n{}"
        );
        assert!(!format!("{target:?}").contains("secret"));
    }

    #[test]
    fn a_path_before_the_interface_is_kept() {
        let target = LoadTarget::new("http://127.0.0.1/models/a/v1", "m");
        assert!(request(&target).starts_with("POST /models/a/v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n"));
        let target = LoadTarget::new("http://[::1]:80", "m");
        assert!(request(&target).contains("host: [::1]\r\n"));
    }

    #[test]
    fn invalid_headers_and_addresses_are_refused() {
        let with = |name: &str, value: &str| {
            let mut target = LoadTarget::new("http://127.0.0.1:1", "m");
            target.headers = vec![(name.to_owned(), value.to_owned())];
            ServerEndpoint::new(&target, "/").unwrap_err().to_string()
        };
        assert_eq!(with("a b", "c"), "header \"a b\" is not a valid header name");
        assert_eq!(with("Content-Length", "3"), "header \"Content-Length\" is set by the load generator");
        assert!(with("a", "b\r\nc: d").contains("line end"));
        for url in ["127.0.0.1:8000", "ftp://127.0.0.1", "nonsense"] {
            assert!(
                matches!(ServerEndpoint::new(&LoadTarget::new(url, "m"), "/"), Err(LoadError::Url { .. })),
                "{url}"
            );
        }
    }

    #[test]
    fn a_file_without_a_certificate_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut target = LoadTarget::new("https://127.0.0.1", "m");
        target.ca_file = Some(file.path().to_owned());
        let error = ServerEndpoint::new(&target, "/").unwrap_err().to_string();
        assert!(error.contains("contains no certificate"), "{error}");
    }
}
