//! Access to the live pages: the Host header, the token, and the headers of every answer.

use std::net::{IpAddr, SocketAddr};

use axum::extract::{Request, State};
use axum::http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, COOKIE, HOST, HeaderName, HeaderValue, LOCATION,
    REFERRER_POLICY, SET_COOKIE, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;

/// Scripts, styles and data come from this server only, and no other page may contain these.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
const COOKIE_NAME: &str = "setpoint_token";
const QUERY_NAME: &str = "token";

/// The callers that get answers.
#[derive(Clone, Debug)]
pub(crate) struct AccessRules {
    /// The secret that every caller must present; `None` on a loopback address without one.
    pub token: Option<String>,
    /// Further names that the Host header may have, besides addresses and `localhost`.
    pub host_names: Vec<String>,
}

/// Returns whether an address is reachable from this host only.
#[must_use]
pub(crate) fn is_local(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

impl AccessRules {
    /// Returns whether a Host header names this server. A page of another site that has pointed its own name to this
    /// address (DNS rebinding) sends its own name.
    fn allows_host(&self, host: &str) -> bool {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => host,
        };
        let address = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
        address.parse::<IpAddr>().is_ok()
            || name.eq_ignore_ascii_case("localhost")
            || self.host_names.iter().any(|known| name.eq_ignore_ascii_case(known))
    }

    /// Returns whether a request presents the token: as a bearer, or as the cookie of an earlier request.
    fn allows_headers(&self, headers: &HeaderMap) -> bool {
        let Some(token) = &self.token else { return true };
        let bearer = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut pairs = cookies.flat_map(|cookies| cookies.split("; ")).filter_map(|pair| pair.split_once('='));
        bearer.is_some_and(|given| is_equal(given, token))
            || pairs.any(|(name, given)| name == COOKIE_NAME && is_equal(given, token))
    }
}

/// Compares two texts in a time that depends on their lengths only.
fn is_equal(given: &str, expected: &str) -> bool {
    let different = given.bytes().zip(expected.bytes()).fold(0_u8, |bits, (a, b)| bits | (a ^ b));
    given.len() == expected.len() && different == 0
}

/// Refuses requests that the rules do not allow, and adds the headers to every answer.
pub(super) async fn guard(State(rules): State<Arc<AccessRules>>, request: Request, next: Next) -> Response {
    let mut response = match refusal(&rules, &request) {
        Some(refusal) => refusal,
        None => next.run(request).await,
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// Returns the answer to a request that is not allowed. A request whose address has the token gets it as a cookie, so that
/// the token leaves the address bar.
fn refusal(rules: &AccessRules, request: &Request) -> Option<Response> {
    let authority = request.uri().authority().map(ToString::to_string);
    let host = request.headers().get(HOST).and_then(|value| value.to_str().ok()).map(str::to_owned).or(authority);
    if !host.as_deref().is_some_and(|host| rules.allows_host(host)) {
        let text = "the Host header names another server; --host-name NAME of `setpoint serve` allows a name\n";
        return Some((StatusCode::MISDIRECTED_REQUEST, text).into_response());
    }
    if let (Some(token), Some(query)) = (&rules.token, request.uri().query()) {
        let given = url::form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == QUERY_NAME);
        if given.is_some_and(|(_, given)| is_equal(&given, token)) {
            let cookie = format!("{COOKIE_NAME}={token}; HttpOnly; SameSite=Strict; Path=/");
            // The path begins with one slash, so that no other host is meant.
            let path = format!("/{}", request.uri().path().trim_start_matches('/'));
            return Some((StatusCode::SEE_OTHER, [(SET_COOKIE, cookie), (LOCATION, path)]).into_response());
        }
    }
    if !rules.allows_headers(request.headers()) {
        let text = "this server needs its token: open the address that `setpoint serve` has printed, or send the header \
                    Authorization: Bearer TOKEN\n";
        return Some((StatusCode::UNAUTHORIZED, [(WWW_AUTHENTICATE, "Bearer")], text).into_response());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    fn rules(token: Option<&str>) -> AccessRules {
        AccessRules { token: token.map(str::to_owned), host_names: vec!["tuner.example".to_owned()] }
    }

    fn status(rules: &AccessRules, uri: &str, headers: &[(&str, &str)]) -> Option<u16> {
        let mut request = Request::builder().uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        refusal(rules, &request.body(Body::empty()).unwrap()).map(|response| response.status().as_u16())
    }

    #[test]
    fn names_of_other_sites_are_refused() {
        let rules = rules(None);
        for host in ["127.0.0.1:8080", "localhost", "LOCALHOST:9", "[::1]:80", "10.1.2.3:80", "Tuner.Example:80"] {
            assert_eq!(status(&rules, "/", &[("host", host)]), None, "{host}");
        }
        for host in ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example", ""] {
            assert_eq!(status(&rules, "/", &[("host", host)]), Some(421), "{host}");
        }
        assert_eq!(status(&rules, "/", &[]), Some(421));
    }

    #[test]
    fn a_token_is_a_bearer_or_a_cookie_and_leaves_the_address() {
        let rules = rules(Some("secret"));
        let host = ("host", "127.0.0.1");
        assert_eq!(status(&rules, "/", &[host]), Some(401));
        assert_eq!(status(&rules, "/", &[host, ("authorization", "Bearer secret")]), None);
        assert_eq!(status(&rules, "/", &[host, ("authorization", "Bearer secre")]), Some(401));
        assert_eq!(status(&rules, "/", &[host, ("cookie", "a=b; setpoint_token=secret")]), None);
        assert_eq!(status(&rules, "/", &[host, ("cookie", "setpoint_token=other")]), Some(401));
        assert_eq!(status(&rules, "/?token=other", &[host]), Some(401));
        let request = Request::builder().uri("//evil.example/x?token=secret").header("host", "127.0.0.1");
        let response = refusal(&rules, &request.body(Body::empty()).unwrap()).unwrap();
        let location = response.headers()["location"].to_str().unwrap();
        assert_eq!((response.status().as_u16(), location), (303, "/evil.example/x"));
        let cookie = response.headers()["set-cookie"].to_str().unwrap();
        assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
    }

    #[test]
    fn only_loopback_addresses_are_local() {
        for (address, expected) in
            [("127.0.0.1:1", true), ("[::1]:1", true), ("[::ffff:127.0.0.1]:1", true), ("0.0.0.0:1", false)]
        {
            assert_eq!(is_local(address.parse().unwrap()), expected, "{address}");
        }
    }
}
