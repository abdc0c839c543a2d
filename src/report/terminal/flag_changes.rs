//! The flags of a configuration that differ from the engine's defaults, as short as a column requires.

use std::collections::{BTreeMap, BTreeSet};

use console::measure_text_width;

use super::layout::TextLayout;
use crate::config::{Config, Value};
use crate::report::number;

/// Words that most names of flags share, so that they distinguish nothing.
const GENERIC_WORDS: [&str; 7] = ["max", "num", "enable", "use", "gpu", "default", "size"];

/// Columns of a value. Longer ones, such as JSON, are cut.
const MAX_VALUE_COLUMNS: usize = 24;

/// Short names of a space's flags: `batched-tokens` and `batched` for `max-num-batched-tokens`. They are unique within
/// the space.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ShortFlagNames(BTreeMap<String, [String; 2]>);

/// The length of a text of changes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ChangeForm {
    /// `max-num-seqs 256→64`
    FromTo,
    /// `max-num-seqs=64`
    FullName,
    /// `batched-tokens=64`
    ShortName,
    /// `batched=64`
    FirstWord,
}

impl ShortFlagNames {
    #[must_use]
    pub(crate) fn new<'n>(names: impl Iterator<Item = &'n str> + Clone) -> Self {
        let mut uses: BTreeMap<String, usize> = BTreeMap::new();
        for name in names.clone() {
            // Both forms of one flag may be equal.
            for form in BTreeSet::from([short_name(name), first_word(name)]) {
                *uses.entry(form).or_default() += 1;
            }
        }
        let is_unique = |form: &String| uses.get(form) == Some(&1);
        let forms = |name: &str| {
            let short = Some(short_name(name)).filter(is_unique).unwrap_or_else(|| name.to_owned());
            let first = Some(first_word(name)).filter(is_unique).unwrap_or_else(|| short.clone());
            [short, first]
        };
        Self(names.map(|name| (name.to_owned(), forms(name))).collect())
    }

    fn of<'n>(&'n self, name: &'n str, form: ChangeForm) -> &'n str {
        match (self.0.get(name), form) {
            (Some([short, _]), ChangeForm::ShortName) => short,
            (Some([_, first]), ChangeForm::FirstWord) => first,
            _ => name,
        }
    }

    /// Describes the flags of `config` that differ from `defaults`, in the longest form that fits. If none fits, the
    /// largest changes are shown and the others counted: `seqs=64, +2`. Empty without a difference.
    pub(crate) fn changes(&self, config: &Config, defaults: &Config, layout: TextLayout, columns: usize) -> String {
        let changed: Vec<_> = config.iter().filter(|(name, value)| defaults.get(name) != Some(value)).collect();
        let items = |form| changed.iter().map(move |(name, value)| self.item(name, value, defaults, form, layout));
        for form in [ChangeForm::FromTo, ChangeForm::FullName, ChangeForm::ShortName, ChangeForm::FirstWord] {
            let text = items(form).collect::<Vec<_>>().join(", ");
            if measure_text_width(&text) <= columns {
                return text;
            }
        }
        let items: Vec<_> = items(ChangeForm::FirstWord).collect();
        let mut by_size: Vec<_> = (0..items.len()).collect();
        let size =
            |index: usize| changed.get(index).map_or(0.0, |(name, value)| change_size(value, defaults.get(name)));
        by_size.sort_by(|a, b| size(*b).total_cmp(&size(*a)));
        for shown in (1..items.len()).rev() {
            let largest: BTreeSet<_> = by_size.iter().take(shown).collect();
            let kept: Vec<_> =
                (0..items.len()).filter(|index| largest.contains(index)).map(|index| &*items[index]).collect();
            let text = format!("{}, +{}", kept.join(", "), items.len() - shown);
            if measure_text_width(&text) <= columns {
                return text;
            }
        }
        layout.cut(&items.join(", "), columns).into_owned()
    }

    fn item(&self, name: &str, value: &Value, defaults: &Config, form: ChangeForm, layout: TextLayout) -> String {
        let shown = self.of(name, form);
        if let Some(is_on) = value.as_bool() {
            return format!("{}{shown}", if is_on { '+' } else { '-' });
        }
        let default = defaults.get(name).filter(|_| form == ChangeForm::FromTo);
        let Some(default) = default else { return format!("{shown}={}", short_value(value, None, layout)) };
        let (from, to) = (short_value(default, Some(value), layout), short_value(value, Some(default), layout));
        format!("{shown} {from}{}{to}", layout.arrow())
    }
}

/// Removes generic words from a flag's name, as long as one word is left.
fn short_name(name: &str) -> String {
    let words: Vec<_> = name.split('-').filter(|word| !GENERIC_WORDS.contains(word)).collect();
    if words.is_empty() { name.to_owned() } else { words.join("-") }
}

/// Returns the first word of a flag's name that is not generic.
fn first_word(name: &str) -> String {
    short_name(name).split('-').next().unwrap_or(name).to_owned()
}

/// Returns the size of a change: the logarithm of the ratio for numbers, so that flags of all scales compare. Other
/// changes count like a factor of two.
fn change_size(value: &Value, default: Option<&Value>) -> f64 {
    let ratio = value.as_f64().zip(default.and_then(Value::as_f64)).map(|(to, from)| (to / from).ln().abs());
    ratio.filter(|size| size.is_finite()).unwrap_or(std::f64::consts::LN_2)
}

/// Rounds a fraction to three digits, unless it then looks like `other`. Cuts a long text.
fn short_value(value: &Value, other: Option<&Value>, layout: TextLayout) -> String {
    let rounded = |value: &Value| match value {
        Value::Float(fraction) if fraction.fract() != 0.0 => {
            number(*fraction).trim_end_matches('0').trim_end_matches('.').to_owned()
        }
        value => value.to_string(),
    };
    let short = rounded(value);
    let text = if other.is_some_and(|other| rounded(other) == short) { value.to_string() } else { short };
    layout.cut(&text, MAX_VALUE_COLUMNS).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: TextLayout = TextLayout { width: 80, wraps_sentences: true, is_utf8: true };

    fn names() -> ShortFlagNames {
        let names =
            ["max-num-seqs", "enable-prefix-caching", "gpu-memory-utilization", "max-num-batched-tokens", "block-size"];
        ShortFlagNames::new(names.into_iter())
    }

    #[test]
    fn short_names_lose_generic_words_and_stay_unique() {
        let names = ShortFlagNames::new(["max-num-seqs", "num-seqs", "enable-chunked-prefill", "max-num"].into_iter());
        let all = ["max-num-seqs", "num-seqs", "enable-chunked-prefill", "max-num", "other"];
        let short = all.map(|name| names.of(name, ChangeForm::ShortName));
        assert_eq!(short, ["max-num-seqs", "num-seqs", "chunked-prefill", "max-num", "other"]);
        let first = all.map(|name| names.of(name, ChangeForm::FirstWord));
        assert_eq!(first, ["max-num-seqs", "num-seqs", "chunked", "max", "other"]);
    }

    #[test]
    fn changes_take_the_longest_form_that_fits() {
        let defaults = Config::new().with("max-num-seqs", 256_i64).with("block-size", 16_i64);
        let config = Config::new()
            .with("max-num-seqs", 64_i64)
            .with("enable-prefix-caching", true)
            .with("block-size", 16_i64)
            .with("gpu-memory-utilization", 0.97981);
        let forms: Vec<_> = [90, 70, 50, 40, 30, 20, 12]
            .iter()
            .map(|columns| names().changes(&config, &defaults, LAYOUT, *columns))
            .collect();
        assert_eq!(
            forms,
            [
                "+enable-prefix-caching, gpu-memory-utilization=0.98, max-num-seqs 256→64",
                "+enable-prefix-caching, gpu-memory-utilization=0.98, max-num-seqs=64",
                "+prefix-caching, memory-utilization=0.98, seqs=64",
                "+prefix, memory=0.98, seqs=64",
                "+prefix, memory=0.98, seqs=64",
                "+prefix, seqs=64, +1",
                "seqs=64, +2",
            ]
        );
        let ascii = TextLayout { is_utf8: false, ..LAYOUT };
        assert!(names().changes(&config, &defaults, ascii, 90).ends_with("max-num-seqs 256->64"));
        assert_eq!(names().changes(&defaults, &defaults, LAYOUT, 80), "");
    }

    #[test]
    fn values_that_differ_only_in_late_digits_are_not_rounded() {
        let (from, to) = (Config::new().with("a", 0.9), Config::new().with("a", 0.900_04));
        assert_eq!(ShortFlagNames::default().changes(&to, &from, LAYOUT, 80), "a 0.9→0.90004");
    }
}
