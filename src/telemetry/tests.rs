//! Tests of whole observations against small servers.

use super::*;
use crate::stats::to_f64;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Starts a server whose counter grows with every page. After `well` pages it never answers again.
async fn server(well: u64) -> (String, Arc<AtomicU64>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let asked = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let count = Arc::clone(&count);
            tokio::spawn(async move {
                let _ = stream.read(&mut [0; 1024]).await;
                let n = count.fetch_add(1, Ordering::SeqCst);
                if n >= well {
                    std::future::pending::<()>().await;
                }
                let page = format!(
                    "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nvllm:num_requests_running{{engine=\"0\"}} 2\n\
                     vllm:generation_tokens_total{{engine=\"0\"}} {}\n",
                    1000 + 10 * n
                );
                let _ = stream.write_all(page.as_bytes()).await;
            });
        }
    });
    (url, asked)
}

fn scope(base_url: Option<String>, interval_ms: u64) -> TelemetryScope {
    TelemetryScope {
        base_url,
        page: MetricsPage::usual(),
        processes: None,
        host: true,
        gpus: None,
        interval: Duration::from_millis(interval_ms),
    }
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < Duration::from_secs(20), "{what} did not come");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn a_watch_samples_from_its_start_to_its_stop() {
    let (url, asked) = server(u64::MAX).await;
    let watch = ServerWatch::start(scope(Some(url), 20));
    until("a third page", || asked.load(Ordering::SeqCst) >= 3).await;
    let telemetry = watch.stop().await;
    let pages = asked.load(Ordering::SeqCst);
    let summary = summarize(&telemetry, &telemetry.whole(), 5);
    let grown = 10.0 * to_f64(pages - 1);
    assert_eq!(telemetry.server.last("generation_tokens"), Some(1000.0 + grown));
    assert_eq!(summary.get("requests_running_max"), Some(&2.0));
    assert!(summary["host_memory_available_gib_min"] > 0.0, "{summary:?}");
    assert_eq!((telemetry.missed, telemetry.notes.len(), telemetry.gpus.len()), (0, 0, 0));
    let json = telemetry.to_json(&telemetry.whole());
    assert_eq!(json["server"]["generation_tokens"][0], 0);
    let columns = json["server"].as_object().unwrap();
    assert!(
        columns.values().all(|column| column.as_array().is_some_and(|values| values.len() as u64 == pages)),
        "{json}"
    );
}

#[tokio::test]
async fn a_page_that_hangs_is_skipped_and_counted_without_delay() {
    let (url, asked) = server(1).await;
    let watch = ServerWatch::start(scope(Some(url), 20));
    until("a second question", || asked.load(Ordering::SeqCst) >= 2).await;
    let begin = Instant::now();
    let telemetry = watch.stop().await;
    assert!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
    assert_eq!(telemetry.server.within("requests_running", &telemetry.whole()), [2.0]);
    assert!(telemetry.missed >= 1);
}

#[tokio::test]
async fn a_mark_reads_this_machine_and_spares_the_server() {
    let (url, asked) = server(u64::MAX).await;
    let watch = ServerWatch::start(scope(Some(url), 3_600_000));
    until("the first page", || asked.load(Ordering::SeqCst) >= 1).await;
    let mark = watch.mark();
    std::thread::spawn(move || mark.request_sample()).join().unwrap();
    let telemetry = watch.stop().await;
    assert_eq!(asked.load(Ordering::SeqCst), 2, "the first and the last");
    let json = telemetry.to_json(&telemetry.whole());
    let samples = |source: &str| json[source]["at_s"].as_array().unwrap().len();
    assert_eq!((samples("server"), samples("host")), (2, 3));
}

#[tokio::test]
async fn a_machine_without_gpus_and_a_server_without_a_page_leave_one_note() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 1024]).await;
            let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await;
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    let watch = ServerWatch::start(TelemetryScope {
        gpus: Some(WatchedDevices { visible: None, used: 1, is_exclusive: false, known: Vec::new() }),
        ..scope(Some(url), 3_600_000)
    });
    until("the question", || asked.load(Ordering::SeqCst) >= 1).await;
    let telemetry = watch.stop().await;
    assert_eq!(asked.load(Ordering::SeqCst), 1, "what is not there is not asked again");
    let [note] = telemetry.notes.as_slice() else { panic!("{:?}", telemetry.notes) };
    assert!(note.ends_with("/metrics answers with status 404"), "{note}");
    assert_eq!(telemetry.missed, 0);
    assert!(telemetry.server.is_empty() && !telemetry.host.is_empty());
    assert!(telemetry.to_json(&telemetry.whole()).get("server").is_none());
}

#[tokio::test]
async fn only_the_page_of_a_remote_address_is_read() {
    for url in ["http://127.0.0.1:8000", "http://localhost:8000/v1", "http://[::1]:8000"] {
        assert!(TelemetryScope::of_url(url).host && TelemetryScope::of_url(url).gpus.is_some(), "{url}");
    }
    let far = TelemetryScope::of_url("https://llm.example/v1");
    assert!(!far.host && far.gpus.is_none() && far.base_url.is_some());
}

#[test]
fn a_server_on_this_machine_is_known_by_its_address() {
    for url in ["http://127.0.0.1:8000", "http://localhost/v1", "https://[::1]:1"] {
        assert!(is_local(url), "{url}");
    }
    for url in ["http://10.0.0.1:8000", "http://localhost.example.com", "http://127.example.com"] {
        assert!(!is_local(url), "{url}");
    }
}
