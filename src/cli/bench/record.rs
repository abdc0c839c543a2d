//! The record of one request, as a line of JSON.

use serde_json::{Value as Json, json};

use crate::load::RequestRecord;

/// Returns one request's record as a line of JSON. Missing values are null.
///
/// `due_s`, `sent_s` and `end_s` are seconds since the start of the measurement window. `ttft_ms` and `e2el_ms` are
/// milliseconds since `due_s`. `chunks_ms` contains the arrival of each content chunk, in milliseconds since `sent_s`.
/// Once all records together exceed [`LoadPlan::kept_chunks`](crate::load::LoadPlan::kept_chunks), further ones contain
/// only the first and the last arrival.
pub(super) fn line(run: &str, record: &RequestRecord) -> Json {
    let ms = |duration: Option<std::time::Duration>| duration.map(|duration| duration.as_secs_f64() * 1e3);
    let chunks: Vec<f64> = record.chunks.iter().map(|at| f64::from(*at) / 1e3).collect();
    let error = record.result.as_ref().err();
    json!({
        "run": run,
        "session": record.session,
        "turn": record.turn,
        "due_s": record.due.as_secs_f64(),
        "sent_s": record.sent.as_secs_f64(),
        "end_s": record.end.as_secs_f64(),
        "queued": record.queued,
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "asked_tokens": record.requested_tokens,
        "output_tokens": record.output_tokens,
        "chunk_count": record.chunk_count,
        "ttft_ms": ms(record.ttft()),
        "e2el_ms": ms(record.e2el()),
        "chunks_ms": chunks,
        "error": error.map(crate::load::RequestError::class),
        "message": error.map(ToString::to_string),
    })
}
