//! Scraper of the server's metrics page, over HTTP.

use std::time::Duration;

use super::engine_series;
use super::series::SeriesRow;
use crate::engine::MetricsPage;

/// Maximum bytes of a page. A page of vLLM has 60 kB, and each further engine adds the same amount.
const MAX_PAGE_BYTES: usize = 8 << 20;

/// Time limit of a page. A slower page is left out and counted.
const PAGE_LIMIT: Duration = Duration::from_secs(2);

/// Result of a request for the page.
#[derive(Debug, PartialEq)]
pub(super) enum ScrapeAnswer {
    Values(SeriesRow),
    /// Too slow, too large, or no answer. The next request may succeed.
    Missed,
    /// The server has no such page, for this reason.
    NoPage(String),
}

/// HTTP client for one server's page.
#[derive(Debug)]
pub(super) struct Scraper {
    client: reqwest::Client,
    url: String,
    page: MetricsPage,
}

impl Scraper {
    /// # Errors
    /// If the HTTP client cannot be built.
    pub(super) fn new(base_url: &str, page: &MetricsPage) -> reqwest::Result<Self> {
        let client = reqwest::Client::builder().no_proxy().timeout(PAGE_LIMIT).build()?;
        Ok(Self { client, url: page_url(base_url, &page.path), page: page.clone() })
    }

    /// Requests the page once and reads its series.
    pub(super) async fn ask(&self) -> ScrapeAnswer {
        let Ok(mut response) = self.client.get(&self.url).send().await else { return ScrapeAnswer::Missed };
        let status = response.status();
        // Timeouts (408) and too many requests (429) are temporary.
        if status.is_client_error() && !matches!(status.as_u16(), 408 | 429) {
            return ScrapeAnswer::NoPage(format!("{} answers with status {}", self.url, status.as_u16()));
        }
        if !status.is_success() {
            return ScrapeAnswer::Missed;
        }
        let mut body = Vec::new();
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) if body.len() + chunk.len() <= MAX_PAGE_BYTES => body.extend_from_slice(&chunk),
                Ok(None) => break,
                _ => return ScrapeAnswer::Missed,
            }
        }
        let row = engine_series::read(&String::from_utf8_lossy(&body), &self.page.names);
        if row.is_empty() {
            return ScrapeAnswer::NoPage(format!("{} has no series of a known engine", self.url));
        }
        ScrapeAnswer::Values(row)
    }
}

/// Returns the address of the page. It lies beside `/v1`, not below it.
fn page_url(base_url: &str, path: &str) -> String {
    let root = base_url.trim_end_matches('/');
    format!("{}{path}", root.strip_suffix("/v1").unwrap_or(root))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    /// Answers every connection with these bytes and closes it.
    async fn answering(bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.read(&mut [0; 1024]).await;
                let _ = stream.write_all(bytes.as_ref()).await;
            }
        });
        url
    }

    async fn ask(bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> ScrapeAnswer {
        Scraper::new(&answering(bytes).await, &MetricsPage::usual()).unwrap().ask().await
    }

    #[test]
    fn the_page_lies_at_the_root() {
        for url in ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"] {
            assert_eq!(page_url(url, "/metrics"), "http://h:1/metrics");
        }
        assert_eq!(page_url("https://h/model/v1", "/metrics"), "https://h/model/metrics");
    }

    #[tokio::test]
    async fn each_kind_of_answer_is_distinguished() {
        let values = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nvllm:num_requests_running{engine=\"0\"} 3.0\n";
        assert_eq!(ask(values).await, ScrapeAnswer::Values(vec![("requests_running", 3.0)]));
        let ScrapeAnswer::NoPage(why) = ask("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").await else {
            panic!()
        };
        assert!(why.ends_with("/metrics answers with status 404"), "{why}");
        let unknown = ask("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nup 1\n").await;
        assert!(
            matches!(&unknown, ScrapeAnswer::NoPage(why) if why.contains("no series of a known engine")),
            "{unknown:?}"
        );
        assert_eq!(ask("HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n").await, ScrapeAnswer::Missed);
        assert_eq!(ask("HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\ncut off").await, ScrapeAnswer::Missed);
        let mut endless = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n".to_vec();
        endless.resize(MAX_PAGE_BYTES + 1024, b'#');
        assert_eq!(ask(endless).await, ScrapeAnswer::Missed);
        let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", closed.local_addr().unwrap());
        drop(closed);
        assert_eq!(Scraper::new(&url, &MetricsPage::usual()).unwrap().ask().await, ScrapeAnswer::Missed);
    }
}
