//! Bounds that depend on the model: `model.max_len`, `4 * model.max_len`, `min(model.max_len, 8192)`.

use crate::facts::{EngineVersion, ModelShape};
use crate::stats::to_f64;

/// The value of a bound. Grammar: `product = term (("*" | "/") term)*`,
/// `term = number | "model." name | ("min" | "max") "(" product "," product ")"`.
///
/// # Errors
/// Says what could not be read, which fact is unknown for this model, or which facts exist.
pub(super) fn evaluate(text: &str, model: &ModelShape) -> Result<f64, String> {
    let mut parser = Parser { rest: text.trim(), model };
    let value = parser.product()?;
    if parser.rest.is_empty() { Ok(value) } else { Err(format!("cannot read {:?} in {text:?}", parser.rest)) }
}

struct Parser<'t> {
    rest: &'t str,
    model: &'t ModelShape,
}

impl Parser<'_> {
    fn product(&mut self) -> Result<f64, String> {
        let mut value = self.term()?;
        loop {
            if self.eat('*') {
                value *= self.term()?;
            } else if self.eat('/') {
                value /= self.term()?;
            } else {
                return Ok(value);
            }
        }
    }

    fn term(&mut self) -> Result<f64, String> {
        let end = self.rest.find(|c: char| !(c.is_ascii_alphanumeric() || "._".contains(c)));
        let (word, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest.trim_start();
        match word {
            "min" | "max" => {
                self.expect('(')?;
                let first = self.product()?;
                self.expect(',')?;
                let second = self.product()?;
                self.expect(')')?;
                Ok(if word == "min" { first.min(second) } else { first.max(second) })
            }
            _ => match word.strip_prefix("model.") {
                Some(name) => fact(self.model, name),
                None => word.parse().map_err(|_| format!("{word:?} is neither a number nor a fact of the model")),
            },
        }
    }

    fn eat(&mut self, symbol: char) -> bool {
        match self.rest.strip_prefix(symbol) {
            Some(rest) => {
                self.rest = rest.trim_start();
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, symbol: char) -> Result<(), String> {
        if self.eat(symbol) { Ok(()) } else { Err(format!("expected {symbol:?} before {:?}", self.rest)) }
    }
}

fn fact(model: &ModelShape, name: &str) -> Result<f64, String> {
    let facts = [
        ("max_len", Some(model.max_model_len(EngineVersion::LATEST))),
        ("layers", model.layers),
        ("hidden_size", model.hidden_size),
        ("attention_heads", model.attention_heads),
        ("kv_heads", model.kv_heads),
        ("vocab_size", model.vocab_size),
    ];
    match facts.iter().find(|(known, _)| *known == name) {
        Some((_, Some(value))) => Ok(to_f64(*value)),
        Some((_, None)) => Err(format!("the model's config.json does not say model.{name}")),
        None => {
            let known: Vec<_> = facts.iter().map(|(known, _)| format!("model.{known}")).collect();
            Err(format!("model.{name} is not one of {}", known.join(", ")))
        }
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
            ("model.max_len + 1", Err("cannot read \"+ 1\" in \"model.max_len + 1\"")),
            ("model.kv_heads", Err("the model's config.json does not say model.kv_heads")),
            ("min(1", Err("expected ',' before \"\"")),
            ("lots", Err("\"lots\" is neither a number nor a fact of the model")),
        ] {
            assert_eq!(evaluate(text, &model), expected.map_err(str::to_owned), "{text}");
        }
        assert!(evaluate("model.size", &model).is_err_and(|error| error.contains("model.kv_heads")));
    }
}
