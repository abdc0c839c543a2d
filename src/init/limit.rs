//! A limit on latency from the command line, such as `ttft_p99=500ms`.

use std::str::FromStr;
use std::time::Duration;

use super::InitError;
use crate::document::nearest;
use crate::trial::Measurement;

/// The value of `--slo`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LatencyLimit {
    /// `ttft`, `tpot`, `itl` or `e2el`.
    latency: &'static str,
    /// `mean`, `median`, or a percentile such as `p99`. `None` if only the latency is given.
    statistic: Option<String>,
    pub(super) ms: f64,
}

/// Latencies of a reply, as `vllm bench serve` defines them.
const LATENCIES: [&str; 4] = ["ttft", "tpot", "itl", "e2el"];

/// The statistic of a limit that names none.
const DEFAULT_STATISTIC: &str = "p99";

impl LatencyLimit {
    /// Creates a limit on the 99th percentile.
    pub(super) fn p99(latency: &'static str, ms: f64) -> Self {
        Self { latency, statistic: Some(DEFAULT_STATISTIC.to_owned()), ms }
    }

    /// Returns the limit on a clock that runs `time_scale` times faster.
    pub(super) fn scaled(&self, time_scale: f64) -> Self {
        Self { ms: self.ms / time_scale, ..self.clone() }
    }

    /// Returns the name of the limited metric.
    pub(super) fn metric(&self) -> String {
        format!("{}_{}_ms", self.statistic.as_deref().unwrap_or(DEFAULT_STATISTIC), self.latency)
    }

    /// Returns the limit on each request, in the form of `load.goodput`. The statistic does not apply to one request.
    pub(super) fn for_goodput(&self) -> Result<String, InitError> {
        if self.latency == "itl" {
            return Err(InitError::new(
                "itl is a gap between two tokens and no latency of a request; the goal goodput takes ttft, tpot or e2el",
                "use tpot, the mean gap of a request",
            ));
        }
        Ok(format!("{}:{}", self.latency, self.ms))
    }
}

impl FromStr for LatencyLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const FORM: &str = "expected a latency, a statistic and a limit, such as ttft_p99=500ms";
        let (name, limit) = text.split_once('=').ok_or_else(|| format!("{text:?} has no limit; {FORM}"))?;
        let (latency, statistic) = match name.split_once('_') {
            Some((latency, statistic)) => (latency, Some(statistic.to_owned())),
            None => (name, None),
        };
        let Some(known) = LATENCIES.into_iter().find(|known| *known == latency) else {
            let near = nearest(latency, LATENCIES).map(|near| format!("; did you mean {near}?"));
            let near = near.unwrap_or_default();
            return Err(format!("{latency:?} is not a latency; there are {}{near}", LATENCIES.join(", ")));
        };
        let duration = limit.parse::<jiff::SignedDuration>().ok().and_then(|limit| Duration::try_from(limit).ok());
        let Some(duration) = duration.filter(|duration| !duration.is_zero()) else {
            return Err(format!("{limit:?} is not a duration above 0; write it with its unit, such as 500ms or 2s"));
        };
        let parsed = Self { latency: known, statistic, ms: duration.as_secs_f64() * 1e3 };
        if !Measurement::is_known(&parsed.metric()) {
            let statistic = parsed.statistic.unwrap_or_default();
            return Err(format!("{statistic:?} is not a statistic; use mean, median, p50, p90, p95 or p99"));
        }
        Ok(parsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_has_a_latency_a_statistic_and_a_duration_with_its_unit() {
        let read = |text: &str| text.parse::<LatencyLimit>().map(|limit| (limit.metric(), limit.ms));
        assert_eq!(read("ttft_p99=500ms").unwrap(), ("p99_ttft_ms".to_owned(), 500.0));
        assert_eq!(read("tpot_mean=0.05s").unwrap(), ("mean_tpot_ms".to_owned(), 50.0));
        assert_eq!(read("e2el=30s").unwrap(), ("p99_e2el_ms".to_owned(), 30_000.0));
        for (text, expected) in [
            ("ttft", "has no limit"),
            ("tftt_p99=1s", "there are ttft, tpot, itl, e2el; did you mean ttft?"),
            ("ttft_p99=500", "write it with its unit"),
            ("ttft_p99=-1s", "not a duration above 0"),
            ("ttft_p42=1s", "\"p42\" is not a statistic"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
