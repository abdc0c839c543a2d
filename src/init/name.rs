//! The name of a study that is described by options.

use std::fmt::Write;

use super::{StartSource, StudyRequest};
use crate::deployment::Deployment;
use crate::stats::Fnv1a;

/// The longest part of a name that comes from the model.
const MAX_MODEL_CHARS: usize = 40;

impl StudyRequest {
    /// Returns the study's name: the model, the goal, the workload, and a hash of every option except the budget.
    /// Equal options continue one study.
    pub(super) fn study_name(&self, kind: &str) -> String {
        let model = self.model.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        let workload = self.workload.rsplit('/').next().unwrap_or_default();
        let words = [model, self.goal.name(), workload.split('.').next().unwrap_or_default()];
        let allowed = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' };
        let words: Vec<String> = words
            .iter()
            .map(|word| word.chars().take(MAX_MODEL_CHARS).map(allowed).collect::<String>())
            .map(|word| word.trim_matches('.').to_ascii_lowercase())
            .filter(|word| !word.is_empty())
            .collect();
        let Self { goal, limits, workload, load, .. } = self;
        let mut options = format!("{kind:?} {:?} {goal:?} {limits:?} {workload:?} {load:?}", self.model_path());
        if let Some(Deployment { wrapper, program, args, env, .. }) = &self.deployment {
            // Writing to a string cannot fail.
            let _ = write!(options, " {wrapper:?} {program:?} {args:?} {env:?}");
        }
        if self.adapter.is_some() || !self.starts.is_empty() {
            let starts: Vec<_> = self.starts.iter().map(StartSource::identity).collect();
            let _ = write!(options, " {:?} {starts:?}", self.adapter);
        }
        format!("{}-{:06x}", words.join("-"), Fnv1a::new().with(options.as_bytes()).value() & 0x00ff_ffff)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deployment::read_deployment;
    use crate::init::{LoadChoice, TuningGoal};

    #[test]
    fn a_name_depends_on_every_option_except_the_budget() {
        let request = StudyRequest {
            model: "Qwen/Qwen3-8B".to_owned(),
            engine: None,
            goal: TuningGoal::Throughput,
            limits: Vec::new(),
            workload: "chat".to_owned(),
            load: LoadChoice::default(),
            deployment: None,
            adapter: None,
            starts: Vec::new(),
            trials: None,
            time: None,
        };
        let name = request.study_name("vllm");
        assert!(name.starts_with("qwen3-8b-throughput-chat-"), "{name}");
        let longer = StudyRequest { trials: Some(9), time: Some(std::time::Duration::from_secs(9)), ..request.clone() };
        assert_eq!(longer.study_name("vllm"), name);
        let others = [
            StudyRequest { model: "other/Qwen3-8B".to_owned(), ..request.clone() },
            StudyRequest { goal: TuningGoal::Latency, ..request.clone() },
            StudyRequest { limits: vec!["ttft_p99=1s".parse().unwrap()], ..request.clone() },
            StudyRequest { workload: "rag".to_owned(), ..request.clone() },
            StudyRequest { load: LoadChoice { concurrency: Some(7), rate: None }, ..request.clone() },
            StudyRequest { deployment: read_deployment("vllm serve m --max-num-seqs 9").ok(), ..request.clone() },
            StudyRequest { deployment: read_deployment("vllm serve m --max-num-seqs 8").ok(), ..request.clone() },
            StudyRequest { adapter: Some("sql".to_owned()), ..request.clone() },
        ];
        let mut names: Vec<_> = others.iter().map(|other| other.study_name("vllm")).collect();
        names.extend([name, request.study_name("sim")]);
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 10, "{names:?}");
    }
}
