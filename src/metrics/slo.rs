//! Limits that a good request keeps.

use std::fmt;
use std::str::FromStr;

use crate::load::RequestRecord;

use super::{milliseconds, tpot_ms};

/// A latency with one value per request. ITL is excluded: a request has many values of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Latency {
    Ttft,
    Tpot,
    E2el,
}

/// Upper limit of a latency of a good request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slo {
    pub latency: Latency,
    pub limit_ms: f64,
}

/// The reason that a text is no limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SloError {
    #[error("{0:?} is not of the form NAME:MILLISECONDS")]
    Form(String),
    #[error("{name:?} is not a latency of a request; use ttft, tpot or e2el")]
    Name { name: String },
    #[error("the limit of {name} must be a number of milliseconds of at least 0, not {actual:?}")]
    Limit { name: String, actual: String },
}

impl Latency {
    pub const ALL: [Self; 3] = [Self::Ttft, Self::Tpot, Self::E2el];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ttft => "ttft",
            Self::Tpot => "tpot",
            Self::E2el => "e2el",
        }
    }

    /// Returns this latency of a completed request in milliseconds, if it has one.
    #[must_use]
    pub fn of(self, record: &RequestRecord) -> Option<f64> {
        match self {
            Self::Ttft => record.ttft().map(milliseconds),
            Self::Tpot => tpot_ms(record),
            Self::E2el => record.e2el().map(milliseconds),
        }
    }
}

impl Slo {
    /// Returns whether a completed request keeps the limit. Returns `None` if it has no such latency because it was not
    /// streamed. The TPOT of a reply of one token keeps every limit, as in `vllm bench serve`.
    #[must_use]
    pub fn is_kept(&self, record: &RequestRecord) -> Option<bool> {
        match self.latency.of(record) {
            Some(latency) => Some(latency <= self.limit_ms),
            None => (self.latency == Latency::Tpot && record.streamed).then_some(true),
        }
    }
}

/// Parses `ttft:200`, the form of `vllm bench serve --goodput`.
impl FromStr for Slo {
    type Err = SloError;

    fn from_str(text: &str) -> Result<Self, SloError> {
        let (name, limit) = text.split_once(':').ok_or_else(|| SloError::Form(text.to_owned()))?;
        let latency = Latency::ALL.into_iter().find(|latency| latency.name() == name);
        let latency = latency.ok_or_else(|| SloError::Name { name: name.to_owned() })?;
        let limit_ms = limit.parse().ok().filter(|limit: &f64| limit.is_finite() && *limit >= 0.0);
        let limit_ms = limit_ms.ok_or_else(|| SloError::Limit { name: name.to_owned(), actual: limit.to_owned() })?;
        Ok(Self { latency, limit_ms })
    }
}

impl fmt::Display for Slo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.latency.name(), self.limit_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_and_written_as_vllm_has_them() {
        for text in ["ttft:200", "tpot:50.5", "e2el:0"] {
            assert_eq!(text.parse::<Slo>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn an_invalid_limit_is_refused_with_the_reason() {
        let message = |text: &str| text.parse::<Slo>().unwrap_err().to_string();
        assert_eq!(message("ttft"), "\"ttft\" is not of the form NAME:MILLISECONDS");
        assert_eq!(message("itl:5"), "\"itl\" is not a latency of a request; use ttft, tpot or e2el");
        for limit in ["-1", "nan", "inf", "", "5ms"] {
            assert!(message(&format!("ttft:{limit}")).ends_with(&format!("not {limit:?}")), "{limit}");
        }
    }
}
