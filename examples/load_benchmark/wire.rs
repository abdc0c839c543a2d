//! The bytes of the server's replies, built once: events of the size and form of vLLM's, each in its own chunk.

pub(crate) const HEAD: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";

/// The size of one write of a reply without gaps between its tokens (a fire hose).
const BLOCK_BYTES: usize = 64 * 1024;

pub(crate) struct Wire {
    /// Any token but the last.
    pub token: Vec<u8>,
    /// The repeated token, up to the size of one write.
    pub block: Vec<u8>,
    /// The last token, the usage event, `[DONE]` and the end of the body.
    pub tail: Vec<u8>,
}

impl Wire {
    pub(crate) fn new(tokens: u32, prompt_tokens: u32) -> Self {
        let token = chunk(&event("null"));
        let block = token.repeat((BLOCK_BYTES / token.len()).max(1));
        let usage = format!(
            r#"data: {{"id":"{ID}","object":"text_completion","created":1700000000,"model":"m","choices":[],"usage":{{"prompt_tokens":{prompt_tokens},"total_tokens":{},"completion_tokens":{tokens}}}}}"#,
            prompt_tokens + tokens
        ) + "\n\n";
        let mut tail = chunk(&event(r#""length""#));
        tail.extend(chunk(&usage));
        tail.extend(chunk("data: [DONE]\n\n"));
        tail.extend(b"0\r\n\r\n");
        Self { token, block, tail }
    }
}

const ID: &str = "cmpl-0123456789abcdef0123456789abcdef";

/// Returns a token's event as vLLM 0.32 sends it (`CompletionStreamResponse`), about 250 bytes.
fn event(finish_reason: &str) -> String {
    format!(
        r#"data: {{"id":"{ID}","object":"text_completion","created":1700000000,"model":"m","choices":[{{"index":0,"text":" word","logprobs":null,"finish_reason":{finish_reason},"stop_reason":null,"token_ids":null}}],"usage":null}}"#
    ) + "\n\n"
}

fn chunk(event: &str) -> Vec<u8> {
    format!("{:x}\r\n{event}\r\n", event.len()).into_bytes()
}

/// Returns a complete reply with a body of this type.
pub(crate) fn reply(status: &str, content_type: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
        .into_bytes()
}
