//! A configuration to try, with its number, origin and reason.

use std::borrow::Cow;

use serde::Serialize;

use crate::config::Config;

/// A configuration that has a number in its study: the content of a trial before its launch.
#[derive(Clone, Debug, PartialEq)]
pub struct Proposal {
    /// Consecutive from 0. Number 0 has the engine's defaults.
    pub number: u32,
    pub origin: Origin,
    /// The reason for this configuration, in one line; `None` in databases of older releases.
    pub why: Option<String>,
    /// Expected gain at the time of the proposal, as a share of the best value; `None` from samplers without a model.
    pub expected_gain: Option<f64>,
    /// The objective's value that the sampler's model expected; `None` from samplers without a model.
    pub expected: Option<ExpectedValue>,
    pub config: Config,
    /// The trial whose server measures a live look; `None` for a launch.
    pub server_of: Option<u32>,
}

/// A model's expectation of a value that is not measured yet, in the value's own unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ExpectedValue {
    pub mean: f64,
    /// The 5th and the 95th percentile of one measurement, its noise included.
    pub low: f64,
    pub high: f64,
}

/// The part of the program that proposed a trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The engine's defaults.
    Baseline,
    /// The engine's defaults, measured again: they show the noise between launches and the drift of the machine.
    BaselineRepeat,
    /// Today's deployment, the second baseline.
    Deployment,
    /// A further first point of the search, which the study file names.
    Start,
    /// The winner, the defaults or the deployment, measured again at the end of a study.
    Confirmation,
    /// The winner of an engine, measured in turn with the winner of another engine.
    Turn,
    /// The winner with some of its flags put back, or with all of them beside it.
    Ablation,
    /// The defaults on all slots at once. They show how much trials slow each other down.
    Interference,
    /// A configuration that worked before, launched after failures in a row. It shows whether the environment still
    /// works.
    Probe,
    /// A configuration that a rule rejects, launched because only a launch can refute the rule.
    RuleTest,
    /// A measurement on the server of another trial, after its live knobs were set.
    LiveLook,
    /// The sampler of this name.
    Sampler(Cow<'static, str>),
    /// Another program, which reported a trial that it had not requested.
    Caller,
    /// A document: the result was measured elsewhere.
    Import,
    /// Any origin before the context changed. The trial's result does not count in the present context.
    EarlierContext,
}

impl Origin {
    /// Returns whether launches of this origin only guide the search. Other launches decide about the winner, or test a
    /// launch itself.
    #[must_use]
    pub fn is_of_search(&self) -> bool {
        matches!(self, Self::Baseline | Self::BaselineRepeat | Self::Deployment | Self::Start | Self::Sampler(_))
    }

    /// Returns the name in the database and in reports.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Baseline => "baseline",
            Self::BaselineRepeat => "baseline_repeat",
            Self::Deployment => "deployment",
            Self::Start => "start",
            Self::Confirmation => "confirmation",
            Self::Turn => "turn",
            Self::Ablation => "ablation",
            Self::Interference => "interference",
            Self::Probe => "probe",
            Self::RuleTest => "rule_test",
            Self::LiveLook => "live_look",
            Self::Sampler(name) => name,
            Self::Caller => "caller",
            Self::Import => "import",
            Self::EarlierContext => "earlier context",
        }
    }

    /// Reads a [`name`](Self::name). Any other name is that of a sampler, possibly of another release.
    #[must_use]
    pub fn from_name(name: impl Into<Cow<'static, str>>) -> Self {
        let name = name.into();
        let fixed = [
            Self::Baseline,
            Self::BaselineRepeat,
            Self::Deployment,
            Self::Start,
            Self::Confirmation,
            Self::Turn,
            Self::Ablation,
            Self::Interference,
            Self::Probe,
            Self::RuleTest,
            Self::LiveLook,
            Self::Caller,
            Self::Import,
            Self::EarlierContext,
        ];
        fixed.into_iter().find(|origin| origin.name() == name).unwrap_or(Self::Sampler(name))
    }

    /// Returns whether a trial counts against the budget. Interference, probes, live looks and imported results do not.
    #[must_use]
    pub fn counts_against_budget(&self) -> bool {
        !matches!(self, Self::Interference | Self::Probe | Self::LiveLook | Self::Import)
    }

    /// Returns whether the trial belongs to the search. The tuner's own trials do not.
    #[must_use]
    pub fn is_search_trial(&self) -> bool {
        matches!(self, Self::Sampler(_) | Self::Caller)
    }

    /// Returns whether a measurement ranks its configuration. Interference trials do not, because they share the host.
    /// Nor do live looks, because only launches of the exported command do, and trials of an earlier context.
    #[must_use]
    pub fn is_ranked(&self) -> bool {
        !matches!(self, Self::Interference | Self::LiveLook | Self::EarlierContext)
    }

    /// Returns whether the configuration may be the cause of a failure. The failure of a rule's test is predicted, and
    /// that of a probe indicates the environment.
    #[must_use]
    pub fn blames_configuration(&self) -> bool {
        self.is_ranked() && !matches!(self, Self::Probe | Self::RuleTest)
    }

    /// Returns whether the trial must run alone, because other trials are compared with it.
    #[must_use]
    pub fn runs_alone(&self) -> bool {
        matches!(
            self,
            Self::Baseline
                | Self::BaselineRepeat
                | Self::Deployment
                | Self::Confirmation
                | Self::Turn
                | Self::Ablation
                | Self::RuleTest
        )
    }
}

impl From<&'static str> for Origin {
    fn from(name: &'static str) -> Self {
        Self::from_name(name)
    }
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
impl Proposal {
    /// Creates a minimal proposal.
    pub(crate) fn example(number: u32, origin: impl Into<Origin>) -> Self {
        Self {
            number,
            origin: origin.into(),
            why: None,
            expected_gain: None,
            expected: None,
            config: Config::new(),
            server_of: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_read_back_from_its_name_and_unknown_names_are_samplers() {
        for name in [
            "baseline",
            "baseline_repeat",
            "deployment",
            "start",
            "confirmation",
            "ablation",
            "interference",
            "probe",
            "rule_test",
            "live_look",
            "caller",
            "import",
            "earlier context",
            "tpe",
            "other",
        ] {
            assert_eq!(Origin::from(name).name(), name);
            assert_eq!(matches!(Origin::from(name), Origin::Sampler(_)), ["tpe", "other"].contains(&name), "{name}");
        }
    }

    #[test]
    fn trials_of_the_tuner_itself_are_no_search_and_some_are_free() {
        let names = |is: fn(&Origin) -> bool| -> Vec<&str> {
            let own = [
                "baseline",
                "baseline_repeat",
                "deployment",
                "start",
                "confirmation",
                "ablation",
                "interference",
                "probe",
                "rule_test",
                "live_look",
            ];
            let all = own.into_iter().chain(["auto", "caller", "import", "earlier context"]);
            all.filter(|name| is(&Origin::from(*name))).collect()
        };
        assert_eq!(names(Origin::is_search_trial), ["auto", "caller"]);
        assert_eq!(names(|origin| !origin.counts_against_budget()), ["interference", "probe", "live_look", "import"]);
        assert_eq!(names(|origin| !origin.is_ranked()), ["interference", "live_look", "earlier context"]);
        let blamed = [
            "baseline",
            "baseline_repeat",
            "deployment",
            "start",
            "confirmation",
            "ablation",
            "auto",
            "caller",
            "import",
        ];
        assert_eq!(names(Origin::blames_configuration), blamed);
        assert_eq!(
            names(Origin::runs_alone),
            ["baseline", "baseline_repeat", "deployment", "confirmation", "ablation", "rule_test"]
        );
    }
}
