//! The load of a study without a file: users in a closed loop, a rate, or the time stamps of a trace.

use super::InitError;
use super::traffic::TrafficSource;
use crate::stats::f64_to_u32;

/// The values of `--concurrency` and `--rate`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct LoadChoice {
    pub concurrency: Option<u32>,
    /// Requests per second; infinite if all are sent at once.
    pub rate: Option<f64>,
}

/// A load, before it is written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ResolvedLoad {
    Closed {
        concurrency: u32,
        requests: u32,
    },
    Open {
        rate: f64,
        requests: u32,
    },
    /// The time stamps of a trace.
    Replay,
}

/// Concurrency for files, which do not suggest one.
const FILE_CONCURRENCY: u32 = 32;

/// A window has this many requests per user, within [`MIN_REQUESTS`] and [`MAX_REQUESTS`]: the first and the last
/// request of a user then weigh little.
const REQUESTS_PER_USER: u32 = 8;
const MIN_REQUESTS: u32 = 96;
const MAX_REQUESTS: u32 = 1024;

/// Seconds of an open load.
const OPEN_SECONDS: f64 = 60.0;

impl LoadChoice {
    pub(super) fn resolve(self, traffic: &TrafficSource) -> Result<ResolvedLoad, InitError> {
        let within = |requests: u32| requests.clamp(MIN_REQUESTS, MAX_REQUESTS);
        match (self.concurrency, self.rate) {
            (Some(_), Some(_)) => Err(InitError::new(
                "--concurrency and --rate exclude each other: the first waits for replies, the second does not",
                "keep one of them",
            )),
            (None, Some(rate)) if rate.is_nan() || rate <= 0.0 => {
                Err(InitError::new(format!("--rate {rate} is not above 0"), "give requests per second, such as 4"))
            }
            (None, Some(rate)) if rate.is_infinite() => Ok(ResolvedLoad::Open { rate, requests: MAX_REQUESTS }),
            (None, Some(rate)) => {
                Ok(ResolvedLoad::Open { rate, requests: within(f64_to_u32((rate * OPEN_SECONDS).ceil())) })
            }
            (None, None) if traffic.has_times() => Ok(ResolvedLoad::Replay),
            (concurrency, None) => {
                let concurrency = concurrency.or(traffic.concurrency()).unwrap_or(FILE_CONCURRENCY);
                let requests = within(concurrency.saturating_mul(REQUESTS_PER_USER)).max(concurrency);
                Ok(ResolvedLoad::Closed { concurrency, requests })
            }
        }
    }
}

impl ResolvedLoad {
    /// Returns the load on a clock that runs `time_scale` times faster.
    pub(super) fn scaled(self, time_scale: f64) -> Self {
        match self {
            Self::Open { rate, requests } => Self::Open { rate: rate * time_scale, requests },
            other => other,
        }
    }

    /// Returns one line for people.
    pub(super) fn describe(self) -> String {
        match self {
            Self::Closed { concurrency, requests } => {
                format!("{concurrency} users at a time, {requests} requests (--concurrency, --rate)")
            }
            Self::Open { rate, requests } if rate.is_infinite() => format!("{requests} requests at once"),
            Self::Open { rate, requests } => format!("{rate} requests per second, {requests} requests"),
            Self::Replay => "the time stamps of the trace".to_owned(),
        }
    }

    /// Returns the keys of `[load]`, as TOML.
    pub(super) fn keys(self) -> String {
        match self {
            Self::Closed { concurrency, requests } => format!("concurrency = {concurrency}\nrequests = {requests}\n"),
            Self::Open { rate, requests } if rate.is_infinite() => format!("rate = \"inf\"\nrequests = {requests}\n"),
            Self::Open { rate, requests } => format!("rate = {rate:?}\nrequests = {requests}\n"),
            Self::Replay => "trace_factor = 1.0\n".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_has_enough_requests_for_each_user() {
        let chat = TrafficSource::find("chat").unwrap();
        let resolve = |concurrency, rate| LoadChoice { concurrency, rate }.resolve(&chat);
        assert_eq!(resolve(None, None).unwrap(), ResolvedLoad::Closed { concurrency: 32, requests: 256 });
        assert_eq!(resolve(Some(1), None).unwrap(), ResolvedLoad::Closed { concurrency: 1, requests: 96 });
        assert_eq!(resolve(Some(2000), None).unwrap(), ResolvedLoad::Closed { concurrency: 2000, requests: 2000 });
        assert_eq!(resolve(None, Some(4.0)).unwrap(), ResolvedLoad::Open { rate: 4.0, requests: 240 });
        assert_eq!(resolve(None, Some(f64::INFINITY)).unwrap().keys(), "rate = \"inf\"\nrequests = 1024\n");
        for rate in [0.0, -1.0, f64::NAN] {
            assert!(resolve(None, Some(rate)).is_err(), "{rate}");
        }
        assert!(resolve(Some(1), Some(1.0)).is_err());
    }
}
