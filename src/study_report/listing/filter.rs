//! Conditions on trials: comparisons of numbers with arithmetic, and equality of texts.

use super::ListedMetrics;
use super::column::{KnownColumns, TrialCell, TrialColumn};
use crate::expression::{Comparison, NameMatch, NameResolver, begins_as_number, is_word_character};
use crate::store::ListedTrial;
use crate::study_report::question::QuestionError;

/// A condition. It does not hold for a trial that lacks one of its values.
#[derive(Debug)]
pub(super) struct TrialFilter {
    condition: Condition,
    columns: Vec<TrialColumn>,
}

#[derive(Debug)]
enum Condition {
    /// Such as `p99_ttft_ms < 2 * median_ttft_ms`.
    Numbers(Comparison<TrialColumn>),
    /// Such as `state == failed`.
    Text { column: TrialColumn, text: String, is_equal: bool },
}

/// A name without a number in a trial.
struct NoNumber;

impl TrialFilter {
    /// Parses a condition.
    ///
    /// # Errors
    /// For an unknown name, with the nearest one, and for text that is no condition.
    pub(super) fn parse(text: &str, known: &KnownColumns) -> Result<Self, QuestionError> {
        if let Some(condition) = text_condition(text, known) {
            let columns = vec![condition.0.clone()];
            let (column, text, is_equal) = condition;
            return Ok(Self { condition: Condition::Text { column, text, is_equal }, columns });
        }
        let names = ColumnNames { known, used: std::cell::RefCell::default() };
        let comparison = Comparison::parse(text, &names).map_err(|reason| {
            // The resolver's own errors have their hint after a line end.
            let (reason, hint) = reason.split_once('\n').unwrap_or((
                &reason,
                "write a comparison such as 'max-num-seqs >= 64', 'p99_ttft_ms < 500' or 'state == failed'",
            ));
            QuestionError::new(format!("cannot read the condition {text:?}: {reason}")).with_hint(hint)
        })?;
        Ok(Self { condition: Condition::Numbers(comparison), columns: names.used.into_inner() })
    }

    /// Returns the columns that the condition reads.
    pub(super) fn columns(&self) -> &[TrialColumn] {
        &self.columns
    }

    pub(super) fn holds(&self, trial: &ListedTrial, metrics: &ListedMetrics) -> bool {
        match &self.condition {
            Condition::Numbers(comparison) => {
                let value_of = |column: &TrialColumn| column.number(trial, metrics).ok_or(NoNumber);
                comparison.holds(&value_of).unwrap_or(false)
            }
            Condition::Text { column, text, is_equal } => {
                let is_same = match column.cell(trial, metrics) {
                    TrialCell::Empty => return false,
                    TrialCell::Text(own) => own == *text,
                    TrialCell::Bool(own) => own.to_string() == *text,
                    TrialCell::Number(own) => own.to_string() == *text,
                };
                is_same == *is_equal
            }
        }
    }
}

/// Returns the parts of `NAME == TEXT` and `NAME != TEXT`. `None` if the right side is a number or a name: then it is a
/// comparison of numbers.
fn text_condition(text: &str, known: &KnownColumns) -> Option<(TrialColumn, String, bool)> {
    let (name, right, is_equal) = match (text.split_once("=="), text.split_once("!=")) {
        (Some((name, right)), None) => (name, right, true),
        (None, Some((name, right))) => (name, right, false),
        _ => return None,
    };
    let column = known.get(name.trim())?;
    let right = right.trim();
    let quoted = |mark: char| right.strip_prefix(mark)?.strip_suffix(mark);
    if let Some(text) = quoted('"').or_else(|| quoted('\'')) {
        return Some((column, text.to_owned(), is_equal));
    }
    // A flag with numbers and words, such as a size or `auto`, is compared with a word as text.
    let is_word = !right.is_empty() && !right.contains(char::is_whitespace);
    let is_number = right.parse::<f64>().is_ok_and(f64::is_finite) && known.is_numeric(&column);
    // The word `failed` is a state and also the name of a metric.
    let is_name = known.is_numeric(&column) && known.get(right).is_some();
    (is_word && !is_number && !is_name).then(|| (column, right.to_owned(), is_equal))
}

/// The names of a condition, and those of them that it uses.
struct ColumnNames<'k> {
    known: &'k KnownColumns,
    used: std::cell::RefCell<Vec<TrialColumn>>,
}

impl NameResolver for ColumnNames<'_> {
    type Name = TrialColumn;

    const EXPECTED: &'static str = "a name";

    fn name(&self, text: &str) -> Result<Option<NameMatch<TrialColumn>>, String> {
        if let Some(column) = self.known.at_begin(text, is_word_character) {
            if !self.known.is_numeric(&column) {
                return Err(format!(
                    "the values of {} are not numbers\ncompare it as '{0} == TEXT' or '{0} != TEXT'",
                    column.name()
                ));
            }
            let length = column.name().len();
            self.used.borrow_mut().push(column.clone());
            return Ok(Some(NameMatch { name: column, length }));
        }
        // Names of flags have hyphens, which are no part of a word here.
        let word = text.split(|c: char| !is_word_character(c) && c != '-').next().unwrap_or_default();
        let is_function = ["min", "max"].contains(&word);
        if word.is_empty() || begins_as_number(word) || is_function {
            return Ok(None);
        }
        let error = self.known.find(word).err();
        Err(error.map(|error| format!("{}\n{}", error.message, error.hint.unwrap_or_default())).unwrap_or_default())
    }

    fn number(&self, word: &str) -> Option<f64> {
        word.parse().ok().filter(|number: &f64| number.is_finite() && begins_as_number(word))
    }
}
