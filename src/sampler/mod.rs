//! What to try next.
//!
//! A sampler holds no state: history in, configuration out. Resuming a study, a dry run and "what would you try next?"
//! are therefore the same call. Every sampler is one file and one line in [`SAMPLERS`].

mod random;
mod sequence;
mod sobol;

use std::collections::HashSet;

use crate::config::Config;
use crate::space::Space;

/// What a sampler may look at.
pub struct Ask<'a> {
    pub space: &'a Space,
    /// Every configuration that was tried or rejected, in order.
    pub history: &'a [Past],
    pub seed: u64,
    /// Whether a configuration can work at all. It is pure and quick, and what it refuses is never proposed.
    pub allowed: &'a dyn Fn(&Config) -> bool,
}

impl std::fmt::Debug for Ask<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ask").field("history", &self.history.len()).field("seed", &self.seed).finish_non_exhaustive()
    }
}

/// One earlier proposal.
#[derive(Clone, Debug)]
pub struct Past {
    pub proposed_by: String,
    pub config: Config,
}

pub trait Sampler: Sync {
    /// The name in study files and on the command line.
    fn name(&self) -> &'static str;

    /// One line on what it does.
    fn summary(&self) -> &'static str;

    /// An allowed configuration that the history does not hold, or `None` when there is none left.
    fn ask(&self, ask: &Ask<'_>) -> Option<Config>;
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
pub fn next(sampler: &dyn Sampler, ask: &Ask<'_>) -> Option<(&'static str, Config)> {
    if ask.history.is_empty() {
        return Some((BASELINE, ask.space.fixed.clone()));
    }
    sampler.ask(ask).map(|config| (sampler.name(), config))
}

impl Ask<'_> {
    fn seen(&self) -> HashSet<String> {
        self.history.iter().map(|past| past.config.key()).collect()
    }

    /// How many configurations this sampler has proposed: it has consumed at least as many points of its sequence.
    fn proposed_by(&self, name: &str) -> usize {
        self.history.iter().filter(|past| past.proposed_by == name).count()
    }
}

#[cfg(test)]
mod tests {
    //! Conformance: what every sampler must do.

    use super::*;
    use crate::config::Value;
    use crate::space::{Condition, Domain, Parameter, Scale};

    fn parameter(name: &str, domain: Domain, when: Vec<Condition>) -> Parameter {
        Parameter { name: name.to_owned(), domain, when, help: None }
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
            let Some((by, config)) = next(sampler, &Ask { space, history: &history, seed, allowed }) else { break };
            history.push(Past { proposed_by: by.to_owned(), config });
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
            let ask = Ask { space: &space, history: &whole[..7], seed: 9, allowed: &|_| true };
            let (_, resumed) = next(sampler, &ask).unwrap();
            assert_eq!(resumed, whole[7].config, "{}", sampler.name());
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
            let ask = Ask { space: &space, history: &whole[..7], seed: 9, allowed: &allowed };
            assert_eq!(next(sampler, &ask).unwrap().1, whole[7].config, "{}", sampler.name());
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
