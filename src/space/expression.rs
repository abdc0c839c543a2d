//! Bounds that depend on the model or on this machine: `model.max_len`, `min(model.max_len, 8192)`, `host.cores`.

use crate::expression::{Expression, NameMatch, NameResolver, is_word_character};
use crate::facts::{Core, EngineVersion, ModelShape};
use crate::stats::to_f64;

/// Evaluates a bound. Its names are facts of the model and of this machine, and its numbers are all that Rust parses,
/// including `inf`.
///
/// # Errors
/// The error names the part that could not be read, the fact that is unknown for this model, or the facts that exist.
pub(super) fn evaluate(text: &str, model: &ModelShape) -> Result<f64, String> {
    let bound = Expression::parse(text, &BoundFacts).map_err(|reason| format!("{reason} in {text:?}"))?;
    bound.value(&|fact: &BoundFact| match fact {
        BoundFact::Model(fact) => fact.value(model),
        BoundFact::Cores => Ok(to_f64(Core::all().len().max(1))),
    })
}

/// A number from a model's `config.json`.
#[derive(Clone, Copy, Debug)]
struct ModelFact {
    name: &'static str,
    read: fn(&ModelShape) -> Option<u64>,
}

/// The facts, by the name that follows `model.`.
const FACTS: [ModelFact; 6] = [
    ModelFact { name: "max_len", read: |model| Some(model.max_model_len(EngineVersion::LATEST)) },
    ModelFact { name: "layers", read: |model| model.layers },
    ModelFact { name: "hidden_size", read: |model| model.hidden_size },
    ModelFact { name: "attention_heads", read: |model| model.attention_heads },
    ModelFact { name: "kv_heads", read: |model| model.kv_heads },
    ModelFact { name: "vocab_size", read: |model| model.vocab_size },
];

impl ModelFact {
    fn value(self, model: &ModelShape) -> Result<f64, String> {
        let value = (self.read)(model).map(to_f64);
        value.ok_or_else(|| format!("model.{} is not in the model's config.json", self.name))
    }
}

/// A number that a bound may name.
#[derive(Clone, Copy, Debug)]
enum BoundFact {
    Model(ModelFact),
    /// The physical cores that this process may use.
    Cores,
}

/// The name of [`BoundFact::Cores`].
const CORES: &str = "host.cores";

/// The names of [`FACTS`], and [`CORES`].
struct BoundFacts;

impl NameResolver for BoundFacts {
    type Name = BoundFact;

    const EXPECTED: &'static str = "a property of the model";

    fn name(&self, text: &str) -> Result<Option<NameMatch<BoundFact>>, String> {
        let word = text.split(|c| !is_word_character(c)).next().unwrap_or_default();
        if word == CORES {
            return Ok(Some(NameMatch { name: BoundFact::Cores, length: word.len() }));
        }
        let Some(name) = word.strip_prefix("model.") else { return Ok(None) };
        let fact = FACTS.into_iter().find(|fact| fact.name == name).ok_or_else(|| {
            let known: Vec<_> = FACTS.iter().map(|fact| format!("model.{}", fact.name)).collect();
            format!("model.{name} is not one of {}", known.join(", "))
        })?;
        Ok(Some(NameMatch { name: BoundFact::Model(fact), length: word.len() }))
    }

    fn number(&self, word: &str) -> Option<f64> {
        word.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_over_the_model_are_evaluated() {
        let model =
            ModelShape::from_json(&serde_json::json!({"max_position_embeddings": 4096, "num_hidden_layers": 4}));
        for (text, expected) in [
            ("model.max_len", Ok(4096.0)),
            ("4 * model.max_len / model.layers", Ok(4096.0)),
            ("min(model.max_len, 2048)", Ok(2048.0)),
            ("max( 2 * model.max_len , min(1, 2) )", Ok(8192.0)),
            ("model.max_len + 1", Ok(4097.0)),
            ("model.max_len-1", Ok(4095.0)),
            ("(model.max_len - 96) * 1e-3", Ok(4.0)),
            ("min(-model.layers, inf)", Ok(-4.0)),
            (" 1e3 / Infinity ", Ok(0.0)),
            ("1e999", Ok(f64::INFINITY)),
            ("model.max_len 1", Err("cannot read \"1\" in \"model.max_len 1\"")),
            ("model.max_len > 1", Err("cannot read \"> 1\" in \"model.max_len > 1\"")),
            ("", Err("expected a number or a property of the model before \"\" in \"\"")),
            ("model.kv_heads", Err("model.kv_heads is not in the model's config.json")),
            ("min(1", Err("expected \",\" before \"\" in \"min(1\"")),
            ("min", Err("expected \"(\" after the function \"min\" in \"min\"")),
            ("lots", Err("\"lots\" is neither a number nor a property of the model in \"lots\"")),
        ] {
            assert_eq!(evaluate(text, &model), expected.map_err(str::to_owned), "{text}");
        }
        assert!(evaluate("nan", &model).is_ok_and(f64::is_nan));
        let nested = format!("{}1{}", "max(2, ".repeat(200), ")".repeat(200));
        assert_eq!(evaluate(&nested, &model), Ok(2.0));
        let deep = evaluate(&"min(".repeat(100_000), &model).unwrap_err();
        assert!(deep.starts_with("more than 256 nested functions"), "{}", &deep[..100]);
        assert!(evaluate("model.size", &model).is_err_and(|error| error.contains("model.kv_heads")));
    }
}
