//! Request bodies, serialized before the clock starts so that a prompt of 128,000 tokens does not stall the streams.

use bytes::Bytes;
use serde::Serialize;

use crate::workload::{Prompt, Request};

/// A request that is ready to be sent.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) session: u64,
    pub(super) output_len: u32,
    pub(super) body: Bytes,
}

/// The body of `/v1/completions`. Everything that the server could default differently is stated.
#[derive(Serialize)]
struct Completion<'a> {
    model: &'a str,
    max_tokens: u32,
    ignore_eos: bool,
    temperature: u8,
    stream: bool,
    stream_options: StreamOptions,
    prompt: &'a [u32],
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

impl Job {
    pub(super) fn new(model: &str, session: u64, request: &Request) -> serde_json::Result<Self> {
        let prompt: &[u32] = if let Prompt::Tokens(tokens) = &request.prompt { tokens } else { &[] };
        let completion = Completion {
            model,
            max_tokens: request.output_len,
            ignore_eos: true,
            temperature: 0,
            stream: true,
            stream_options: StreamOptions { include_usage: true },
            prompt,
        };
        // Token ids of today's vocabularies have at most six digits and a comma.
        let mut body = Vec::with_capacity(256 + model.len() + 7 * prompt.len());
        serde_json::to_writer(&mut body, &completion)?;
        body.shrink_to_fit();
        Ok(Self { session, output_len: request.output_len, body: body.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_states_everything_that_a_server_could_default() {
        let request = Request { prompt: Prompt::Tokens(vec![5, 600, 70_000]), output_len: 8 };
        let job = Job::new("a \"model\"", 3, &request).unwrap();
        let expected = serde_json::json!({
            "model": "a \"model\"", "prompt": [5, 600, 70_000], "max_tokens": 8, "ignore_eos": true, "temperature": 0,
            "stream": true, "stream_options": { "include_usage": true },
        });
        assert_eq!(serde_json::from_slice::<serde_json::Value>(&job.body).unwrap(), expected);
    }
}
