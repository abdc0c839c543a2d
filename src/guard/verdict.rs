//! The comparison of a launch's replies with the baseline's.

use serde::{Deserialize, Serialize};

use super::permutation::{Labelings, p_value};
use super::{GreedyReplies, PROMPTS};
use crate::stats::to_f64;

/// Steps between no agreement and equality, so that the permutation test has whole numbers.
const GRAIN: i64 = 240;

/// Half the width of a 95 % interval, in standard deviations of the normal distribution.
const HALF_WIDTH: f64 = 1.959_963_984_540_054;

/// The largest loss of agreement that counts as none.
const NEGLIGIBLE_LOSS: f64 = 0.05;

/// Whether a configuration keeps the replies of the baseline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuardVerdict {
    /// The loss of agreement is at most 5 %, with 95 % confidence.
    Agrees,
    /// The replies differ significantly more than those of the baseline among themselves, or fewer are correct.
    Differs,
    /// Neither is proven.
    NotSettled,
}

impl GuardVerdict {
    /// Returns the name in the database and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Agrees => "agrees",
            Self::Differs => "differs",
            Self::NotSettled => "not_settled",
        }
    }
}

/// The comparison of a launch with the baseline. Shares are from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReplyComparison {
    pub verdict: GuardVerdict,
    /// Agreement with the baseline.
    pub agreement: f64,
    /// 95 % interval of `agreement`, over prompts.
    pub low: f64,
    pub high: f64,
    /// Agreement of the baseline with itself.
    pub own_agreement: f64,
    /// Share of correct replies, of the launch and of the baseline.
    pub correct: f64,
    pub own_correct: f64,
    /// Probabilities of such a difference by chance, of the agreement and of the correct replies.
    pub p_agreement: f64,
    pub p_correct: f64,
    /// The probability below which a difference is significant.
    pub level: f64,
}

impl ReplyComparison {
    /// Returns the agreement as a share of the baseline's own, at most 1.
    #[must_use]
    pub fn relative_agreement(&self) -> f64 {
        if self.own_agreement > 0.0 { (self.agreement / self.own_agreement).min(1.0) } else { 1.0 }
    }

    /// Returns the share of the baseline's agreement that is kept for certain: 1 unless a difference is significant.
    #[must_use]
    pub fn kept(&self) -> f64 {
        if self.verdict != GuardVerdict::Differs {
            return 1.0;
        }
        let correct = if self.own_correct > 0.0 { (self.correct / self.own_correct).min(1.0) } else { 1.0 };
        self.relative_agreement().min(correct).min(1.0 - f64::EPSILON)
    }
}

impl std::fmt::Display for ReplyComparison {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let percent = |share: f64| (100.0 * share).round();
        let verdict = match self.verdict {
            GuardVerdict::Agrees => "agrees with the baseline",
            GuardVerdict::Differs => "differs from the baseline",
            GuardVerdict::NotSettled => "not settled",
        };
        write!(
            f,
            "{verdict}: agreement {} % ({} to {}), the baseline's own {} %; correct {} %, the baseline's {} %",
            percent(self.agreement),
            percent(self.low),
            percent(self.high),
            percent(self.own_agreement),
            percent(self.correct),
            percent(self.own_correct),
        )
    }
}

/// Compares the replies of a launch with those of one or two launches of the baseline. `level` is the largest
/// probability of a false `Differs`. Returns `None` without references or if replies are missing.
#[must_use]
pub(crate) fn compare(launch: &GreedyReplies, references: &[&GreedyReplies], level: f64) -> Option<ReplyComparison> {
    if !launch.is_complete() || references.iter().any(|reference| !reference.is_complete()) {
        return None;
    }
    let prompts = 0..PROMPTS.len();
    let (first, second) = (*references.first()?, references.get(1).copied());
    let rows: Vec<PromptRow> = prompts.map(|prompt| PromptRow::of(prompt, launch, first, second)).collect();
    let labelings = |of: fn(&PromptRow) -> &Labelings| rows.iter().map(of).cloned().collect::<Vec<_>>();
    let p_agreement = p_value(&labelings(|row| &row.agreement));
    let p_correct = p_value(&labelings(|row| &row.correct));
    let mean = |of: &dyn Fn(&PromptRow) -> f64| rows.iter().map(of).sum::<f64>() / to_f64(rows.len());
    let (agreement, own_agreement) = (mean(&|row| row.with_baseline), mean(&|row| row.own));
    let half_width = |of: &dyn Fn(&PromptRow) -> f64, mean: f64| {
        let squares: f64 = rows.iter().map(|row| (of(row) - mean).powi(2)).sum();
        let count = to_f64(rows.len());
        HALF_WIDTH * (squares / (count - 1.0) / count).sqrt()
    };
    let half = half_width(&|row| row.with_baseline, agreement);
    let loss = own_agreement - agreement;
    let highest_loss = loss + half_width(&|row| row.own - row.with_baseline, loss);
    let verdict = if p_agreement.min(p_correct) <= level / 2.0 {
        GuardVerdict::Differs
    } else if highest_loss <= NEGLIGIBLE_LOSS {
        GuardVerdict::Agrees
    } else {
        GuardVerdict::NotSettled
    };
    Some(ReplyComparison {
        verdict,
        agreement,
        low: (agreement - half).max(0.0),
        high: (agreement + half).min(1.0),
        own_agreement,
        correct: mean(&|row| row.launch_correct),
        own_correct: mean(&|row| row.own_correct),
        p_agreement,
        p_correct,
        level,
    })
}

/// The statistics of one prompt.
struct PromptRow {
    /// Agreement with the baseline, and of the baseline with itself.
    with_baseline: f64,
    own: f64,
    /// Share of correct replies.
    launch_correct: f64,
    own_correct: f64,
    agreement: Labelings,
    correct: Labelings,
}

impl PromptRow {
    fn of(prompt: usize, launch: &GreedyReplies, first: &GreedyReplies, second: Option<&GreedyReplies>) -> Self {
        let share = |steps: i64, whole: i64| to_f64(steps) / to_f64(whole);
        let correct = |replies: &GreedyReplies| i64::from(replies.correct(prompt));
        let passes = i64::try_from(launch.passes.len()).unwrap_or(1);
        let Some(second) = second else {
            // The labels of launch and baseline may be exchanged in one pass, which turns the sign.
            let equal = |a, pass_a, b, pass_b| i64::from(steps(prompt, a, pass_a, b, pass_b) == GRAIN);
            let within = equal(first, 0, first, 1) + equal(launch, 0, launch, 1);
            let across = equal(first, 0, launch, 1) + equal(first, 1, launch, 0);
            let with_baseline = cross(prompt, first, launch);
            let fewer = correct(first) - correct(launch);
            return Self {
                with_baseline: share(with_baseline, 2 * GRAIN),
                own: share(steps(prompt, first, 0, first, 1), GRAIN),
                launch_correct: share(correct(launch), passes),
                own_correct: share(correct(first), passes),
                agreement: vec![within - across, across - within],
                correct: vec![fewer, -fewer],
            };
        };
        // Any of the three launches may be the one that differs.
        let pairs = [cross(prompt, first, second), cross(prompt, first, launch), cross(prompt, second, launch)];
        let total: i64 = pairs.iter().sum();
        let all = [launch, second, first];
        let odd: Vec<i64> =
            (0..3).map(|place| equal_pairs(prompt, all[(place + 1) % 3], all[(place + 2) % 3])).collect();
        let equal: i64 = odd.iter().sum();
        let counts = [launch, second, first].map(correct);
        let counted: i64 = counts.iter().sum();
        Self {
            with_baseline: share(total - pairs[0], 4 * GRAIN),
            own: share(pairs[0], 2 * GRAIN),
            launch_correct: share(counts[0], passes),
            own_correct: share(counts[1] + counts[2], 2 * passes),
            agreement: odd.iter().map(|pair| 3 * pair - equal).collect(),
            correct: counts.iter().map(|count| counted - 3 * count).collect(),
        }
    }
}

/// Returns the agreement of two launches in different passes, from 0 to twice [`GRAIN`].
fn cross(prompt: usize, a: &GreedyReplies, b: &GreedyReplies) -> i64 {
    steps(prompt, a, 0, b, 1) + steps(prompt, a, 1, b, 0)
}

/// Returns the number of equal pairs of replies of two launches, of all pairs of passes.
fn equal_pairs(prompt: usize, a: &GreedyReplies, b: &GreedyReplies) -> i64 {
    let passes = |of: &GreedyReplies| 0..of.passes.len();
    let pairs = passes(a).flat_map(|pass_a| passes(b).map(move |pass_b| (pass_a, pass_b)));
    pairs.map(|(pass_a, pass_b)| i64::from(steps(prompt, a, pass_a, b, pass_b) == GRAIN)).sum()
}

/// Returns the agreement of two replies to a prompt, from 0 to [`GRAIN`].
fn steps(prompt: usize, a: &GreedyReplies, pass_a: usize, b: &GreedyReplies, pass_b: usize) -> i64 {
    let reply = |of: &GreedyReplies, pass: usize| -> Vec<char> {
        of.passes.get(pass).and_then(|pass| pass.get(prompt)).map_or_else(Vec::new, |reply| reply.chars().collect())
    };
    let (a, b) = (reply(a, pass_a), reply(b, pass_b));
    let longer = i64::try_from(a.len().max(b.len())).unwrap_or(i64::MAX);
    let common = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
    if longer == 0 { GRAIN } else { i64::try_from(common).unwrap_or(0) * GRAIN / longer }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Replies of one launch. In each pass `differs` decides for each prompt whether the reply diverges.
    fn launch(differs: impl Fn(usize, usize) -> Option<&'static str>) -> GreedyReplies {
        let reply = |pass: usize, prompt: usize| {
            let answer = PROMPTS[prompt].answer();
            differs(pass, prompt).map_or_else(|| format!(" {answer}\nand so on"), |other| format!(" {other}"))
        };
        let pass = |pass: usize| (0..PROMPTS.len()).map(|prompt| reply(pass, prompt)).collect();
        GreedyReplies { passes: vec![pass(0), pass(1)] }
    }

    #[test]
    fn equal_replies_agree() {
        let same = launch(|_, _| None);
        for references in [vec![&same], vec![&same, &same]] {
            let compared = compare(&same, &references, 0.01).unwrap();
            assert_eq!(compared.verdict, GuardVerdict::Agrees);
            assert!((compared.agreement - 1.0).abs() < 1e-12 && (compared.correct - 1.0).abs() < 1e-12);
            assert!((compared.kept() - 1.0).abs() < 1e-12);
        }
    }

    #[test]
    fn replies_that_change_for_a_third_of_the_prompts_differ() {
        let (same, lossy) = (launch(|_, _| None), launch(|_, prompt| prompt.is_multiple_of(3).then_some("unknown")));
        for references in [vec![&same], vec![&same, &same]] {
            let compared = compare(&lossy, &references, 0.001).unwrap();
            assert_eq!(compared.verdict, GuardVerdict::Differs);
            assert!(compared.kept() < 0.7 && compared.high < 0.9, "{compared:?}");
        }
    }

    #[test]
    fn noise_of_the_baseline_itself_is_no_loss() {
        // A different fifth of the prompts changes in each pass of each launch.
        let noisy = |number: usize| {
            launch(move |pass, prompt| (prompt + 2 * number + pass).is_multiple_of(5).then_some("unknown"))
        };
        let (first, second, third) = (noisy(0), noisy(1), noisy(2));
        for references in [vec![&first], vec![&first, &second]] {
            let compared = compare(&third, &references, 0.01).unwrap();
            assert_ne!(compared.verdict, GuardVerdict::Differs, "{compared:?}");
            assert!(compared.own_agreement < 0.8, "{compared:?}");
        }
    }

    #[test]
    fn incomplete_replies_are_not_compared() {
        let (same, mut short) = (launch(|_, _| None), launch(|_, _| None));
        short.passes[1].pop();
        assert_eq!(compare(&short, &[&same], 0.01), None);
        assert_eq!(compare(&same, &[&short], 0.01), None);
        assert_eq!(compare(&same, &[], 0.01), None);
    }
}
