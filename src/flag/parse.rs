//! From command-line arguments to a configuration, as the engine's own parser reads them.

use super::{BoolStyle, Flag, FlagError, FlagTable, Kind};
use crate::config::{Config, Value};
use crate::facts::EngineVersion;

/// Flags whose integers may be written as `2k` (thousands) or `2K` (1024s): `human_readable_int` in vLLM's `arg_utils`.
const HUMAN_INTEGERS: [&str; 3] = ["max-model-len", "max-num-batched-tokens", "kv-cache-memory-bytes"];

/// The first covered release that shrinks the model's length to what fits.
const FITS_LENGTH: EngineVersion = EngineVersion::new(0, 20, 0);

impl FlagTable {
    /// Reads `--name value`, `--name=value`, `--switch` and `--no-switch`. The last occurrence wins.
    ///
    /// # Errors
    /// When this release does not know a flag or does not take its value.
    pub fn parse(self, arguments: &[String]) -> Result<Config, FlagError> {
        let mut config = Config::new();
        let mut rest = arguments.iter().map(String::as_str).peekable();
        while let Some(argument) = rest.next() {
            let Some(name) = flag_name(argument) else { return Err(FlagError::Positional(argument.to_owned())) };
            let (name, inline) = match name.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                // `-O3` is the one short flag with its value behind it.
                None if argument.starts_with("-O") && name.len() > 1 => ("O", Some(&name[1..])),
                None => (name, None),
            };
            if let Some(flag) = self.negated(name) {
                if let Some(value) = inline {
                    return Err(FlagError::ExplicitBool { name: name.to_owned(), value: value.to_owned() });
                }
                config.set(flag.name, false);
                continue;
            }
            // `--compilation-config.mode=3` sets one field of a JSON flag.
            let flag = self.find_or_abbreviated(name.split('.').next().unwrap_or(name))?;
            if flag.kind() == Kind::Bool {
                config.set(flag.name, boolean(&flag, inline)?);
                continue;
            }
            let value = inline.or_else(|| rest.next_if(|next| flag_name(next).is_none()));
            match value {
                Some(value) => config.set(flag.name, flag.read(value)?),
                // A switch whose form is not recorded.
                None if flag.kind() == Kind::Other => config.set(flag.name, true),
                None => return Err(FlagError::MissingValue(flag.name.to_owned())),
            }
            while flag.kind() == Kind::List && rest.next_if(|next| flag_name(next).is_none()).is_some() {}
        }
        Ok(config)
    }

    /// argparse takes the beginning of a name for the whole, as long as no other name begins with it.
    fn find_or_abbreviated(self, name: &str) -> Result<Flag, FlagError> {
        let dashed = name.replace('_', "-");
        let mut beginning = self.names().filter(|known| known.starts_with(&dashed));
        let exact = self.find(name);
        let abbreviated = || match (beginning.next(), beginning.next()) {
            (Some(only), None) => self.find(only),
            _ => None,
        };
        exact.or_else(abbreviated).ok_or_else(|| self.unknown(name))
    }

    fn negated(self, name: &str) -> Option<Flag> {
        let flag = self.find(name.strip_prefix("no-").or_else(|| name.strip_prefix("no_"))?)?;
        (flag.bool_style() == Some(BoolStyle::Optional)).then_some(flag)
    }
}

/// `-1` is a value; `-tp` and `--x` are flags.
fn flag_name(argument: &str) -> Option<&str> {
    let name = argument.strip_prefix("--").or_else(|| argument.strip_prefix('-'))?;
    name.starts_with(|c: char| c.is_ascii_alphabetic()).then_some(name)
}

fn boolean(flag: &Flag, inline: Option<&str>) -> Result<bool, FlagError> {
    let Some(value) = inline else { return Ok(true) };
    match (flag.bool_style(), value.to_ascii_lowercase().as_str()) {
        (Some(BoolStyle::StoreBoolean), "true") => Ok(true),
        (Some(BoolStyle::StoreBoolean), "false") => Ok(false),
        _ => Err(FlagError::ExplicitBool { name: flag.name.to_owned(), value: value.to_owned() }),
    }
}

impl Flag {
    /// Reads the text of this flag's value.
    ///
    /// # Errors
    /// When the text has the wrong form or is not one of the choices.
    pub fn read(&self, text: &str) -> Result<Value, FlagError> {
        let wrong = |expected| FlagError::WrongType { name: self.name.to_owned(), expected, value: text.to_owned() };
        let value = match self.kind() {
            // As long as fits: the engine writes it as -1.
            Kind::Int if self.name == "max-model-len" && text == "auto" && self.release() >= FITS_LENGTH => {
                Value::Int(-1)
            }
            Kind::Int if HUMAN_INTEGERS.contains(&self.name) => {
                human_integer(text).map(Value::Int).ok_or_else(|| wrong("human_readable_int"))?
            }
            Kind::Int => text.parse().map(Value::Int).map_err(|_| wrong("int"))?,
            Kind::Float => text.parse().map(Value::Float).map_err(|_| wrong("float"))?,
            _ => Value::Text(text.to_owned()),
        };
        self.check_choice(&value)?;
        Ok(value)
    }

    /// # Errors
    /// When the release restricts this flag to choices and `value` is none of them.
    pub fn check_choice(&self, value: &Value) -> Result<(), FlagError> {
        match self.choices() {
            Some(choices) if !choices.contains(value) => Err(FlagError::InvalidChoice {
                name: self.name.to_owned(),
                value: value.to_string(),
                choices: choices.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
            }),
            _ => Ok(()),
        }
    }
}

fn human_integer(text: &str) -> Option<i64> {
    let scales = [('k', 1e3), ('m', 1e6), ('g', 1e9), ('t', 1e12)];
    let last = text.chars().next_back()?;
    let number = &text[..text.len() - last.len_utf8()];
    if let Some((_, scale)) = scales.iter().find(|(suffix, _)| *suffix == last) {
        let value = number.parse::<f64>().ok()? * scale;
        #[expect(clippy::cast_possible_truncation, reason = "vLLM truncates as well")]
        return Some(value as i64);
    }
    if let Some(power) = scales.iter().position(|(suffix, _)| suffix.to_ascii_uppercase() == last) {
        return number.parse::<i64>().ok()?.checked_mul(1024_i64.pow(u32::try_from(power).ok()? + 1));
    }
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const V06: EngineVersion = EngineVersion::new(0, 6, 3);
    const V32: EngineVersion = EngineVersion::new(0, 32, 0);

    fn parse(version: EngineVersion, line: &str) -> Result<Config, FlagError> {
        let arguments: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        FlagTable::for_version(version).parse(&arguments)
    }

    #[test]
    fn numbers_switches_and_negations_are_read() -> Result<(), FlagError> {
        let config = parse(V32, "--max_num_seqs 64 --gpu-memory-utilization=0.8 --no-enable-prefix-caching -tp 2")?;
        let expected = Config::new()
            .with("max-num-seqs", 64_i64)
            .with("gpu-memory-utilization", 0.8)
            .with("enable-prefix-caching", false)
            .with("tensor-parallel-size", 2_i64);
        assert_eq!(config, expected);
        Ok(())
    }

    #[test]
    fn human_integers_are_decimal_in_small_letters_and_binary_in_capitals() -> Result<(), FlagError> {
        let config = parse(V32, "--max-model-len 2K --max-num-batched-tokens 1.5k")?;
        assert_eq!(
            (config.get_i64("max-model-len"), config.get_i64("max-num-batched-tokens")),
            (Some(2048), Some(1500))
        );
        Ok(())
    }

    #[test]
    fn abbreviations_attached_values_and_automatic_lengths_are_read() -> Result<(), FlagError> {
        let config = parse(V32, "--max-num-seq 4 -O3 --kv-cache-memory 100M --max-model-len auto")?;
        assert_eq!((config.get_i64("max-num-seqs"), config.get_i64("max-model-len")), (Some(4), Some(-1)));
        assert_eq!(config.get_i64("kv-cache-memory-bytes"), Some(100 << 20));
        assert_eq!(config.get_str("compilation-config"), Some("3"));
        assert!(parse(V32, "--max-num 4").is_err(), "several flags begin so");
        assert!(parse(V06, "--max-model-len auto").is_err());
        Ok(())
    }

    #[test]
    fn what_argparse_refuses_is_refused() {
        for (line, text) in [
            ("--max-num-seqs many", "argument --max-num-seqs: invalid int value: 'many'"),
            ("--max-num-seqs", "argument --max-num-seqs: expected one argument"),
            ("--kv-cache-dtype int3", "argument --kv-cache-dtype: invalid choice: 'int3' (choose from "),
            ("--enable-chunked-prefill=False", "argument --enable-chunked-prefill: ignored explicit argument 'False'"),
            ("--use-v2-block-manager", "unrecognized arguments: --use-v2-block-manager (last seen in vLLM 0.8.5; "),
            ("seven", "unexpected argument \"seven\""),
        ] {
            let error = parse(V32, line).map_err(|error| error.to_string()).err().unwrap_or_default();
            assert!(error.starts_with(text), "{line}: {error}");
        }
    }

    #[test]
    fn the_v0_era_spells_a_false_chunked_prefill_out() -> Result<(), FlagError> {
        let config = parse(V06, "--enable-chunked-prefill=False --enable-prefix-caching")?;
        assert_eq!(config.get_bool("enable-chunked-prefill"), Some(false));
        assert_eq!(config.get_bool("enable-prefix-caching"), Some(true));
        assert!(parse(V06, "--no-enable-prefix-caching").is_err());
        Ok(())
    }
}
