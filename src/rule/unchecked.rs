//! What the rules cannot judge, because a fact is not known.

use super::Facts;
use crate::facts::ModelShape;
use crate::space::Space;

/// What is not checked because `config.json` does not say it, as [`unchecked`] says it.
#[must_use]
pub fn unchecked_of_model(model: &ModelShape) -> Vec<String> {
    let unread = model.unread.iter().map(|key| format!("what depends on the model's {key}"));
    unread.chain(model.unchecked().iter().map(ToString::to_string)).collect()
}

/// What of a space is not checked with these facts, and why: one sentence each, without a full stop.
#[must_use]
pub fn unchecked(space: &Space, facts: &Facts<'_>) -> Vec<String> {
    let Some(engine) = facts.engine else {
        return vec!["any configuration: no rules are known for this engine".to_owned()];
    };
    let mut list = unchecked_of_model(facts.model);
    list.extend(engine.unchecked(space, facts));
    list
}
