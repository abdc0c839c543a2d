//! The front end: the API server's process between clients and engines. It reads requests and writes tokens, one at a
//! time.
//!
//! vLLM's API server is one event loop. It reads no request while it writes the tokens of a step, and vice versa. Work
//! that arrives meanwhile waits in the order of its arrival. With many streams and short steps this loop is the
//! bottleneck.

use std::time::Duration;

/// Costs of the front end's work, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Frontend {
    /// Per request: parse and check it and pass it to the engine.
    pub request_s: f64,
    /// Per prompt token: tokenise its text.
    pub prompt_token_s: f64,
    /// Per step: receive its output from the engine.
    pub step_s: f64,
    /// Per delivery of tokens to a client: write it to the stream.
    pub stream_s: f64,
}

impl Frontend {
    /// Returns the costs on a machine that takes `factor` times as long.
    pub(crate) fn slowed(self, factor: f64) -> Self {
        let Self { request_s, prompt_token_s, step_s, stream_s } = self;
        Self {
            request_s: request_s * factor,
            prompt_token_s: prompt_token_s * factor,
            step_s: step_s * factor,
            stream_s: stream_s * factor,
        }
    }

    fn request(&self, prompt_len: u32) -> Duration {
        seconds(self.request_s + self.prompt_token_s * f64::from(prompt_len))
    }
}

/// The state of one front end.
#[derive(Debug)]
pub(crate) struct FrontendProcess {
    costs: Frontend,
    /// The factor on the costs at present.
    slowness: f64,
    /// When its work so far is done.
    free_at: Duration,
}

impl FrontendProcess {
    pub(crate) fn new(costs: Frontend) -> Self {
        Self { costs, slowness: 1.0, free_at: Duration::ZERO }
    }

    /// Sets the factor on the costs of all later work.
    pub(crate) fn set_slowness(&mut self, slowness: f64) {
        self.slowness = slowness;
    }

    fn present_costs(&self) -> Frontend {
        self.costs.slowed(self.slowness)
    }

    /// Reads a request that arrives at `at`. Returns when the engine receives it.
    pub(crate) fn receive(&mut self, at: Duration, prompt_len: u32) -> Duration {
        self.free_at = self.free_at.max(at) + self.present_costs().request(prompt_len);
        self.free_at
    }

    /// Receives the output of a step that ended at `at`. Its tokens are then written one by one ([`Self::write`]).
    pub(crate) fn receive_output(&mut self, at: Duration) {
        self.free_at = self.free_at.max(at) + seconds(self.present_costs().step_s);
    }

    /// Writes the next delivery. Returns when the client has received it.
    pub(crate) fn write(&mut self) -> Duration {
        self.free_at += seconds(self.present_costs().stream_s);
        self.free_at
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
        desk.receive_output(15 * MS);
        assert_eq!([desk.write(), desk.write()], [22 * MS, 25 * MS]);
        desk.receive_output(100 * MS);
        assert_eq!(desk.write(), 104 * MS);
    }

    #[test]
    fn a_slower_machine_takes_longer_from_then_on() {
        let costs = Frontend { request_s: 2e-3, prompt_token_s: 1e-3, step_s: 1e-3, stream_s: 3e-3 };
        let mut desk = FrontendProcess::new(costs);
        assert_eq!(desk.receive(10 * MS, 4), 16 * MS);
        desk.set_slowness(2.0);
        assert_eq!(desk.receive(20 * MS, 4), 32 * MS);
        desk.receive_output(32 * MS);
        assert_eq!(desk.write(), 40 * MS);
    }

    #[test]
    fn none_at_all_delays_nothing() {
        let mut desk = FrontendProcess::new(Frontend::default());
        assert_eq!(desk.receive(MS, 1000), MS);
        desk.receive_output(3 * MS);
        assert_eq!(desk.write(), 3 * MS);
    }
}
