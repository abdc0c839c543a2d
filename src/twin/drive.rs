//! A whole load in virtual time: a fixed number of clients, each of which asks again once it is answered.

use std::collections::HashMap;
use std::time::Duration;

use super::engine::{AddError, Engine};
use super::sequence::RequestId;
use super::step_time::StepTime;
use crate::workload::{Prompt, Workload};

/// What one client saw of one request, all in virtual time since the start of the load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub index: u64,
    pub asked: Duration,
    /// From asking to the first token.
    pub ttft: Duration,
    /// Between one token and the next.
    pub gaps: Vec<Duration>,
    pub prompt_len: u32,
}

impl Reply {
    #[must_use]
    pub fn finished(&self) -> Duration {
        self.asked + self.ttft + self.gaps.iter().sum::<Duration>()
    }

    #[must_use]
    pub fn output_len(&self) -> u64 {
        self.gaps.len() as u64 + 1
    }
}

struct Open {
    reply: Reply,
    last_token: Option<Duration>,
}

/// Drives `requests` requests of the workload through the engine, at most `concurrency` at once. The replies come in
/// the order in which they finished.
///
/// # Errors
/// When a request of the workload cannot be served with these settings.
pub fn drive(
    engine: &mut Engine,
    step_time: &StepTime,
    workload: &dyn Workload,
    requests: u64,
    concurrency: u64,
) -> Result<Vec<Reply>, AddError> {
    let mut now = Duration::ZERO;
    let mut next = 0;
    let mut open: HashMap<RequestId, Open> = HashMap::new();
    let mut replies = Vec::new();
    loop {
        while next < requests && (open.len() as u64) < concurrency.max(1) {
            let request = workload.session(next).turns.swap_remove(0).request;
            let prompt: &[u32] = if let Prompt::Tokens(tokens) = &request.prompt { tokens } else { &[] };
            let id = RequestId(next);
            engine.add(id, prompt, request.output_len, now)?;
            let prompt_len = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
            let reply = Reply { index: next, asked: now, ttft: Duration::ZERO, gaps: Vec::new(), prompt_len };
            open.insert(id, Open { reply, last_token: None });
            next += 1;
        }
        let Some(batch) = engine.step(now) else { break };
        now += step_time.of(&batch.work);
        for event in engine.finish(&batch) {
            let Some(request) = open.get_mut(&event.id) else { continue };
            match request.last_token.replace(now) {
                None => request.reply.ttft = now.saturating_sub(request.reply.asked),
                Some(last) => request.reply.gaps.push(now.saturating_sub(last)),
            }
            if event.last
                && let Some(request) = open.remove(&event.id)
            {
                replies.push(request.reply);
            }
        }
    }
    Ok(replies)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::twin::tests::settings;
    use crate::twin::{DevicePreset, Settings, test_model};
    use crate::workload::Random;

    fn throughput(max_num_seqs: u32) -> f64 {
        let settings = Settings {
            max_num_seqs,
            max_model_len: 1024,
            max_num_batched_tokens: 2048,
            block_size: 16,
            num_blocks: 20_000,
            ..settings()
        };
        let step_time = StepTime::new(&test_model(), DevicePreset::find("h100").unwrap(), &settings).unwrap();
        let workload = Random { input_len: 200, output_len: 50, vocab_size: 1000, seed: 1 };
        let mut engine = Engine::new(settings).unwrap();
        let replies = drive(&mut engine, &step_time, &workload, 64, 32).unwrap();
        assert_eq!(replies.len(), 64);
        assert!(replies.iter().all(|reply| reply.output_len() == 50 && reply.prompt_len == 200));
        let end = replies.iter().map(Reply::finished).max().unwrap();
        64.0 * 50.0 / end.as_secs_f64()
    }

    #[test]
    fn few_sequences_starve_a_load_that_offers_more() {
        let (few, enough) = (throughput(4), throughput(32));
        assert!(enough > 4.0 * few, "{few} {enough}");
        assert!(throughput(64) > 0.98 * enough, "more than is offered changes little");
    }
}
