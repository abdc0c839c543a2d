//! Today's deployment and the start points in the output of `check STUDY`.

use serde_json::{Value as Json, json};

use crate::config::Config;
use crate::job::{FirstPoint, Job, JobSearch};
use crate::rule::Finding;

/// A first point with the verdict of the rules.
pub(super) struct CheckedPoint<'a> {
    point: &'a FirstPoint,
    config: Config,
    /// Whether it is the engine's defaults, which are launched once.
    is_defaults: bool,
    /// The most severe finding of the rules.
    finding: Option<Finding>,
}

/// Checks today's deployment and the start points of a study by the rules.
pub(super) fn check_first_points<'a>(job: &'a Job, search: &JobSearch<'_>) -> Vec<CheckedPoint<'a>> {
    let check = |point: &'a FirstPoint| {
        let config = search.config_of(point);
        let finding = search.findings(&config).into_iter().next();
        CheckedPoint { point, is_defaults: config == search.space.fixed, config, finding }
    };
    job.deployment.iter().chain(&job.starts).map(check).collect()
}

impl CheckedPoint<'_> {
    /// Returns the label of its line.
    pub(super) fn label(&self) -> &str {
        self.point.origin.name()
    }

    /// Returns its source, its flags without the fixed ones, and the verdict.
    pub(super) fn text(&self, fixed: &Config) -> String {
        let source = &self.point.source;
        if self.is_defaults {
            return format!("{source}: equals the engine's defaults, and is not launched again");
        }
        let own = self.config.without(fixed);
        let verdict = match &self.finding {
            None => "accepted".to_owned(),
            Some(finding) if !finding.severity.rejects() => format!("warning {}: {}", finding.rule, finding.message),
            Some(finding) => format!("rejected by {}: {}", finding.rule, finding.message),
        };
        format!("{source}: {own}; {verdict}")
    }

    pub(super) fn json(&self) -> Json {
        let verdict = |finding: &Finding| if finding.severity.rejects() { "reject" } else { "warn" };
        json!({
            "origin": self.label(),
            "source": self.point.source,
            "config": self.config,
            "is_defaults": self.is_defaults,
            "verdict": self.finding.as_ref().map_or("accept", verdict),
            "rule": self.finding.as_ref().map(|finding| finding.rule),
            "message": self.finding.as_ref().map(|finding| &finding.message),
        })
    }
}
