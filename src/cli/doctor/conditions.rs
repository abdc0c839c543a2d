//! Conditions of the host and its GPUs that change measurements.

use super::{CheckResult, CheckState};
use crate::facts::{ConditionKind, GpuSelection, MeasurementCondition, NVML_TIMEOUT, call_nvml, read_gpu_conditions};

pub(super) fn check() -> Vec<CheckResult> {
    let mut conditions = MeasurementCondition::of_host();
    let visible = GpuSelection::Visible(std::env::var("CUDA_VISIBLE_DEVICES").ok());
    let read =
        call_nvml(NVML_TIMEOUT, "reading the devices' settings", move |nvml| Ok(read_gpu_conditions(nvml, &visible)));
    // The error of an unreadable driver is dropped here. The check in the module `device` reports it.
    conditions.extend(read.unwrap_or_default());
    conditions.into_iter().map(check_result).collect()
}

fn check_result(condition: MeasurementCondition) -> CheckResult {
    let MeasurementCondition { kind, state, distorts, effect, remedy } = condition;
    let subject = match kind {
        ConditionKind::GpuPersistence => "persistence mode ",
        ConditionKind::HugePages => "transparent huge pages ",
        // The states of all other kinds name their subject.
        _ => "",
    };
    let text = format!("{subject}{state}: {effect}");
    CheckResult {
        what: kind.name(),
        state: if distorts { CheckState::Warn } else { CheckState::Ok },
        text,
        hint: remedy,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_that_distorts_is_a_warning_with_its_effect_and_a_remedy() {
        let condition = MeasurementCondition {
            kind: ConditionKind::HugePages,
            state: "always".to_owned(),
            distorts: true,
            effect: "pages are merged".to_owned(),
            remedy: Some("choose madvise".to_owned()),
        };
        let line = |condition| anstream::adapter::strip_str(&check_result(condition).line()).to_string();
        let warning = "warn  huge-pages   transparent huge pages always: pages are merged; choose madvise";
        assert_eq!(line(condition.clone()), warning);
        let fine = MeasurementCondition { kind: ConditionKind::Boost, distorts: false, remedy: None, ..condition };
        assert_eq!(line(fine), "ok    boost        always: pages are merged");
    }

    #[test]
    fn this_host_is_looked_at() {
        let named: Vec<_> = check().iter().map(|result| result.what).collect();
        for what in ["swap", "load", "others"] {
            assert!(named.contains(&what), "{named:?}");
        }
    }
}
