//! Greedy replies to the guard's prompts: deterministic, with divergence by chance and by values of flags.

use std::str::FromStr;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::options::SimOptions;
use crate::guard::{CheckedPrompt, find_prompt};
use crate::stats::Fnv1a;

/// The number of words of a reply.
const WORDS: usize = 16;

/// The share of the prompts that the simulated model answers correctly.
const CORRECT: f64 = 0.85;

/// A flag's value that changes replies.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LossyValue {
    flag: String,
    value: String,
    /// The share of the prompts whose replies change.
    share: f64,
}

impl FromStr for LossyValue {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (setting, share) = text.rsplit_once(':')?;
            let (flag, value) = setting.split_once('=')?;
            let share = share.parse().ok().filter(|share| (0.0..=1.0).contains(share))?;
            Some(Self { flag: flag.to_owned(), value: value.to_owned(), share })
        };
        parse().ok_or_else(|| {
            format!("'{text}' is not of the form FLAG=VALUE:SHARE with a share from 0 to 1, as kv-cache-dtype=fp8:0.3")
        })
    }
}

/// The source of the greedy replies of one launch.
#[derive(Clone, Debug)]
pub(super) struct GreedyModel {
    noise: f64,
    /// Values that this launch has.
    lossy: Vec<LossyValue>,
    /// The identity of the launch, the seed of its noise.
    launch: String,
}

impl GreedyModel {
    pub(super) fn new(options: &SimOptions) -> Self {
        let has =
            |lossy: &&LossyValue| options.config.get(&lossy.flag).is_some_and(|value| value.to_string() == lossy.value);
        let draw = options.study_launch.map(|launch| launch.draw);
        Self {
            noise: options.greedy_noise,
            lossy: options.lossy.iter().filter(has).cloned().collect(),
            launch: format!("{} {draw:?}", options.seed),
        }
    }

    /// Returns the reply to a prompt of the guard. `request` is the number of the request in this launch. `None` for other
    /// prompts.
    pub(super) fn reply(&self, text: &str, request: u64) -> Option<String> {
        let prompt = find_prompt(text)?;
        let mut words = words(&["model"], prompt);
        for lossy in &self.lossy {
            let key = [&*lossy.flag, &*lossy.value];
            diverge(&mut words, prompt, &key, lossy.share);
        }
        diverge(&mut words, prompt, &["noise", &self.launch, &request.to_string()], self.noise);
        Some(words.concat())
    }
}

/// Replaces the words behind a drawn place, with the probability `share`.
fn diverge(reply: &mut [String], prompt: &CheckedPrompt, key: &[&str], share: f64) {
    let mut rng = rng(key, prompt);
    if rng.random::<f64>() < share {
        let from = rng.random_range(0..reply.len());
        let other = words(key, prompt);
        reply.iter_mut().zip(other).skip(from).for_each(|(word, other)| *word = other);
    }
}

/// Returns the words that a model with this key generates. The first one is the answer.
fn words(key: &[&str], prompt: &CheckedPrompt) -> Vec<String> {
    let mut rng = rng(&[key, &["words"]].concat(), prompt);
    let is_correct = key == ["model"] && rng.random::<f64>() < CORRECT;
    let answer = if is_correct { prompt.answer() } else { "unknown" };
    let mut words = vec![format!(" {answer}")];
    words.extend((1..WORDS).map(|_| format!(" w{}", rng.random_range(0..1000))));
    words
}

fn rng(key: &[&str], prompt: &CheckedPrompt) -> ChaCha8Rng {
    let hash =
        key.iter().chain(&[prompt.question]).fold(Fnv1a::new(), |hash, part| hash.with(part.as_bytes()).with(&[0]));
    ChaCha8Rng::seed_from_u64(hash.value())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::PROMPTS;

    fn model(line: &str) -> GreedyModel {
        let arguments: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        GreedyModel::new(&SimOptions::parse(&arguments).unwrap())
    }

    /// Counts the prompts to which two launches reply differently.
    fn differing(a: &GreedyModel, b: &GreedyModel) -> usize {
        let reply = |of: &GreedyModel, place: usize, request: u64| of.reply(PROMPTS[place].question, request).unwrap();
        (0..PROMPTS.len()).filter(|place| reply(a, *place, 1) != reply(b, *place, 2)).count()
    }

    #[test]
    fn replies_repeat_and_are_mostly_correct() {
        let plain = model("m");
        assert_eq!(differing(&plain, &model("m --sim-lossy kv-cache-dtype=fp8:1")), 0);
        let correct = PROMPTS.iter().filter(|prompt| prompt.is_correct(&plain.reply(prompt.question, 0).unwrap()));
        assert!((45..64).contains(&correct.count()));
        assert_eq!(plain.reply("Hello", 0), None);
    }

    #[test]
    fn a_lossy_value_and_noise_change_their_share_of_the_replies() {
        let lossy = model("m --kv-cache-dtype fp8 --sim-lossy kv-cache-dtype=fp8:0.5");
        assert!((20..=44).contains(&differing(&model("m"), &lossy)));
        assert_eq!(differing(&lossy, &lossy), 0, "a lossy value is no noise");
        let noisy = model("m --sim-greedy-noise 0.3");
        assert!((10..=55).contains(&differing(&noisy, &noisy)));
    }

    #[test]
    fn another_form_of_a_lossy_value_is_refused() {
        for text in ["", "a=b", "a:0.5", "a=b:2", "a=b:x"] {
            assert!(text.parse::<LossyValue>().unwrap_err().contains("is not of the form"), "{text}");
        }
    }
}
