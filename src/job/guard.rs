//! `[guard]`: the check of flags that may change the output.

use std::collections::BTreeSet;

use serde_json::{Value as Json, json};

use super::{EngineJob, FirstPoint, SpaceJob};
use crate::document::{DocumentError, Section};
use crate::objective::Objective;
use crate::trial::Measurement;

/// The keys of `[guard]`.
#[derive(Clone, Debug, PartialEq)]
struct GuardKeys {
    enabled: bool,
    min_agreement: f64,
    /// The flags that the study file names.
    named: Vec<String>,
}

/// The guard of a study.
#[derive(Clone, Debug, PartialEq)]
pub struct GuardJob {
    /// The flags that may change the output and that differ between the study's configurations. Empty if the guard is
    /// off.
    pub flags: Vec<String>,
    /// The least agreement, as a share of the baseline's own, of a configuration that differs significantly. 1 admits no
    /// significant difference, 0 every one.
    pub min_agreement: f64,
    keys: GuardKeys,
}

/// Returns the flags that differ between the configurations of a study.
pub(super) fn varied_flags<'p>(space: &SpaceJob, points: impl Iterator<Item = &'p FirstPoint>) -> BTreeSet<String> {
    let mut varied: BTreeSet<_> = space.space.parameters.iter().map(|parameter| parameter.name.clone()).collect();
    varied.extend(points.flat_map(|point| point.flags.iter()).map(|(name, _)| name.to_owned()));
    varied
}

impl Default for GuardKeys {
    fn default() -> Self {
        Self { enabled: true, min_agreement: 1.0, named: Vec::new() }
    }
}

impl GuardKeys {
    fn read(section: &Section<'_>, varied: &BTreeSet<String>) -> Result<Self, DocumentError> {
        let default = Self::default();
        let keys = Self {
            enabled: section.optional_or("enabled", default.enabled)?,
            min_agreement: section.optional_or("min_agreement", default.min_agreement)?,
            named: section.optional("flags")?.unwrap_or_default(),
        };
        if !(0.0..=1.0).contains(&keys.min_agreement) {
            let problem = format!("{} is not a share from 0 to 1 of the baseline's own agreement", keys.min_agreement);
            return Err(section.error("min_agreement", problem, Some("1 admits no loss, 0 every loss".to_owned())));
        }
        if let Some(unknown) = keys.named.iter().find(|name| !varied.contains(*name)) {
            let problem = format!("{unknown:?} has one value only in this study");
            let hint = "name parameters of the search space, or flags of the deployment".to_owned();
            return Err(section.error("flags", problem, Some(hint)));
        }
        Ok(keys)
    }
}

impl GuardJob {
    /// Reads the section `guard` of a study file, which may be absent.
    pub(super) fn read(
        root: &Section<'_>,
        engine: &EngineJob,
        varied: &BTreeSet<String>,
        objective: &Objective,
    ) -> Result<Self, DocumentError> {
        let keys = root.optional_section("guard", |section| GuardKeys::read(section, varied))?.unwrap_or_default();
        let of_engine = engine.engine.lossy_flags().iter().map(|name| (*name).to_owned());
        let lossy = of_engine.filter(|name| varied.contains(name)).chain(keys.named.iter().cloned());
        let flags: BTreeSet<_> = lossy.filter(|_| keys.enabled).collect();
        let asks = objective.metric == Measurement::GREEDY_AGREEMENT
            || objective.constraints.iter().any(|limit| limit.metric == Measurement::GREEDY_AGREEMENT);
        if asks && flags.is_empty() {
            let problem = format!("checks no flag, but the objective uses {}", Measurement::GREEDY_AGREEMENT);
            let hint = "name the flags that may change the output in guard.flags, or remove the metric".to_owned();
            return Err(root.error("guard", problem, Some(hint)));
        }
        Ok(Self { flags: flags.into_iter().collect(), min_agreement: keys.min_agreement, keys })
    }

    /// Returns a guard that checks nothing.
    pub(super) fn off() -> Self {
        Self { flags: Vec::new(), min_agreement: 1.0, keys: GuardKeys::default() }
    }

    /// Returns the part that decides the meaning of a measurement; `None` if it has its default.
    pub(super) fn definition(&self) -> Option<Json> {
        let GuardKeys { enabled, min_agreement, named } = &self.keys;
        let whole = || json!({"enabled": enabled, "min_agreement": min_agreement, "flags": named});
        (self.keys != GuardKeys::default()).then(whole)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::document::Document;
    use crate::job::Job;

    fn guard(parameter: &str, section: &str) -> Result<GuardJob, String> {
        let text = format!(
            "[study]\nname = 'a'\n[engine]\nkind = 'sim'\n[model]\npath = 'model'\n[space.parameters.{parameter}]\n\
             kind = 'categorical'\nchoices = ['auto', 'fp8']\n[workload]\nkind = 'random'\ninput_len = 16\n\
             output_len = 4\n[load]\nconcurrency = 4\nrequests = 8\n[objective]\nmaximize = 'output_throughput'\n\
             [budget]\ntrials = 9\n{section}"
        );
        let directory = tempfile::tempdir().unwrap();
        let model = directory.path().join("model");
        std::fs::create_dir(&model).unwrap();
        let shape = r#"{"architectures": ["Qwen2ForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 4, "vocab_size": 1000, "intermediate_size": 128, "max_position_embeddings": 1024}"#;
        std::fs::write(model.join("config.json"), shape).unwrap();
        let file = directory.path().join("study.toml");
        let read = |root: &Section<'_>| Job::resolve(root, Path::new(&file));
        let job = Document::from_text(&file, text.as_str()).parse(read);
        job.map(|job| job.guard).map_err(|error| format!("{}: {}", error.key, error.problem))
    }

    #[test]
    fn the_guard_is_on_if_a_flag_of_the_space_may_change_the_output() {
        assert_eq!(guard("kv-cache-dtype", "").unwrap().flags, ["kv-cache-dtype"]);
        assert_eq!(guard("block-size", "").unwrap().flags, [] as [&str; 0]);
        assert_eq!(guard("kv-cache-dtype", "[guard]\nenabled = false").unwrap().flags, [] as [&str; 0]);
        let named = guard("block-size", "[guard]\nflags = ['block-size']\nmin_agreement = 0.8").unwrap();
        assert_eq!((named.flags, named.min_agreement), (vec!["block-size".to_owned()], 0.8));
    }

    #[test]
    fn only_a_guard_with_keys_belongs_to_the_definition() {
        assert_eq!(guard("kv-cache-dtype", "").unwrap().definition(), None);
        let kept = guard("kv-cache-dtype", "[guard]\nmin_agreement = 0.5").unwrap().definition();
        assert_eq!(kept.unwrap()["min_agreement"], 0.5);
    }

    #[test]
    fn mistakes_are_refused() {
        let problem = |section| guard("block-size", section).unwrap_err();
        assert!(problem("[guard]\nmin_agreement = 95").starts_with("guard.min_agreement: 95 is not a share"));
        assert!(problem("[guard]\nflags = ['dtype']").starts_with("guard.flags: \"dtype\" has one value only"));
    }
}
