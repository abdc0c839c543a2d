//! Tests of chats through a real socket, from the view of a load generator.

use serde_json::{Value as Json, json};

use super::tests::{events, ready};

#[tokio::test]
async fn a_chat_is_opened_by_its_role_and_streams_its_tokens() {
    let server = ready("").await;
    let ask = |more: Json| {
        let mut ask = json!({
            "model": "m", "messages": [{"role": "user", "content": "twelve bytes"}], "max_tokens": 4,
            "ignore_eos": true,
        });
        ask.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ask
    };
    let (status, text) = server.chat(ask(json!({"stream": true, "stream_options": {"include_usage": true}}))).await;
    assert_eq!(status, 200, "{text}");
    let events = events(&text);
    assert_eq!((events.len(), events[6].as_str()), (7, "[DONE]"));
    let chunks: Vec<Json> = events[..6].iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    assert!(chunks.iter().all(|chunk| chunk["object"] == "chat.completion.chunk"), "{text}");
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    for (chunk, finish) in chunks[1..5].iter().zip([Json::Null, Json::Null, Json::Null, json!("length")]) {
        assert_eq!(chunk["choices"][0]["delta"], json!({"content": " token"}));
        assert_eq!((&chunk["choices"][0]["finish_reason"], chunk.get("usage")), (&finish, None));
    }
    let usage = json!({"prompt_tokens": 11, "completion_tokens": 4, "total_tokens": 15});
    assert_eq!((&chunks[5]["choices"], &chunks[5]["usage"]), (&json!([]), &usage));

    let (status, text) = server.chat(ask(json!({}))).await;
    let reply: Json = serde_json::from_str(&text).unwrap();
    assert_eq!((status, &reply["object"], &reply["usage"]), (200, &json!("chat.completion"), &usage));
    assert_eq!(reply["choices"][0]["message"]["content"], " token token token token");
    assert!(reply["id"].as_str().unwrap().starts_with("chatcmpl-"), "{text}");

    let wrong = json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]});
    let (status, text) = server.chat(wrong).await;
    assert!(status == 400 && text.contains("is not a multimodal model"), "{text}");
    assert_eq!(server.chat(json!({"prompt": [1]})).await.0, 400);
}
