//! The outcome of a load: a measurement, or a failure if too many requests failed.

use crate::load::LoadRun;
use crate::stats::to_f64;
use crate::trial::{Failure, FailureKind, Measurement, Outcome};

/// Returns the measurement of a run as its outcome. It is a failure if no request was completed, or if more than the
/// share `max_error_rate` of the requests failed. Numbers that lack too many requests are meaningless.
#[must_use]
pub(crate) fn outcome(measurement: Measurement, run: &LoadRun, max_error_rate: f64) -> Outcome {
    let failures = run.records.iter().filter(|record| record.result.is_err()).count();
    let total = run.records.len();
    if measurement.completed > 0 && to_f64(failures) / to_f64(total.max(1)) <= max_error_rate {
        return Outcome::Measured(measurement);
    }
    let first = run.records.iter().find_map(|record| record.result.as_ref().err());
    let message = if let Some(first) = first {
        format!(
            "{failures} of {total} requests failed, more than the allowed share of {max_error_rate}; first error: {first}"
        )
    } else {
        let window = run.ended.saturating_duration_since(run.began).as_secs_f64();
        format!("no request completed in the measurement window of {window:.1} s: make it longer or the load lower")
    };
    Outcome::Failed(Failure { kind: FailureKind::RequestErrors, message })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{RequestError, RequestRecord};
    use crate::metrics::example::{record, run};

    #[test]
    fn a_run_of_which_too_many_requests_failed_is_a_failure_that_names_the_first_error() {
        let lost = || RequestRecord { result: Err(RequestError::Reset("gone".to_owned())), ..record(0, &[50]) };
        let of = |failed: usize, completed| {
            let records = (0..10).map(|place| if place < failed { lost() } else { record(0, &[50]) }).collect();
            outcome(Measurement { completed, ..Measurement::default() }, &run(records), 0.2)
        };
        assert!(matches!(of(2, 8), Outcome::Measured(_)));
        let lost = "3 of 10 requests failed, more than the allowed share of 0.2; first error: connection lost: gone";
        let failure =
            |message: &str| Outcome::Failed(Failure { kind: FailureKind::RequestErrors, message: message.to_owned() });
        assert_eq!(of(3, 7), failure(lost));
        let none = "no request completed in the measurement window of 0.1 s: make it longer or the load lower";
        assert_eq!(of(0, 0), failure(none));
        assert_eq!(outcome(Measurement::default(), &run(Vec::new()), 0.2), failure(&none.replace("0.1", "0.0")));
    }
}
