//! What lies between clients and engines: one process that reads requests and writes tokens, one thing after the other.
//!
//! vLLM's API server is one event loop. While it writes the tokens of a step it reads no request, and the other way round;
//! what comes meanwhile waits in the order in which it came. With many streams and short steps it is the bottleneck.

use std::time::Duration;

/// What its work costs, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Frontend {
    /// To parse and check a request and hand it to the engine.
    pub request_s: f64,
    /// To tokenise what makes one token.
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

/// One such process at work.
#[derive(Debug)]
pub(crate) struct Desk {
    costs: Frontend,
    free: Duration,
}

impl Desk {
    pub(crate) fn new(costs: Frontend) -> Self {
        Self { costs, free: Duration::ZERO }
    }

    /// A request that comes at `at`: when the engine has it.
    pub(crate) fn receive(&mut self, at: Duration, prompt_len: u32) -> Duration {
        self.free = self.free.max(at) + self.costs.request(prompt_len);
        self.free
    }

    /// The output of a step that ended at `at`; each token of it is then [written](Self::write).
    pub(crate) fn take(&mut self, at: Duration) {
        self.free = self.free.max(at) + seconds(self.costs.step_s);
    }

    /// The next token: when the client has it.
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
        let mut desk = Desk::new(costs);
        assert_eq!(desk.receive(10 * MS, 4), 16 * MS);
        assert_eq!(desk.receive(11 * MS, 0), 18 * MS);
        desk.take(15 * MS);
        assert_eq!([desk.write(), desk.write()], [22 * MS, 25 * MS]);
        desk.take(100 * MS);
        assert_eq!(desk.write(), 104 * MS);
    }

    #[test]
    fn none_at_all_delays_nothing() {
        let mut desk = Desk::new(Frontend::default());
        assert_eq!(desk.receive(MS, 1000), MS);
        desk.take(3 * MS);
        assert_eq!(desk.write(), 3 * MS);
    }
}
