//! Live knobs: flags whose values a running server accepts.

use crate::config::{Config, Value};

/// A flag that a running server accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveKnob {
    /// The name of the flag, without dashes.
    pub flag: &'static str,
    pub range: LiveRange,
}

/// The values of a knob that a running server accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiveRange {
    /// Numbers up to the launched value: buffers and graphs have that size.
    UpToLaunched,
    /// `false`, and the launched value.
    Off,
    /// Every value.
    Any,
}

impl LiveKnob {
    /// Returns whether a server that was launched with one value accepts the other. A value that is not known is
    /// accepted only if it is not known for the launch either, so that the knob is not moved.
    fn accepts(self, launched: Option<&Value>, asked: Option<&Value>) -> bool {
        let (Some(launched), Some(asked)) = (launched, asked) else { return launched == asked };
        launched == asked
            || match self.range {
                LiveRange::Any => true,
                LiveRange::Off => asked.as_bool() == Some(false),
                LiveRange::UpToLaunched => match (launched.as_f64(), asked.as_f64()) {
                    (Some(launched), Some(asked)) => asked <= launched,
                    _ => false,
                },
            }
    }
}

/// Returns the knobs with other values than at the launch. `None` if a server that was launched with `launched` cannot
/// take the values of `asked`. `defaults` are the values of flags that a configuration does not set, if they are known.
#[must_use]
pub fn moved_knobs(knobs: &[LiveKnob], defaults: &Config, launched: &Config, asked: &Config) -> Option<Vec<LiveKnob>> {
    let value = |config: &'_ Config, flag: &str| config.get(flag).or_else(|| defaults.get(flag)).cloned();
    let mut flags: Vec<&str> = launched.iter().chain(asked.iter()).map(|(flag, _)| flag).collect();
    flags.sort_unstable();
    flags.dedup();
    let mut moved = Vec::new();
    for flag in flags {
        let [before, after] = [launched, asked].map(|config| value(config, flag));
        let number = |value: &Option<Value>| value.as_ref().and_then(Value::as_f64);
        // The default of a flag may have another type than the values of a search space.
        if before == after || number(&before).is_some_and(|before| Some(before) == number(&after)) {
            continue;
        }
        let knob = knobs.iter().find(|knob| knob.flag == flag)?;
        if !knob.accepts(before.as_ref(), after.as_ref()) {
            return None;
        }
        moved.push(*knob);
    }
    Some(moved)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOBS: [LiveKnob; 3] = [
        LiveKnob { flag: "max-num-seqs", range: LiveRange::UpToLaunched },
        LiveKnob { flag: "enable-prefix-caching", range: LiveRange::Off },
        LiveKnob { flag: "long-prefill-token-threshold", range: LiveRange::Any },
    ];

    fn moved(launched: &Config, asked: &Config) -> Option<Vec<&'static str>> {
        let defaults = Config::new().with("max-num-seqs", 256_i64).with("enable-prefix-caching", true);
        let moved = moved_knobs(&KNOBS, &defaults, launched, asked)?;
        Some(moved.into_iter().map(|knob| knob.flag).collect())
    }

    #[test]
    fn a_server_accepts_values_up_to_the_launched_one() {
        let seqs = |seqs: i64| Config::new().with("max-num-seqs", seqs);
        assert_eq!(moved(&seqs(64), &seqs(8)), Some(vec!["max-num-seqs"]));
        assert_eq!(moved(&seqs(64), &seqs(64)), Some(Vec::new()));
        assert_eq!(moved(&seqs(64), &seqs(65)), None);
        // The default is 256.
        assert_eq!(moved(&Config::new(), &seqs(64)), Some(vec!["max-num-seqs"]));
        assert_eq!(moved(&seqs(256), &Config::new()), Some(Vec::new()));
        assert_eq!(moved(&seqs(64), &Config::new()), None);
    }

    #[test]
    fn prefix_caching_can_only_be_switched_off() {
        let caching = |on: bool| Config::new().with("enable-prefix-caching", on);
        assert_eq!(moved(&caching(true), &caching(false)), Some(vec!["enable-prefix-caching"]));
        assert_eq!(moved(&Config::new(), &caching(false)), Some(vec!["enable-prefix-caching"]));
        assert_eq!(moved(&caching(false), &caching(true)), None);
    }

    #[test]
    fn other_flags_must_have_the_launched_value() {
        let block = |size: i64| Config::new().with("block-size", size);
        assert_eq!(moved(&block(16), &block(32)), None);
        assert_eq!(moved(&block(16), &Config::new()), None, "the default is not known");
        let threshold = Config::new().with("long-prefill-token-threshold", 512_i64);
        assert_eq!(moved(&block(16), &block(16).merged(&threshold)), None, "its value at the launch is not known");
    }
}
