//! Tests of faults through a real socket, from the view of a supervisor and a load generator.

use std::time::Duration;

use serde_json::{Value as Json, json};

use crate::engines::sim::process::tests::{TestServer, events, launch, ready};

fn ask(tokens: u32) -> Json {
    json!({"prompt": [5, 6, 7], "max_tokens": tokens, "ignore_eos": true, "stream": true})
}

async fn served(faults: &str) -> TestServer {
    ready(&faults.split(' ').flat_map(|fault| ["--sim-fault ", fault, " "]).collect::<String>()).await
}

#[tokio::test]
async fn streams_end_early_or_with_an_error_or_not_at_all() {
    for (fault, chunks, last) in [
        ("end-early:after=2", 2, None),
        ("end-early", 6, None),
        ("error-event:after=2", 2, Some(500)),
        ("error-event:after=99", 6, None),
    ] {
        let server = served(fault).await;
        let (status, text) = server.complete(ask(6)).await;
        let events = events(&text);
        let done = events.last().is_some_and(|event| event == "[DONE]");
        let told: Vec<Json> = events.iter().filter_map(|event| serde_json::from_str(event).ok()).collect();
        let error = told.iter().find_map(|event| event["error"]["code"].as_i64());
        let tokens = told.iter().filter(|event| event["choices"][0]["text"] == " token").count();
        assert_eq!((status, tokens, error), (200, chunks, last), "{fault}: {text}");
        assert_eq!(done, fault.starts_with("error-event"), "{fault}: {text}");
    }
    let server = served("stall:after=3,from=2").await;
    assert_eq!(events(&server.complete(ask(6)).await.1).len(), 7, "the first is not stalled");
    let stalled = tokio::time::timeout(Duration::from_millis(150), server.complete(ask(6))).await;
    assert!(stalled.is_err(), "it never ends");
}

#[tokio::test]
async fn requests_are_refused_from_one_on() {
    let server = served("errors:from=2").await;
    assert_eq!(server.complete(ask(1)).await.0, 200);
    let (status, text) = server.complete(ask(1)).await;
    assert_eq!((status, serde_json::from_str::<Json>(&text).unwrap()["error"]["code"].as_i64()), (500, Some(500)));
}

#[tokio::test]
async fn a_mute_server_is_healthy_and_answers_no_request() {
    let server = served("mute").await;
    assert_eq!(server.get("/health").await.as_deref(), Some(""));
    assert!(tokio::time::timeout(Duration::from_millis(150), server.complete(ask(1))).await.is_err());
}

#[tokio::test]
async fn another_model_is_served_under_its_name_only() {
    let server = served("other-model:name=other").await;
    let models: Json = serde_json::from_str(&server.get("/v1/models").await.unwrap()).unwrap();
    assert_eq!(models["data"][0]["id"], "other");
    let mut asked = ask(1);
    asked["model"] = "m".into();
    assert_eq!(server.complete(asked).await.0, 404);
}

#[tokio::test]
async fn a_late_listener_announces_its_start_before_it_listens() {
    let server = launch("--sim-fault late-listen:seconds=0.3");
    while !server.log.text().contains("Application startup complete.") {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(server.get("/health").await, None);
    server.wait().await;
}

#[tokio::test]
async fn a_server_that_dies_at_a_request_ends_with_exit_code_0_and_says_why() {
    let server = served("die:request=2,cause=oom-load").await;
    assert_eq!(server.complete(ask(1)).await.0, 200);
    let log = server.log.clone();
    // The second request is never answered, because the server ends meanwhile.
    let asking = tokio::spawn(async move {
        let _ = tokio::time::timeout(Duration::from_millis(500), server.complete(ask(1))).await;
        server.ended.await
    });
    assert_eq!(asking.await.unwrap().unwrap().unwrap_err().exit_code(), 0);
    let log = log.text();
    let error = log.lines().find(|line| line.contains("OutOfMemoryError")).unwrap();
    assert!(error.contains(" ERROR ") && error.starts_with("(EngineCore pid="), "{log}");
    let dead = log.lines().last().unwrap();
    assert!(dead.contains("(APIServer pid=") && dead.contains("EngineDeadError: EngineCore encountered"), "{log}");
}

#[tokio::test]
async fn the_cause_stands_first_in_the_log_and_its_wrapper_is_the_last_word() {
    let ended = async |version: &str, cause: &str| {
        let server = launch(&format!(
            "--sim-vllm-version {version} --sim-fault exit@graphs:cause={cause} --sim-fault-if max-num-seqs="
        ));
        let error = server.ended.await.unwrap().unwrap_err();
        assert_eq!(error.exit_code(), 1);
        (server.log.text(), error.to_string())
    };
    let (log, last) = ended("0.33.0", "oom-sampler").await;
    let order = [
        "EngineCore failed to start.",
        "torch.OutOfMemoryError: ",
        "when warming up sampler with",
        "Process EngineCore:",
    ];
    let places: Vec<_> = order.iter().map(|text| log.find(text).unwrap_or_else(|| panic!("{text}: {log}"))).collect();
    assert!(places.is_sorted(), "{log}");
    let wrapper =
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}";
    assert!(last.starts_with("(APIServer pid=") && last.ends_with(wrapper), "{last}");

    let (log, last) = ended("0.6.3", "oom-graphs").await;
    assert!(!log.contains("OutOfMemoryError"), "{log}");
    assert!(last.starts_with("Traceback (most recent call last):\n"), "{last}");
    assert!(last.contains("\ntorch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 64.00 MiB."), "{last}");
}

#[tokio::test]
async fn a_fault_of_other_configurations_does_nothing() {
    let server = ready("--max-num-seqs 8 --sim-fault exit@kv --sim-fault-if max-num-seqs=4").await;
    assert_eq!(server.complete(ask(1)).await.0, 200);
}

#[tokio::test]
async fn a_closed_log_gets_no_more_lines_and_a_flooded_one_whole_lines() {
    let server = served("flood@weights:mb=1 close-log@ready").await;
    let log = server.log.text();
    assert!(log.len() > 1_000_000 && log.contains("Application startup complete."));
    assert!(
        log.lines().filter(|line| line.contains("Avg prompt throughput")).all(|line| line.ends_with("usage: 0.0%"))
    );
    server.complete(ask(1)).await;
    assert_eq!(server.log.text().len(), log.len());
}
