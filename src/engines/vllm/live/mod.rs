//! Live knobs of vLLM: limits of the scheduler that a class of our own changes while the engine is idle.
//!
//! `setpoint_live.py` is that class. `--scheduler-cls` names it. It is derived from the installed scheduler, and checks that
//! the installed code reads each limit at each use. Seen with 0.32.0; `max_num_active_reqs` and some other limits exist
//! since then, and the helper does without those that a release lacks.

use crate::config::Config;
use crate::engine::LiveHelper;
use crate::facts::EngineVersion;
use crate::trial::{LiveKnob, LiveRange};

/// The first release with `v1/core/sched/async_scheduler.py`.
const FIRST_RELEASE: EngineVersion = EngineVersion::new(0, 10, 1);

const fn knob(flag: &'static str, range: LiveRange) -> LiveKnob {
    LiveKnob { flag, range }
}

static HELPER: LiveHelper = LiveHelper {
    knobs: &[
        knob("max-num-seqs", LiveRange::UpToLaunched),
        knob("max-num-batched-tokens", LiveRange::UpToLaunched),
        knob("long-prefill-token-threshold", LiveRange::Any),
        knob("long-prefill-token-threshold-adaptive", LiveRange::Any),
        knob("scheduler-reserve-full-isl", LiveRange::Any),
        knob("watermark", LiveRange::Any),
        knob("enable-prefix-caching", LiveRange::Off),
    ],
    files: &[("setpoint_live.py", include_str!("setpoint_live.py"))],
    arguments: &["--scheduler-cls", "setpoint_live.LiveScheduler"],
    search_path: Some("PYTHONPATH"),
    accepts,
};

/// Returns the helper for this release. `None` if the study's own arguments name a scheduler or several replicas.
pub(super) fn helper(arguments: &[String], version: EngineVersion) -> Option<&'static LiveHelper> {
    let has = |flag: &str| {
        let is_flag = |word: &String| word.replace('_', "-").split('=').next() == Some(flag);
        arguments.iter().any(is_flag)
    };
    let is_own = ["--scheduler-cls", "--data-parallel-size", "-dp"].into_iter().any(has);
    (version >= FIRST_RELEASE && !is_own).then_some(&HELPER)
}

/// Each data-parallel replica has a scheduler of its own, and a request reaches one of them.
fn accepts(config: &Config) -> bool {
    config.get("scheduler-cls").is_none() && config.get_i64("data-parallel-size").unwrap_or(1) <= 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_study_with_a_scheduler_of_its_own_has_no_helper() {
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let newest = EngineVersion::new(0, 32, 0);
        assert!(helper(&words("--enforce-eager"), newest).is_some());
        assert!(helper(&[], EngineVersion::new(0, 10, 0)).is_none());
        for line in ["--scheduler-cls own.Scheduler", "--scheduler_cls=own.Scheduler", "--data-parallel-size 2"] {
            assert!(helper(&words(line), newest).is_none(), "{line}");
        }
        assert!(accepts(&Config::new().with("data-parallel-size", 1_i64)));
        assert!(!accepts(&Config::new().with("data-parallel-size", 2_i64)));
    }
}
