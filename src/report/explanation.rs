//! Renders the importance of parameters as text and CSV.

use std::fmt::Write;

use super::table::{number, table};
use crate::sampler::{ExplainedNumber, Explanation, NumberKind, ParameterImportance, VarianceShare};

/// Largest number of parameters whose predictions by value the text shows.
const MAX_LEADING: usize = 3;
/// Least total share of the variance, 0 to 1, that such a parameter must explain.
const MIN_LEADING_SHARE: f64 = 0.05;
/// Largest number of pairs that the text names.
const MAX_PAIRS: usize = 5;

/// Returns a part for each objective and limit: its measurements, doubts, the parameters by importance, pairs, and the
/// predictions by the values of the leading parameters.
#[must_use]
pub(crate) fn explanation_text(explanation: &Explanation) -> String {
    let texts = explanation.numbers.iter().map(|explained| explained_text(explained).trim_end().to_owned());
    texts.collect::<Vec<_>>().join("\n\n")
}

fn explained_text(explained: &ExplainedNumber) -> String {
    let r2 = explained.held_out_r2.map_or_else(|| "none".to_owned(), |r2| format!("{r2:.2}"));
    let kind = match explained.of {
        NumberKind::Objective => "objective",
        NumberKind::Limit => "limit",
    };
    let mut text = format!(
        "{kind} {}: {} measurements, R^2 of held-out measurements {r2}, {} of the variance unexplained\n",
        explained.name,
        explained.measured,
        percent(explained.unknown)
    );
    for doubt in &explained.doubts {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "warning: {doubt}");
    }
    let mut importances = table(["parameter", "alone", "total", "at the best"], &[1, 2, 3]);
    for importance in &explained.parameters {
        importances.add_row([
            importance.parameter.clone(),
            share(importance.alone),
            share(importance.total),
            importance.at_best.map(percent).unwrap_or_default(),
        ]);
    }
    let _ = writeln!(text, "{importances}");
    for pair in explained.pairs.iter().take(MAX_PAIRS) {
        let _ = writeln!(text, "together: {} and {} {}", pair.parameters[0], pair.parameters[1], share(pair.share));
    }
    let leading =
        explained.parameters.iter().filter(|importance| importance.total.share >= MIN_LEADING_SHARE).take(MAX_LEADING);
    for importance in leading {
        let _ = write!(text, "\n{}", dependence(explained, importance));
    }
    text
}

/// Returns the table of predictions by value. For a limit they are excesses as in `MeasuredNumbers`: a value above 0
/// exceeds the limit.
fn dependence(explained: &ExplainedNumber, importance: &ParameterImportance) -> String {
    let header = match explained.of {
        NumberKind::Objective => explained.name.clone(),
        NumberKind::Limit => "ln(measured / limit)".to_owned(),
    };
    let mut expectations = table([importance.parameter.as_str(), &header, "5 % to 95 %"], &[0, 1, 2]);
    for point in &importance.dependence {
        let interval = format!("{} to {}", number(point.low), number(point.high));
        expectations.add_row([point.value.to_string(), number(point.mean), interval]);
    }
    format!("{expectations}\n")
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

fn share(share: VarianceShare) -> String {
    format!("{} ({:.0} to {:.0})", percent(share.share), 100.0 * share.low, 100.0 * share.high)
}

/// Writes one line for each parameter and each pair of each objective and limit. The shares of a pair are in the
/// `total` columns.
///
/// # Errors
/// Never in practice: the writer is a buffer in memory.
pub(crate) fn explanation_csv(explanation: &Explanation) -> Result<String, csv::Error> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record([
        "about",
        "of",
        "measured",
        "held_out_r2",
        "unknown",
        "parameter",
        "with",
        "alone",
        "alone_low",
        "alone_high",
        "total",
        "total_low",
        "total_high",
        "at_best",
    ])?;
    let optional = |number: Option<f64>| number.map(|number| number.to_string()).unwrap_or_default();
    let shares = |share: Option<VarianceShare>| {
        let [share, low, high] = [share.map(|s| s.share), share.map(|s| s.low), share.map(|s| s.high)].map(optional);
        [share, low, high]
    };
    for explained in &explanation.numbers {
        let of = match explained.of {
            NumberKind::Objective => "objective",
            NumberKind::Limit => "limit",
        };
        let r2 = optional(explained.held_out_r2);
        let mut line = |names: [&str; 2], alone, total, at_best| {
            let head = [explained.name.clone(), of.to_owned(), explained.measured.to_string(), r2.clone()];
            let cells = head.into_iter().chain([explained.unknown.to_string()]).chain(names.map(str::to_owned));
            writer.write_record(cells.chain(shares(alone)).chain(shares(total)).chain([optional(at_best)]))
        };
        for one in &explained.parameters {
            line([&one.parameter, ""], Some(one.alone), Some(one.total), one.at_best)?;
        }
        for pair in &explained.pairs {
            line([&pair.parameters[0], &pair.parameters[1]], None, Some(pair.share), None)?;
        }
    }
    let bytes = writer.into_inner().map_err(|error| csv::Error::from(error.into_error()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Value;
    use crate::sampler::{Expectation, Interaction};

    fn explanation() -> Explanation {
        let share = |share: f64| VarianceShare { share, low: share - 0.05, high: share + 0.1 };
        let one = |name: &str, total: f64| ParameterImportance {
            parameter: name.to_owned(),
            alone: share(total / 2.0),
            total: share(total),
            at_best: Some(0.5),
            dependence: vec![Expectation { value: Value::Int(8), mean: 1234.5, low: 1000.0, high: 1500.0 }],
        };
        let explained = ExplainedNumber {
            name: "output_throughput".to_owned(),
            of: NumberKind::Objective,
            measured: 9,
            held_out_r2: Some(0.875),
            unknown: 0.12,
            doubts: vec!["few".to_owned()],
            parameters: vec![one("max-num-seqs", 0.8), one("block-size", 0.04)],
            pairs: vec![Interaction {
                parameters: ["block-size".to_owned(), "max-num-seqs".to_owned()],
                share: share(0.3),
            }],
        };
        Explanation { numbers: vec![explained] }
    }

    #[test]
    fn the_text_begins_with_the_evidence_and_its_warnings() {
        let expected = "\
objective output_throughput: 9 measurements, R^2 of held-out measurements 0.88, 12 % of the variance unexplained
warning: few
 parameter              alone           total  at the best 
 max-num-seqs  40 % (35 to 50)  80 % (75 to 90)         50 % 
 block-size    2 % (-3 to 12)   4 % (-1 to 14)         50 % 
together: block-size and max-num-seqs 30 % (25 to 40)

 max-num-seqs  output_throughput   5 % to 95 % 
            8               1234  1000 to 1500 
";
        let squeeze = |text: &str| {
            let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
            text.lines().map(words).collect::<Vec<_>>().join("\n")
        };
        let text = explanation_text(&explanation());
        assert_eq!(squeeze(&text), squeeze(expected), "{text}");
    }

    #[test]
    fn the_csv_has_a_line_for_each_parameter_and_each_pair() {
        let csv = explanation_csv(&explanation()).unwrap();
        let lines: Vec<_> = csv.lines().skip(1).map(|line| line.split(',').collect::<Vec<_>>()).collect();
        assert!(csv.lines().all(|line| line.split(',').count() == 14), "{csv}");
        assert_eq!(lines[0][..7], ["output_throughput", "objective", "9", "0.875", "0.12", "max-num-seqs", ""]);
        assert_eq!((lines[0][7], lines[0][10], lines[0][13]), ("0.4", "0.8", "0.5"));
        assert_eq!(lines[2][5..8], ["block-size", "max-num-seqs", ""]);
        assert_eq!((lines[2][10], lines.len()), ("0.3", 3));
    }
}
