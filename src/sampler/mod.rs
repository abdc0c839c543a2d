//! What to try next.
//!
//! A sampler holds no state: history in, configuration out. Resuming a study, a dry run and "what would you try next?"
//! are therefore the same call. Every sampler is one file and one line in [`SAMPLERS`].

mod ask;
mod judgement;
mod random;
mod sequence;
mod sobol;

pub use ask::{Aim, Ask, Known, Measured, Past, Prior, Reading, Suggestion, Target};
pub use judgement::{Judgement, Pick};
pub use sobol::point as sobol_point;

pub trait Sampler: Sync {
    /// The name in study files and on the command line.
    fn name(&self) -> &'static str;

    /// One line on what it does.
    fn summary(&self) -> &'static str;

    /// An allowed configuration that the history does not hold, or `None` when there is none left.
    fn ask(&self, ask: &Ask<'_>) -> Option<Suggestion>;

    /// Whether it looks at [`Ask::priors`], which take some seconds to compute.
    fn believes(&self) -> bool {
        false
    }

    /// What the measurements say so far; `None` of a sampler that has no model of them.
    fn judge(&self, _ask: &Ask<'_>) -> Option<Judgement> {
        None
    }
}

/// The samplers that a study can name; the first is the default.
pub const SAMPLERS: [&dyn Sampler; 2] = [&sobol::Sobol, &random::Random];

/// The name under which the engine's defaults are proposed, always as trial 0.
pub const BASELINE: &str = "baseline";

#[must_use]
pub fn find(name: &str) -> Option<&'static dyn Sampler> {
    SAMPLERS.into_iter().find(|sampler| sampler.name() == name)
}

/// The next configuration and who proposes it: the engine's defaults first, allowed or not, then `sampler`'s.
#[must_use]
pub fn next(sampler: &dyn Sampler, ask: &Ask<'_>) -> Option<(&'static str, Suggestion)> {
    if ask.history.is_empty() {
        let why = "what the engine does by itself: everything else is compared with it".to_owned();
        return Some((BASELINE, Suggestion { config: ask.space.fixed.clone(), why }));
    }
    sampler.ask(ask).map(|suggestion| (sampler.name(), suggestion))
}

#[cfg(test)]
mod tests {
    //! Conformance: what every sampler must do.

    use std::collections::HashSet;

    use super::*;
    use crate::config::{Config, Value};
    use crate::objective::Goal;
    use crate::space::{Condition, Domain, Parameter, Scale, Space};

    fn parameter(name: &str, domain: Domain, when: Vec<Condition>) -> Parameter {
        Parameter { name: name.to_owned(), domain, when, help: None }
    }

    fn aim() -> Aim {
        let target = Target { name: "output_throughput".to_owned(), goal: Goal::Maximize };
        Aim { objectives: vec![target], constraints: Vec::new() }
    }

    fn finite_space() -> Space {
        let when = vec![Condition { parameter: "a".to_owned(), values: vec![Value::Bool(true)] }];
        let parameters = vec![
            parameter("a", Domain::Bool, vec![]),
            parameter("b", Domain::int(1, 8, Scale::Linear, 1), when),
            parameter("c", Domain::int(1, 16, Scale::PowerOfTwo, 1), vec![]),
        ];
        Space { parameters, fixed: Config::new().with("z", 1_i64) }
    }

    fn endless_space() -> Space {
        let parameters = vec![parameter("x", Domain::Float { low: 0.0, high: 1e6, log: false }, vec![])];
        Space { parameters, fixed: Config::new() }
    }

    fn run(sampler: &dyn Sampler, space: &Space, seed: u64, most: usize) -> Vec<Past> {
        run_allowed(sampler, space, seed, most, &|_| true)
    }

    fn run_allowed(
        sampler: &dyn Sampler,
        space: &Space,
        seed: u64,
        most: usize,
        allowed: &dyn Fn(&Config) -> bool,
    ) -> Vec<Past> {
        let mut history = Vec::new();
        while history.len() < most {
            let Some((by, suggestion)) = next(sampler, &Ask::new(space, &aim(), &history, seed, allowed)) else {
                break;
            };
            history.push(Past { proposed_by: by.to_owned(), config: suggestion.config, known: Known::Pending });
        }
        history
    }

    #[test]
    fn the_engines_defaults_come_first() {
        for sampler in SAMPLERS {
            let first = run(sampler, &finite_space(), 1, 1);
            assert_eq!((first[0].proposed_by.as_str(), &first[0].config), (BASELINE, &finite_space().fixed));
        }
    }

    #[test]
    fn a_finite_space_is_used_up_exactly_and_nothing_is_proposed_twice() {
        let expected: HashSet<_> = finite_space().enumerate(1000).unwrap().iter().map(Config::key).collect();
        for sampler in SAMPLERS {
            let history = run(sampler, &finite_space(), 3, 1000);
            let proposed: HashSet<_> = history.iter().skip(1).map(|past| past.config.key()).collect();
            assert_eq!(proposed, expected, "{}", sampler.name());
            assert_eq!(history.len(), expected.len() + 1, "{}", sampler.name());
        }
    }

    #[test]
    fn seed_and_history_decide_the_next_configuration() {
        for sampler in SAMPLERS {
            let keys = |seed| -> Vec<_> {
                run(sampler, &endless_space(), seed, 20).iter().map(|past| past.config.key()).collect()
            };
            assert_eq!(keys(5), keys(5), "{}", sampler.name());
            assert_ne!(keys(5), keys(6), "{}", sampler.name());
        }
    }

    #[test]
    fn a_study_that_is_taken_up_again_goes_on_as_if_it_had_not_stopped() {
        for sampler in SAMPLERS {
            let whole = run(sampler, &endless_space(), 9, 12);
            let space = endless_space();
            let aim = aim();
            let ask = Ask::new(&space, &aim, &whole[..7], 9, &|_| true);
            let (_, resumed) = next(sampler, &ask).unwrap();
            assert_eq!(resumed.config, whole[7].config, "{}", sampler.name());
        }
    }

    #[test]
    fn what_is_not_allowed_is_never_proposed_and_a_finite_space_is_used_up_all_the_same() {
        let allowed = |config: &Config| config.get_i64("b").is_none_or(|b| b == 5);
        let whole = finite_space().enumerate(1000).unwrap();
        let expected: HashSet<_> = whole.iter().filter(|config| allowed(config)).map(Config::key).collect();
        for sampler in SAMPLERS {
            let history = run_allowed(sampler, &finite_space(), 3, 1000, &allowed);
            let proposed: HashSet<_> = history.iter().skip(1).map(|past| past.config.key()).collect();
            assert_eq!(proposed, expected, "{}", sampler.name());
            assert_eq!(history.len(), expected.len() + 1, "{}", sampler.name());
        }
    }

    #[test]
    fn one_allowed_point_in_a_thousand_is_found_and_the_walk_can_be_taken_up_again() {
        let allowed = |config: &Config| config.get_f64("x").is_some_and(|x| x < 1e3);
        for sampler in SAMPLERS {
            let whole = run_allowed(sampler, &endless_space(), 9, 12, &allowed);
            assert_eq!(whole.len(), 12, "{}", sampler.name());
            assert!(whole.iter().skip(1).all(|past| allowed(&past.config)), "{}", sampler.name());
            let space = endless_space();
            let aim = aim();
            let ask = Ask::new(&space, &aim, &whole[..7], 9, &allowed);
            assert_eq!(next(sampler, &ask).unwrap().1.config, whole[7].config, "{}", sampler.name());
        }
    }

    #[test]
    fn a_space_without_an_allowed_configuration_ends_after_the_baseline() {
        for sampler in SAMPLERS {
            for space in [finite_space(), endless_space()] {
                assert_eq!(run_allowed(sampler, &space, 0, 10, &|_| false).len(), 1, "{}", sampler.name());
            }
        }
    }

    #[test]
    fn a_space_without_parameters_ends_after_the_baseline() {
        let space = Space { parameters: vec![], fixed: Config::new().with("z", 1_i64) };
        for sampler in SAMPLERS {
            assert_eq!(run(sampler, &space, 0, 10).len(), 1, "{}", sampler.name());
        }
    }
}
