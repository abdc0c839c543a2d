//! Descriptions of the configurations that the rules cannot check because a fact is unknown.

use super::Facts;
use crate::facts::ModelShape;
use crate::space::Space;

/// Lists the checks that need a value of the model's `config.json` which is missing or cannot be read. The entries have
/// the form of [`list_unchecked`].
#[must_use]
pub fn list_unchecked_of_model(model: &ModelShape) -> Vec<String> {
    let unread = model.unusable_keys.iter().map(|key| format!("rules that depend on the model's {key}"));
    unread.chain(model.unchecked_facts().iter().map(ToString::to_string)).collect()
}

/// Lists the unchecked parts of a space and the reasons, one sentence each, without a full stop.
#[must_use]
pub fn list_unchecked(space: &Space, facts: &Facts<'_>) -> Vec<String> {
    let Some(engine) = facts.engine else {
        return vec!["all configurations: this engine has no rules".to_owned()];
    };
    let mut list = list_unchecked_of_model(facts.model);
    list.extend(engine.list_unchecked(space, facts));
    list
}
