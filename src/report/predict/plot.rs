//! Draws one panel of a plot as SVG, without a script. Colours are classes, and the page defines them for light and for
//! dark.
//!
//! No crate draws it: crates for SVG write colours into every element. A page that follows the reader's light or dark
//! scheme cannot change those.

use std::fmt::Write;

use crate::stats::to_f64;

/// Size of a panel, and the margins for its labels, in units of the SVG's `viewBox`.
const WIDTH: f64 = 880.0;
const HEIGHT: f64 = 190.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 38.0;

/// One line of a panel: values over time.
pub(super) struct PlotLine {
    /// Class in the page's style, and name in the legend.
    pub(super) name: &'static str,
    pub(super) values: Vec<f64>,
    /// Whether the area below the line is coloured.
    pub(super) filled: bool,
}

/// One plot of values with the same unit.
pub(super) struct PlotPanel {
    pub(super) title: &'static str,
    /// Unit of the values.
    pub(super) unit: &'static str,
    /// Seconds between two values.
    pub(super) step_s: f64,
    /// Lines in the order of drawing. Later ones cover earlier ones.
    pub(super) lines: Vec<PlotLine>,
    /// A marked level, with its name.
    pub(super) mark: Option<(&'static str, f64)>,
    /// The vertical axis begins at 0 and ends at this value or above.
    pub(super) least_top: f64,
}

/// Returns the panel as an element of a page.
pub(super) fn svg(panel: &PlotPanel) -> String {
    let values = panel.lines.iter().flat_map(|line| &line.values).copied();
    let mark = panel.mark.map_or(0.0, |(_, level)| level);
    let highest = values.fold(panel.least_top.max(mark), f64::max);
    let (y_step, y_end) = ticks(highest, 4.0);
    let count = panel.lines.iter().map(|line| line.values.len()).max().unwrap_or(0).max(1);
    let seconds = to_f64(count) * panel.step_s;
    let (x_step, _) = ticks(seconds, 8.0);
    let x = |at: f64| LEFT + (WIDTH - LEFT - RIGHT) * at / seconds;
    let y = |value: f64| HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / y_end;
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);

    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH:.0} {HEIGHT:.0}\" role=\"img\" aria-label=\"{title} in {unit} over time\">\n\
         <text class=\"title\" x=\"{LEFT:.0}\" y=\"14\">{title}</text>\n",
        title = panel.title,
        unit = panel.unit,
    );
    // Writing to a string cannot fail.
    let mut add = |text: String| _ = writeln!(svg, "{text}");
    for value in steps(y_step, y_end) {
        let at = y(value);
        add(format!("<path class=\"grid\" d=\"M{LEFT:.0} {at:.1}H{right:.1}\"/>"));
        add(format!("<text class=\"y\" x=\"{:.0}\" y=\"{:.1}\">{}</text>", LEFT - 6.0, at + 4.0, label(value, y_step)));
    }
    for value in steps(x_step, seconds) {
        let at = x(value);
        add(format!("<path class=\"grid\" d=\"M{at:.1} {bottom:.1}v4\"/>"));
        add(format!("<text class=\"x\" x=\"{at:.1}\" y=\"{:.1}\">{}</text>", bottom + 16.0, label(value, x_step)));
    }
    let middle = f64::midpoint(LEFT, right);
    add(format!("<text class=\"x\" x=\"{middle:.0}\" y=\"{:.0}\">time in s</text>", HEIGHT - 6.0));
    let middle = f64::midpoint(TOP, bottom);
    add(format!("<text class=\"x\" transform=\"translate(14 {middle:.0}) rotate(-90)\">{}</text>", panel.unit));
    for line in &panel.lines {
        add(line_path(line, panel.step_s, &x, &y, bottom));
    }
    if let Some((_, level)) = panel.mark {
        add(format!("<path class=\"mark\" d=\"M{LEFT:.0} {:.1}H{right:.1}\"/>", y(level)));
    }
    let legend = panel.lines.iter().map(|line| (line.name, line.name));
    let legend: Vec<_> = legend.chain(panel.mark.map(|(name, _)| (name, "mark"))).collect();
    for (place, (name, class)) in legend.iter().rev().enumerate() {
        let at = right - 150.0 * (to_f64(place) + 1.0);
        add(format!("<path class=\"{class} key\" d=\"M{at:.0} 10h18\"/>"));
        add(format!("<text x=\"{:.0}\" y=\"14\">{name}</text>", at + 24.0));
    }
    svg.push_str("</svg>\n");
    svg
}

/// Draws a line as steps: each value holds for `step_s`. `bottom` is the lower end of a filled area.
fn line_path(line: &PlotLine, step_s: f64, x: &impl Fn(f64) -> f64, y: &impl Fn(f64) -> f64, bottom: f64) -> String {
    let mut path = String::new();
    for (index, value) in line.values.iter().enumerate() {
        let (from, to) = (to_f64(index) * step_s, to_f64(index + 1) * step_s);
        let command = if index == 0 { 'M' } else { 'L' };
        let _ = write!(path, "{command}{:.1} {:.1}H{:.1}", x(from), y(*value), x(to));
    }
    // An empty path has no area to close.
    if line.filled && !path.is_empty() {
        let _ = write!(path, "V{bottom:.1}H{:.1}Z", x(0.0));
    }
    let kind = if line.filled { "area" } else { "line" };
    format!("<path class=\"{} {kind}\" d=\"{path}\"/>", line.name)
}

/// Returns the distance between about `count` ticks, and the first tick that reaches `most` within 0.1 %. The
/// distance is 1, 2 or 5 times a power of ten.
fn ticks(most: f64, count: f64) -> (f64, f64) {
    let most = if most > 0.0 && most.is_finite() { most } else { 1.0 };
    let rough = most / count;
    let power = 10.0_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * power).find(|step| *step >= rough * 0.999);
    let step = step.unwrap_or(10.0 * power);
    (step, step * (most / step * 0.999).ceil())
}

fn steps(step: f64, end: f64) -> impl Iterator<Item = f64> {
    (0_u32..).map(move |index| f64::from(index) * step).take_while(move |value| *value <= end * 1.0001)
}

/// Formats a tick with the number of decimals that distinguishes two ticks.
fn label(value: f64, step: f64) -> String {
    match step {
        step if step >= 1.0 => format!("{value:.0}"),
        step if step >= 0.1 => format!("{value:.1}"),
        step if step >= 0.01 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn axes_end_at_a_round_number() {
        for (most, expected) in [
            (97.0, (50.0, 100.0)),
            (1.0, (0.5, 1.0)),
            (64.0, (20.0, 80.0)),
            (0.0, (0.5, 1.0)),
            (2048.0, (1000.0, 3000.0)),
        ] {
            let (step, end) = ticks(most, 4.0);
            assert!((step - expected.0).abs() < 1e-9 && (end - expected.1).abs() < 1e-9, "{most}: {step} {end}");
        }
    }

    proptest! {
        #[test]
        fn nothing_is_drawn_outside_of_the_panel(
            values in prop::collection::vec(0.0_f64..1e7, 0..50), step_s in 1e-3_f64..1e3,
        ) {
            let lines = vec![PlotLine { name: "running", values, filled: true }];
            let panel = PlotPanel { title: "t", unit: "u", step_s, lines, mark: Some(("budget", 10.0)), least_top: 1.0 };
            let svg = svg(&panel);
            prop_assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            let area = svg.lines().find(|line| line.contains("area")).unwrap();
            let path = area.split(" d=\"").nth(1).unwrap().trim_end_matches("\"/>");
            for point in path.split(['M', 'L']).filter(|point| !point.is_empty()) {
                let y: f64 = point.split([' ', 'H']).nth(1).unwrap().parse().unwrap();
                prop_assert!((TOP - 0.1..=HEIGHT - BOTTOM + 0.1).contains(&y), "{point}");
            }
        }
    }
}
