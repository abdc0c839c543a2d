//! The process between clients and engines. It reads requests and writes tokens, one thing after the other.
//!
//! vLLM's API server is one event loop. It reads no request while it writes the tokens of a step, and vice versa. Work
//! that comes meanwhile waits in the order of its arrival. With many streams and short steps the loop is the
//! bottleneck.

use std::time::Duration;

/// Costs of its work, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Frontend {
    /// To parse and check a request and hand it to the engine.
    pub request_s: f64,
    /// To tokenise the text of one token.
    pub prompt_token_s: f64,
    /// To take over the output of a step.
    pub step_s: f64,
    /// To write a token to its stream.
    pub stream_s: f64,
}

impl Frontend {
    fn request(&self, prompt_len: u32) -> Duration {
        seconds(self.request_s + self.prompt_token_s * f64::from(prompt_len))
    }
}

/// The state of one such process.
#[derive(Debug)]
pub(crate) struct FrontendProcess {
    costs: Frontend,
    free: Duration,
}

impl FrontendProcess {
    pub(crate) fn new(costs: Frontend) -> Self {
        Self { costs, free: Duration::ZERO }
    }

    /// Reads a request that comes at `at`. Returns when the engine has it.
    pub(crate) fn receive(&mut self, at: Duration, prompt_len: u32) -> Duration {
        self.free = self.free.max(at) + self.costs.request(prompt_len);
        self.free
    }

    /// Takes over the output of a step that ended at `at`. Each of its tokens is then [written](Self::write).
    pub(crate) fn take(&mut self, at: Duration) {
        self.free = self.free.max(at) + seconds(self.costs.step_s);
    }

    /// Writes the next token. Returns when the client has it.
    pub(crate) fn write(&mut self) -> Duration {
        self.free += seconds(self.costs.stream_s);
        self.free
    }
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn it_does_one_thing_after_the_other() {
        let costs = Frontend { request_s: 2e-3, prompt_token_s: 1e-3, step_s: 1e-3, stream_s: 3e-3 };
        let mut desk = FrontendProcess::new(costs);
        assert_eq!(desk.receive(10 * MS, 4), 16 * MS);
        assert_eq!(desk.receive(11 * MS, 0), 18 * MS);
        desk.take(15 * MS);
        assert_eq!([desk.write(), desk.write()], [22 * MS, 25 * MS]);
        desk.take(100 * MS);
        assert_eq!(desk.write(), 104 * MS);
    }

    #[test]
    fn none_at_all_delays_nothing() {
        let mut desk = FrontendProcess::new(Frontend::default());
        assert_eq!(desk.receive(MS, 1000), MS);
        desk.take(3 * MS);
        assert_eq!(desk.write(), 3 * MS);
    }
}
