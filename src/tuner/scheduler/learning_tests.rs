//! Runs with a sampler that learns from outcomes: its questions, the effects of its judgement, and resumed studies.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::tests::{EndOrder, SchedulerBench, finish, pretended, scheduler_of, settle};
use super::*;
use crate::config::Config;
use crate::execution::ExecutionEnvironment;
use crate::facts::{Host, HostLimits};
use crate::sampler::{Judgement, KnownOutcome, MeasuredNumbers, Pick, Sampler, SamplerAsk, Suggestion};
use crate::stats::to_f64;
use crate::store::StoredJudgement;
use crate::trial::{Measurement, PhaseTime, Startup};

/// A sampler that derives its suggestions from the measured values, and expects less gain from each further trial.
struct Learner;

fn value(measured: &MeasuredNumbers) -> f64 {
    measured.values[0].value
}

impl Sampler for Learner {
    fn name(&self) -> &'static str {
        "learner"
    }

    fn summary(&self) -> &'static str {
        "for tests"
    }

    fn ask(&self, ask: &SamplerAsk<'_>) -> Option<Suggestion> {
        assert!(
            ask.history.iter().all(|past| past.origin != Origin::Interference),
            "neighbours teach nothing of a configuration"
        );
        assert_eq!(ask.defaults.get_i64("tensor-parallel-size"), Some(1));
        let mut sum = 7_u64;
        for (place, past) in ask.history.iter().enumerate() {
            let told = match &past.outcome {
                KnownOutcome::Measured(measured) => value(measured).to_bits(),
                KnownOutcome::Failed => 1,
                KnownOutcome::Rejected => 2,
                KnownOutcome::Pending => 3,
                KnownOutcome::Inconclusive => 4,
            };
            sum = sum.wrapping_mul(31).wrapping_add(told).wrapping_add(place as u64);
        }
        let seen: Vec<_> = ask.history.iter().map(|past| past.config.key()).collect();
        let mut free = ask.space.enumerate(10_000)?;
        free.retain(|config| !seen.contains(&config.key()) && (ask.allowed)(config));
        let count = u64::try_from(free.len()).ok().filter(|count| *count > 0)?;
        let config = free.swap_remove(usize::try_from(sum % count).ok()?);
        Some(Suggestion::new(config, format!("{:?} are left", ask.trials_left)))
    }

    /// Ranks the second best measurement first.
    fn judge(&self, ask: &SamplerAsk<'_>) -> Option<Judgement> {
        let measured = ask.history.iter().enumerate().filter_map(|(place, past)| Some((place, past.measured()?)));
        let mut ranking: Vec<_> = measured
            .filter(|(place, _)| {
                let is_first =
                    |past: &PastTrial| past.config == ask.history[*place].config && past.measured().is_some();
                ask.history.iter().position(is_first) == Some(*place)
            })
            .map(|(place, measured)| Pick {
                history_index: place,
                values: vec![Some((value(measured), 0.01))],
                feasible: 1.0,
            })
            .collect();
        let (count, known) = (ranking.len(), ask.history.iter().filter(|past| past.measured().is_some()).count());
        ranking.sort_by(|a, b| b.values[0].unwrap().0.total_cmp(&a.values[0].unwrap().0));
        if count > 1 {
            ranking.swap(0, 1);
        }
        Some(Judgement {
            front: Vec::new(),
            pick: ranking.first().cloned(),
            ranking,
            remaining_gain: Some([0.0, 0.01, 0.02]),
            next_gain: Some(1.0 / to_f64(known * known)),
            notes: vec!["seen".to_owned()],
        })
    }
}

async fn bench(budget: &str, devices: usize) -> SchedulerBench {
    let mut bench = SchedulerBench::new(budget, devices, 200).await;
    bench.job.sampler = &Learner;
    bench
}

/// Returns all decisions of a study, with their reasons and expected gains.
async fn told(bench: &SchedulerBench) -> (Vec<String>, Option<StoredJudgement>) {
    let rows = bench.store.proposals(&bench.study).await.unwrap();
    (rows.iter().map(|row| format!("{row:?}")).collect(), bench.store.judgement(&bench.study).await.unwrap())
}

#[tokio::test]
async fn a_resumed_study_with_one_trial_at_a_time_learns_like_an_undisturbed_one() {
    let undisturbed = bench("trials = 14, confirm = 1, repeat_baseline = 0", 1).await;
    assert_eq!(finish(&undisturbed, 0, EndOrder::default()).await, StudyEnding::TrialsSpent);
    let expected = told(&undisturbed).await;
    let rows = undisturbed.store.proposals(&undisturbed.study).await.unwrap();
    let states: Vec<_> = rows.iter().map(|row| row.state.clone()).collect();
    let rows: Vec<_> = rows.into_iter().map(|row| row.proposal).collect();
    assert!(rows.iter().all(|row| row.why.is_some()));
    assert_eq!(rows[0].expected_gain, None, "of the defaults nothing is expected");
    assert!(rows[1].expected_gain.is_some());
    let searched = rows.iter().filter(|row| row.origin == "learner".into());
    let left: Vec<_> = searched.filter_map(|row| row.why.as_deref()).collect();
    let falling: Vec<_> = (1..=11).rev().map(|left| format!("Some({left}) are left")).collect();
    assert_eq!(left, falling, "after the defaults, and without the two of the confirmation");
    let has = |state: &str| states.iter().any(|other| other == state);
    assert!(has("failed") && has("measured"), "it learns of both: {states:?}");
    for seed in 1..6 {
        let disturbed = bench("trials = 14, confirm = 1, repeat_baseline = 0", 1).await;
        let chances = EndOrder { killed: 0.1, ..EndOrder::default() };
        assert_eq!(finish(&disturbed, seed, chances).await, StudyEnding::TrialsSpent);
        assert_eq!(told(&disturbed).await.0, expected.0, "seed {seed}");
    }
}

#[tokio::test]
async fn concurrent_trials_use_all_known_outcomes_and_never_repeat_a_configuration() {
    let bench = bench("trials = 24", 8).await;
    let chances = EndOrder { killed: 0.02, paused: 0.02, ..EndOrder::default() };
    assert_eq!(finish(&bench, 3, chances).await, StudyEnding::TrialsSpent);
    let rows = bench.store.proposals(&bench.study).await.unwrap();
    let mut searched: Vec<_> = rows
        .iter()
        .filter(|row| row.proposal.origin == "learner".into())
        .map(|row| row.proposal.config.key())
        .collect();
    let count = searched.len();
    searched.sort_unstable();
    searched.dedup();
    assert_eq!((searched.len(), bench.paid().await), (count, 24));
}

#[tokio::test]
async fn a_search_that_no_longer_pays_ends_with_its_confirmation_and_stays_ended() {
    let mut bench = bench("trials = 100, ablation = 0", 1).await;
    let ending = finish(&bench, 1, EndOrder { killed: 0.02, ..EndOrder::default() }).await;
    let StudyEnding::Converged { next_gain, below, trials: 5, remaining } = ending.clone() else { panic!("{ending}") };
    assert!(next_gain < 0.005 && (below - 0.005).abs() < 1e-12 && remaining == Some([0.0, 0.01, 0.02]));
    assert!(ending.to_string().ends_with("estimated remaining gain: 1.0 % (90 % interval 0.0 to 2.0)"), "{ending}");
    let rows = bench.store.proposals(&bench.study).await.unwrap();
    let confirmed: Vec<_> = rows.iter().filter(|row| row.proposal.origin == Origin::Confirmation).collect();
    assert_eq!(confirmed.len(), 6, "two finalists twice, then the pick and the defaults");

    // The pick, and not the best single measurement.
    let verdict = bench.store.judgement(&bench.study).await.unwrap();
    let goal = bench.job.objective.goal;
    let leaders = bench.store.leading_configurations(&bench.study, goal, verdict.as_ref(), 1).await.unwrap();
    let best = bench.store.best(&bench.study, goal, 1).await.unwrap();
    assert_ne!(leaders[0].first.trial.proposal.config, best[0].first.trial.proposal.config);
    assert!(confirmed.iter().any(|row| row.proposal.config == leaders[0].first.trial.proposal.config));
    assert_eq!(leaders[0].measurements, 4);

    let before = bench.decided().await;
    assert_eq!(finish(&bench, 2, EndOrder::default()).await, ending);
    assert_eq!(bench.decided().await, before);
    bench.job.budget.stop_rule.gain = 0.0;
    bench.job.budget.trials = Some(40);
    let ending = finish(&bench, 3, EndOrder::default()).await;
    assert_eq!(ending, StudyEnding::Settled { unused: 2 }, "it is switched off");
}

#[tokio::test]
async fn notes_of_the_sampler_are_reported_once() {
    let bench = bench("trials = 6", 1).await;
    let mut run = bench.study_run().await;
    let (sender, told) = std::sync::mpsc::channel();
    run.observer = Arc::new(move |event| {
        if let TunerEvent::Notice { text } = event {
            // The receiver may be gone after the test.
            let _ = sender.send(text);
        }
    });
    let mut scheduler = scheduler_of(run).await;
    loop {
        match scheduler.next().await.unwrap() {
            NextAction::Launch(LaunchOrder { pending, place }) => {
                let result = pretended(&pending.proposal, &place, EndOrder::default());
                assert_eq!(settle(&mut scheduler, LaunchOrder { pending, place }, result).await, None);
            }
            NextAction::AskAgain => {}
            NextAction::Look { .. } | NextAction::Release { .. } | NextAction::Wait => panic!("nothing runs"),
            NextAction::End(ending) => break assert_eq!(ending, StudyEnding::TrialsSpent),
        }
    }
    assert_eq!(told.try_iter().collect::<Vec<_>>(), ["seen"]);
}

/// A sampler that answers only after another task has run meanwhile.
struct Patient;

static ELSEWHERE: AtomicBool = AtomicBool::new(false);

impl Sampler for Patient {
    fn name(&self) -> &'static str {
        "patient"
    }

    fn summary(&self) -> &'static str {
        "for tests"
    }

    fn ask(&self, ask: &SamplerAsk<'_>) -> Option<Suggestion> {
        let begin = Instant::now();
        while !ELSEWHERE.load(Ordering::SeqCst) {
            assert!(begin.elapsed() < Duration::from_secs(20), "the loop waits for the sampler");
            std::thread::sleep(Duration::from_millis(1));
        }
        Learner.ask(ask)
    }
}

#[tokio::test]
async fn launches_are_supervised_while_the_sampler_computes() {
    let mut bench = SchedulerBench::new("trials = 6", 1, 200).await;
    bench.job.sampler = &Patient;
    let mut scheduler = bench.scheduler().await;
    let NextAction::Launch(LaunchOrder { pending, place }) = scheduler.next().await.unwrap() else {
        panic!("the defaults come first")
    };
    let result = pretended(&pending.proposal, &place, EndOrder::default());
    assert_eq!(settle(&mut scheduler, LaunchOrder { pending, place }, result).await, None);
    let (next, ()) = tokio::join!(scheduler.next(), async { ELSEWHERE.store(true, Ordering::SeqCst) });
    assert!(matches!(next.unwrap(), NextAction::Launch(..)));
}

/// A sampler that names its priors as the reason of each suggestion.
struct Believer;

impl Sampler for Believer {
    fn name(&self) -> &'static str {
        "believer"
    }

    fn summary(&self) -> &'static str {
        "for tests"
    }

    fn uses_priors(&self) -> bool {
        true
    }

    fn ask(&self, ask: &SamplerAsk<'_>) -> Option<Suggestion> {
        let told = ask.priors.iter().map(|prior| format!("{} {}", prior.name, !prior.points().is_empty()));
        let why = told.collect::<Vec<_>>().join(", ");
        Learner.ask(ask).map(|suggestion| Suggestion { why, ..suggestion })
    }
}

#[tokio::test]
async fn priors_of_the_twin_and_of_earlier_studies_are_equal_in_a_later_run() {
    let mut bench = SchedulerBench::new("trials = 6", 1, 16).await;
    bench.job.sampler = &Believer;
    bench.job.priors = ["twin", "earlier", "absent", "elsewhere"].map(str::to_owned).to_vec();
    for (name, flag) in [("earlier", "max-num-seqs"), ("elsewhere", "block-size")] {
        let study = bench.store.create_study(name, &serde_json::json!({}), &Host::detect()).await.unwrap();
        for number in 0..2 {
            let measurement = Measurement { duration_s: 1.0, total_output_tokens: 100, ..Measurement::default() };
            let config = Config::new().with("max-model-len", 2048_i64).with(flag, i64::from(8 * (number + 1)));
            let trial = Trial::example(number, "sobol", Outcome::Measured(measurement)).with_config(config);
            bench.store.append(study.id, &trial, bench.job.objective.score(&trial.outcome)).await.unwrap();
        }
    }
    let mut run = bench.study_run().await;
    let (sender, told) = std::sync::mpsc::channel();
    run.observer = Arc::new(move |event| {
        if let TunerEvent::Notice { text } = event {
            // The receiver may be gone after the test.
            let _ = sender.send(text);
        }
    });
    let mut scheduler = scheduler_of(run).await;
    let told: Vec<_> = told.try_iter().filter(|text| text.starts_with("no prior")).collect();
    assert_eq!(told[0], "no prior absent: the database has no study of this name");
    assert_eq!(told[1], "no prior elsewhere: none of its measured trials is a point of this space");
    let NextAction::Launch(LaunchOrder { pending, place }) = scheduler.next().await.unwrap() else {
        panic!("the defaults come first")
    };
    let result = pretended(&pending.proposal, &place, EndOrder::default());
    assert_eq!(settle(&mut scheduler, LaunchOrder { pending, place }, result).await, None);
    let NextAction::Launch(LaunchOrder { pending, .. }) = scheduler.next().await.unwrap() else {
        panic!("nothing runs")
    };
    assert_eq!(pending.proposal.why.as_deref(), Some("the twin true, study earlier true"));
    let again = bench.scheduler().await;
    assert_eq!(again.priors, scheduler.priors);
    assert!(again.priors[0].points().len() > 8, "{}", again.priors[0].points().len());
}

/// A sampler that suggests the configuration with the least expected cost.
struct Thrifty;

impl Sampler for Thrifty {
    fn name(&self) -> &'static str {
        "thrifty"
    }

    fn summary(&self) -> &'static str {
        "for tests"
    }

    fn ask(&self, ask: &SamplerAsk<'_>) -> Option<Suggestion> {
        let cost = |config: &Config| ask.cost.map_or(0.0, |cost| cost(config));
        let free = ask.space.enumerate(10_000)?.into_iter();
        let free =
            free.filter(|config| !ask.history.iter().any(|past| past.config == *config) && (ask.allowed)(config));
        let (seconds, config) = free.map(|config| (cost(&config), config)).min_by(|a, b| a.0.total_cmp(&b.0))?;
        Some(Suggestion::new(config, format!("{seconds} s")))
    }
}

/// A launch on a CPU, whose compilation takes longer with more sequences.
fn compiled(proposal: &Proposal, place: &SlotPlace) -> EndedTrial {
    let trial = Trial { elapsed_s: 31.5, ..pretended(proposal, place, EndOrder::default()) };
    let compile_s = 10.0 + to_f64(proposal.config.get_i64("max-num-seqs").unwrap_or(0));
    let phase = |phase: &str, duration_s| PhaseTime { phase: phase.to_owned(), duration_s };
    let phases =
        vec![phase("import", 11.0 + f64::from(proposal.number % 3)), phase("compile", compile_s), phase("server", 1.0)];
    let mut launched = EndedTrial::from(trial);
    launched.records.startup = Some(Startup { phases, ..Startup::default() });
    launched
}

#[tokio::test]
async fn expected_launch_costs_follow_from_stored_trials() {
    let engine = r#"{ kind = "vllm", command = ["true"], version = "0.32.0", device = "cpu", env = { VLLM_CPU_KVCACHE_SPACE = "1" } }"#;
    let mut expected = None;
    for is_interrupted in [false, true] {
        let mut bench = SchedulerBench::of(engine, "trials = 10, confirm = 0", 1, 8).await;
        bench.job.sampler = &Thrifty;
        let installed = ExecutionEnvironment { host: HostLimits::default(), ..bench.study_run().await.installed };
        let open = async || scheduler_of(StudyRun { installed: installed.clone(), ..bench.study_run().await }).await;
        let mut scheduler = open().await;
        loop {
            match scheduler.next().await.unwrap() {
                NextAction::Launch(LaunchOrder { pending, place }) => {
                    let result = Ok(LaunchEnd::Outcome(compiled(&pending.proposal, &place)));
                    assert_eq!(
                        scheduler
                            .process_end(EndedOrder { order: LaunchOrder { pending, place }, result })
                            .await
                            .unwrap(),
                        None
                    );
                }
                NextAction::AskAgain => {}
                NextAction::Look { .. } | NextAction::Release { .. } | NextAction::Wait => panic!("nothing runs"),
                NextAction::End(ending) => break assert_eq!(ending, StudyEnding::TrialsSpent),
            }
            if is_interrupted {
                scheduler = open().await;
            }
        }
        let told = told(&bench).await.0;
        assert!(!told.iter().any(|row| row.contains("\"0 s\"")), "each has a cost: {told:?}");
        assert_eq!(*expected.get_or_insert_with(|| told.clone()), told);
    }
}
