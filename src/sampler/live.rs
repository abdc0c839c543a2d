//! Live looks: measurements on running servers, beside launches. They inform the models, and rank no configuration.

use std::collections::BTreeMap;

use super::PastTrial;
use crate::config::Config;
use crate::stats::{mean, to_f64};
use crate::trial::{LiveKnob, LiveRange, moved_knobs};

/// The live looks that a study may use.
#[derive(Clone, Debug, PartialEq)]
pub struct LiveLooks {
    /// The flags that a running server accepts, among the parameters of the space.
    pub knobs: Vec<LiveKnob>,
    /// The cost of a live look, as a share of the cost of a launch.
    pub cost: f64,
}

/// The size of a move to a lower limit, which depends on the ratio: half of the largest size plus its share of this ratio.
const LARGE_RATIO: f64 = 16.0;

/// The smallest relative noise between two measurements that pairs are judged by, and the weight of this assumption as a
/// number of repeated measurements.
const ASSUMED_NOISE: f64 = 0.03;
const ASSUMED_NOISE_WEIGHT: f64 = 4.0;

/// The models learn a difference between live looks and launches that is the same for all configurations. A knob is
/// launched from then on if the differences of several configurations vary more than noise does, or if their mean is
/// surely beyond this factor.
const MAX_RATIO: f64 = 1.5;

/// The normal quantile of the test that the differences vary by noise alone, for one side at 0.1 %.
const VARIATION_QUANTILE: f64 = 3.09;

/// The quantile of the normal distribution for one side at 5 %, and for both.
const ONE_SIDED: f64 = 1.645;
const TWO_SIDED: f64 = 1.96;

/// The measured difference between live looks and launches of equal configurations, for the looks that move one knob.
#[derive(Clone, Debug, PartialEq)]
pub struct KnobBias {
    pub flag: &'static str,
    /// The number of configurations that were both looked at and launched.
    pub pairs: usize,
    /// The objective of the live looks divided by that of the launches: the geometric mean, and its 95 % interval.
    pub ratio: f64,
    pub interval: [f64; 2],
    /// Whether the difference is too large, or too different between configurations, for live looks.
    pub is_refuted: bool,
}

impl LiveLooks {
    /// Returns the sizes of the knobs' moves from a launch to a live look, 0 to 1, in the order of the knobs. `None` if the
    /// server cannot take the configuration.
    pub(super) fn moves(&self, defaults: &Config, launched: &Config, asked: &Config) -> Option<Vec<f64>> {
        let moved = moved_knobs(&self.knobs, defaults, launched, asked)?;
        let number = |config: &Config, flag: &str| config.get(flag).or_else(|| defaults.get(flag))?.as_f64();
        let size = |knob: &LiveKnob| {
            if !moved.contains(knob) {
                return 0.0;
            }
            match (knob.range, number(launched, knob.flag), number(asked, knob.flag)) {
                (LiveRange::UpToLaunched, Some(launched), Some(asked)) if launched > 0.0 && asked > 0.0 => {
                    0.5 + 0.5 * (libm::log(launched / asked) / libm::log(LARGE_RATIO)).clamp(0.0, 1.0)
                }
                _ => 1.0,
            }
        };
        Some(self.knobs.iter().map(size).collect())
    }

    /// Returns the difference between live looks and launches for each knob with pairs.
    pub(crate) fn biases(&self, defaults: &Config, history: &[PastTrial]) -> Vec<KnobBias> {
        let values = MeasuredPairs::of(history);
        let noise = values.noise();
        let bias = |knob: &LiveKnob| {
            let is_moved = |past: &&PastTrial| {
                let server = past.server.as_ref().filter(|_| past.measured().is_some());
                let moved = server.and_then(|server| moved_knobs(&self.knobs, defaults, server, &past.config));
                moved.is_some_and(|moved| moved.contains(knob))
            };
            let mut keys: Vec<String> = history.iter().filter(is_moved).map(|past| past.config.key()).collect();
            keys.sort_unstable();
            keys.dedup();
            let pairs: Vec<(f64, f64)> = keys.iter().filter_map(|key| values.difference(key, noise)).collect();
            let weight: f64 = pairs.iter().map(|(_, variance)| 1.0 / variance).sum();
            if pairs.is_empty() {
                return None;
            }
            let mean = pairs.iter().map(|(difference, variance)| difference / variance).sum::<f64>() / weight;
            let deviation = (1.0 / weight).sqrt();
            let ends = [-1.0, 1.0].map(|side| libm::exp(mean + side * TWO_SIDED * deviation));
            Some(KnobBias {
                flag: knob.flag,
                pairs: pairs.len(),
                ratio: libm::exp(mean),
                interval: ends,
                is_refuted: mean.abs() - ONE_SIDED * deviation > libm::log(MAX_RATIO) || varies(&pairs, mean),
            })
        };
        self.knobs.iter().filter_map(bias).collect()
    }

    /// Returns these looks without the knobs whose measured difference is too large.
    pub(crate) fn without_refuted(&self, defaults: &Config, history: &[PastTrial]) -> Self {
        let biases = self.biases(defaults, history);
        let is_refuted = |knob: &LiveKnob| biases.iter().any(|bias| bias.flag == knob.flag && bias.is_refuted);
        Self { knobs: self.knobs.iter().filter(|knob| !is_refuted(knob)).copied().collect(), cost: self.cost }
    }
}

/// Returns whether differences with these variances vary around their mean by more than noise. The sum of the squares,
/// each divided by its variance, has the chi-squared distribution.
///
/// Source of the normal approximation: E. Wilson and M. Hilferty, "The distribution of chi-square", 1931.
fn varies(pairs: &[(f64, f64)], mean: f64) -> bool {
    let freedom = to_f64(pairs.len().saturating_sub(1));
    if freedom < 1.0 {
        return false;
    }
    let squares: f64 =
        pairs.iter().map(|(difference, variance)| (difference - mean) * (difference - mean) / variance).sum();
    let scale = 2.0 / (9.0 * freedom);
    let limit = freedom * libm::pow(1.0 - scale + VARIATION_QUANTILE * scale.sqrt(), 3.0);
    squares > limit
}

/// The logarithms of the first objective, by configuration.
struct MeasuredPairs {
    /// The values of launches, and of live looks.
    values: BTreeMap<String, [Vec<f64>; 2]>,
}

impl MeasuredPairs {
    fn of(history: &[PastTrial]) -> Self {
        let mut values: BTreeMap<String, [Vec<f64>; 2]> = BTreeMap::new();
        for past in history {
            let reading = past.measured().and_then(|measured| measured.values.first());
            let Some(value) = reading.map(|reading| libm::log(reading.value.abs())).filter(|value| value.is_finite())
            else {
                continue;
            };
            values.entry(past.config.key()).or_default()[usize::from(past.server.is_some())].push(value);
        }
        Self { values }
    }

    /// Returns the relative noise between two launches of a configuration.
    fn noise(&self) -> f64 {
        let launched = self.values.values().map(|[launched, _]| launched);
        let (squares, freedom) = launched.fold((0.0, 0.0), |(squares, freedom), values| {
            let mean = mean(values).unwrap_or_default();
            let own: f64 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
            (squares + own, freedom + to_f64(values.len().saturating_sub(1)))
        });
        let assumed = ASSUMED_NOISE * ASSUMED_NOISE * ASSUMED_NOISE_WEIGHT;
        libm::sqrt((squares + assumed) / (freedom + ASSUMED_NOISE_WEIGHT))
    }

    /// Returns the difference of live looks and launches of a configuration, and its variance.
    fn difference(&self, key: &str, noise: f64) -> Option<(f64, f64)> {
        let [launched, looked] = self.values.get(key)?;
        let difference = mean(looked)? - mean(launched)?;
        let variance = noise * noise * (1.0 / to_f64(launched.len()) + 1.0 / to_f64(looked.len()));
        Some((difference, variance))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::{KnownOutcome, MeasuredNumbers, NumberReading};

    const SEQS: LiveKnob = LiveKnob { flag: "max-num-seqs", range: LiveRange::UpToLaunched };
    const TOKENS: LiveKnob = LiveKnob { flag: "max-num-batched-tokens", range: LiveRange::UpToLaunched };

    fn looks() -> LiveLooks {
        LiveLooks { knobs: vec![SEQS, TOKENS], cost: 0.1 }
    }

    fn config(seqs: i64, tokens: i64) -> Config {
        Config::new().with(SEQS.flag, seqs).with(TOKENS.flag, tokens)
    }

    fn measured(config: Config, value: f64, server: Option<Config>) -> PastTrial {
        let values = vec![NumberReading::exact(value)];
        let outcome = KnownOutcome::Measured(MeasuredNumbers { values, excesses: Vec::new() });
        PastTrial { server, ..PastTrial::new("auto", config, outcome) }
    }

    #[test]
    fn the_size_of_a_move_grows_with_the_ratio() {
        let moves = |launched: Config, asked: Config| looks().moves(&Config::new(), &launched, &asked);
        assert_eq!(moves(config(64, 512), config(64, 512)), Some(vec![0.0, 0.0]));
        assert_eq!(moves(config(64, 512), config(16, 512)), Some(vec![0.75, 0.0]));
        assert_eq!(moves(config(64, 512), config(1, 512)), Some(vec![1.0, 0.0]));
        assert_eq!(moves(config(64, 512), config(64, 1024)), None);
    }

    #[test]
    fn a_bias_is_measured_by_configurations_that_were_looked_at_and_launched() {
        let server = || Some(config(256, 512));
        let mut history = vec![measured(config(256, 512), 100.0, None), measured(config(64, 512), 130.0, server())];
        assert_eq!(looks().biases(&Config::new(), &history), Vec::new(), "no configuration was measured in both ways");
        history.push(measured(config(64, 512), 125.0, None));
        let biases = looks().biases(&Config::new(), &history);
        let [bias] = &biases[..] else { panic!("{biases:?}") };
        assert_eq!((bias.flag, bias.pairs, bias.is_refuted), ("max-num-seqs", 1, false));
        assert!((bias.ratio - 1.04).abs() < 1e-9 && bias.interval[0] < 1.0 && bias.interval[1] > 1.0, "{bias:?}");
    }

    #[test]
    fn a_knob_with_a_large_difference_is_given_up() {
        for (live, is_refuted) in [(180.0, true), (55.0, true), (130.0, false), (93.0, false)] {
            let history = [
                measured(config(64, 512), live, Some(config(256, 512))),
                measured(config(64, 512), 100.0, None),
                measured(config(256, 128), 50.0, Some(config(256, 512))),
            ];
            let kept = looks().without_refuted(&Config::new(), &history).knobs;
            assert_eq!(kept.contains(&SEQS), !is_refuted, "{live}");
            assert!(kept.contains(&TOKENS), "it has no pair");
        }
    }

    #[test]
    fn a_knob_whose_difference_is_another_for_each_configuration_is_given_up() {
        for (second, is_refuted) in [(122.0, false), (90.0, true)] {
            let server = || Some(config(256, 512));
            let history = [
                measured(config(64, 512), 125.0, server()),
                measured(config(64, 512), 100.0, None),
                measured(config(32, 512), second, server()),
                measured(config(32, 512), 100.0, None),
            ];
            let kept = looks().without_refuted(&Config::new(), &history).knobs;
            assert_eq!(kept.contains(&SEQS), !is_refuted, "{second}");
        }
    }
}
