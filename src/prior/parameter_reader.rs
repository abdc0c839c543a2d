//! Conversion of a caller's configuration to flags of the engine.

use super::context::OptimizeContext;
use super::context_job::ContextJob;
use super::spelling::{ParameterMeaning, meaning};
use crate::config::{Config, Value};
use crate::flag::FlagTable;
use crate::rule::{self, Facts};
use crate::space::Space;
use crate::stats::f64_to_i64;

/// Assumed share of accepted drafts: n-grams of the prompt, and drafts of a model or of layers trained for it. Central
/// values of reports in papers and vLLM's own blog (0.2 to 0.6 and 0.6 to 0.85).
const NGRAM: f64 = 0.4;
const TRAINED: f64 = 0.7;

/// Assumed number of drafts of a speculating configuration.
const DRAFTS: i64 = 3;

/// Converter from the caller's parameters to the engine's flags.
pub(super) struct ParameterReader<'a> {
    facts: Facts<'a>,
    /// Meanings by the caller's names.
    meanings: Vec<(String, ParameterMeaning)>,
    ignored: Vec<String>,
    /// The context's defaults, by the caller's names.
    defaults: Config,
    /// Flags of every configuration.
    base: Config,
    /// Number of devices for replicas to fill; `None` for an open load.
    devices_to_fill: Option<i64>,
    table: Option<FlagTable>,
}

/// The rule on block sizes that the kernels take.
const KERNEL_BLOCK_RULE: &str = "R15a";

impl<'a> ParameterReader<'a> {
    pub(super) fn new(context: &OptimizeContext, space: &Space, scene: &'a ContextJob) -> Self {
        let table = scene.flag_table();
        let own = space.parameters.iter().map(|parameter| parameter.name.clone());
        let others = space.fixed.iter().chain(context.defaults.iter()).map(|(name, _)| name.to_owned());
        let of = |name: String| meaning(&name, table).map(|found| (name, found));
        let ignored = own.clone().filter(|name| meaning(name, table).is_none()).collect();
        let meanings = own.chain(others).filter_map(of).collect();
        Self {
            facts: scene.facts(),
            meanings,
            ignored,
            defaults: context.defaults.clone(),
            base: scene.base.clone(),
            devices_to_fill: scene.devices_to_fill,
            table,
        }
    }

    /// Returns the parameters without effect in the twin.
    pub(super) fn ignored(&self) -> &[String] {
        &self.ignored
    }

    /// Returns the defaults as a configuration of the space, if they set every active parameter and are in its range.
    pub(super) fn defaults(&self, space: &Space) -> Option<Config> {
        let config = space.assemble(|index| self.defaults.get(&space.parameters[index].name).cloned());
        let is_set = |name: &str| config.get(name).is_some();
        let active = space.assemble(|index| {
            let parameter = &space.parameters[index];
            config.get(&parameter.name).cloned().or_else(|| Some(parameter.domain.decode(0.0)))
        });
        let whole = active.iter().all(|(name, _)| is_set(name));
        let fits = |(name, value): (&str, &Value)| {
            space
                .parameters
                .iter()
                .all(|parameter| parameter.name != name || super::study::holds(&parameter.domain, value))
        };
        (whole && config.iter().all(fits)).then_some(config)
    }

    /// Returns the flags for the engine, and whether it would speculate.
    pub(super) fn read(&self, config: &Config) -> (Config, bool) {
        let whole = self.defaults.merged(config);
        let (mut flags, mut method, mut drafts) = (self.base.clone(), None, None);
        for (name, value) in whole.iter() {
            let Some((_, meaning)) = self.meanings.iter().find(|(known, _)| known == name) else { continue };
            match meaning {
                ParameterMeaning::DraftMethod => method = value.as_str().map(str::to_ascii_lowercase),
                ParameterMeaning::DraftTokens => drafts = value.as_i64(),
                ParameterMeaning::Flag(flag) => {
                    if let Some(value) = self.fitting(flag, value) {
                        flags.set(*flag, value);
                    }
                }
            }
        }
        if let Some(config) = method.and_then(|method| speculation(&method, drafts.unwrap_or(DRAFTS))) {
            flags.set("speculative-config", config);
        }
        if let (Some(devices), None) = (self.devices_to_fill, flags.get("data-parallel-size")) {
            let size = |flag: &str| flags.get_i64(flag).unwrap_or(1).max(1);
            let each = size("tensor-parallel-size").saturating_mul(size("pipeline-parallel-size"));
            if each <= devices && devices / each > 1 {
                flags.set("data-parallel-size", devices / each);
            }
        }
        self.fit_block_size(&mut flags);
        let speculates = flags.get("speculative-config").is_some();
        (flags, speculates)
    }

    /// Replaces a block size that no kernel takes by the nearest that one takes.
    fn fit_block_size(&self, flags: &mut Config) {
        let is_refused =
            |flags: &Config| rule::rejection(flags, &self.facts).is_some_and(|found| found.rule == KERNEL_BLOCK_RULE);
        let Some(size) = flags.get_i64("block-size").filter(|_| is_refused(flags)) else { return };
        let mut others: Vec<i64> = (0..=8).map(|power| 1 << power).collect();
        others.sort_by_key(|other| (other - size).abs());
        let taken = others.into_iter().map(|other| flags.clone().with("block-size", other));
        if let Some(taken) = taken.into_iter().find(|flags| !is_refused(flags)) {
            *flags = taken;
        }
    }

    /// Returns the value in the flag's type. `None` if the flag does not take it: the engine's default stays.
    fn fitting(&self, flag: &str, value: &Value) -> Option<Value> {
        let known = self.table?.find(flag)?;
        let whole = || {
            let number = value.as_f64().filter(|number| number.fract() == 0.0 && number.abs() < 1e15)?;
            Some(Value::Int(f64_to_i64(number)))
        };
        let number = || value.as_f64().map(Value::Float);
        let truth = || Some(Value::Bool(value.as_i64()? != 0));
        [whole(), Some(value.clone()), number(), truth()].into_iter().flatten().find(|value| known.check(value).is_ok())
    }
}

/// Returns `--speculative-config` for a method as users write it, or `None` without speculation.
fn speculation(method: &str, drafts: i64) -> Option<String> {
    if drafts < 1 || ["none", "off", "no", "false", ""].contains(&method) {
        return None;
    }
    let mut config = serde_json::json!({ "num_speculative_tokens": drafts });
    let method = match method {
        "draft" | "draft_model" | "model" => "draft_model",
        "ngram" | "n-gram" | "prompt_lookup" => "ngram",
        other => other,
    };
    config["method"] = method.into();
    if method != "ngram" {
        // Rules require a name. The twin does not use it.
        config["model"] = "draft".into();
    }
    Some(config.to_string())
}

/// Returns the assumed acceptance rate of a configuration's drafts, or `None` without drafts.
pub(super) fn acceptance(flags: &Config) -> Option<f64> {
    let config = flags.get_str("speculative-config").filter(|config| *config != "None");
    let config: Option<serde_json::Value> = config.and_then(|config| serde_json::from_str(config).ok());
    let short = flags.get_str("spec-method").filter(|method| *method != "None");
    if config.is_none() && short.is_none() {
        return None;
    }
    let method = short.or_else(|| config.as_ref()?["method"].as_str());
    let by_prompt = method.is_some_and(|method| method.contains("ngram") || method == "suffix");
    Some(if by_prompt { NGRAM } else { TRAINED })
}
