//! Renders predictions as a self-contained page with the batch over time for each configuration.

use std::fmt::Write;

use super::plot::{PlotLine, PlotPanel, svg};
use super::text::predictions_text;
use super::{PredictedConfiguration, Predictions};
use crate::predict::{BatchSeries, SeriesPoint};

const STYLE: &str = include_str!("page.css");

/// Returns one HTML document without scripts. It needs nothing from the network.
#[must_use]
pub(crate) fn predictions_page(predictions: &Predictions<'_>) -> String {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n\
         <body>\n<h1>{title}</h1>\n<p>Predictions of the twin for the study's load, in virtual time; no server was \
         started.</p>\n",
        title = escaped(&format!("setpoint predict: {}", predictions.study)),
    );
    for (rank, predicted) in predictions.all.iter().enumerate() {
        section(rank + 1, predicted, &predictions.objective.metric, &mut page);
    }
    let _ = write!(
        page,
        "<h2>All numbers</h2>\n<pre>{}</pre>\n</body>\n</html>\n",
        escaped(&predictions_text(predictions))
    );
    page
}

fn section(rank: usize, predicted: &PredictedConfiguration, objective: &str, page: &mut String) {
    let heading = escaped(&format!("{rank}. {} on {}", predicted.config, predicted.device.name));
    // Writing to a string cannot fail.
    let _ = writeln!(page, "<section>\n<h2>{heading}</h2>");
    if let Some(served) = &predicted.prediction.served {
        let limits = &served.limits;
        let limited = format!("Limited by {}: {}.", limits.main.name(), limits.advice);
        let _ = writeln!(page, "<p>{} {}.</p>", escaped(&limited), escaped(&predicted.basis(objective)));
        for panel in &panels(&served.series) {
            page.push_str(&svg(panel));
        }
    } else {
        let reason = predicted.prediction.outcome.reason().unwrap_or_default();
        let _ = writeln!(page, "<p>{}: {}</p>", predicted.state(), escaped(&reason));
    }
    page.push_str("</section>\n");
}

fn panels(series: &BatchSeries) -> [PlotPanel; 3] {
    let line = |name, filled, of: fn(&SeriesPoint) -> f64| PlotLine {
        name,
        filled,
        values: series.points.iter().map(of).collect(),
    };
    let panel =
        |title, unit, lines, mark, least_top| PlotPanel { title, unit, step_s: series.step_s, lines, mark, least_top };
    [
        panel(
            "Requests in the engine",
            "requests",
            // The area of waiting requests is stacked on that of running ones.
            vec![
                line("waiting", true, |point| point.running + point.waiting),
                line("running", true, |point| point.running),
            ],
            None,
            1.0,
        ),
        panel("KV cache", "% of its blocks", vec![line("used", false, |point| point.kv * 100.0)], None, 100.0),
        panel(
            "Tokens per step",
            "tokens",
            vec![line("tokens", false, |point| point.tokens)],
            Some(("budget", f64::from(series.budget))),
            1.0,
        ),
    ]
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_users_are_escaped() {
        assert_eq!(escaped("<script a=\"b\">&"), "&lt;script a=&quot;b&quot;&gt;&amp;");
    }
}
