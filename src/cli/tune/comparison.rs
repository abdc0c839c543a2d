//! A comparison of engines: their searches in turn, and the verdict on the best two.
//!
//! Each engine has a study of its own. The searches take equal parts of the budget in turn. An engine that cannot win any
//! more gets no further launch. Then the winners of the best two engines are launched in turn, and the rest of the budget
//! confirms the better one against its engine's defaults.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::runnable::RunnableStudy;
use super::{TuneCommand, dry_run, print_findings, stops};
use crate::cli::GlobalOptions;
use crate::cli::failure::{CommandFailure, ENGINE_NEVER_HEALTHY, INTERRUPTED, NOTHING_FEASIBLE};
use crate::cli::output::{note, print};
use crate::cli::progress::ViewGuard;
use crate::config::Config;
use crate::decision::{EngineStanding, compare_engines, launch_noise};
use crate::execution::detect;
use crate::job::{EngineComparison, StudyBudget};
use crate::objective::{Goal, Score};
use crate::report::{ComparedEngine, engine_comparison_text};
use crate::stats::f64_to_u32;
use crate::store::{Store, Study};
use crate::tuner::{Slots, StopRequest, StudyEnding};

/// The number of parts of the searches. After each part, engines that cannot win are dropped.
const PARTS: u32 = 4;

/// The share of the budget for the searches, and that for the launches of the winners in turn.
const SEARCH_SHARE: f64 = 0.6;
const TURNS_SHARE: f64 = 0.2;

/// The fewest launches of an engine's first part: its defaults and two others.
const FIRST_PART: u32 = 3;

/// The largest number of rounds in turn, and the smallest one before a clear difference ends them.
const MAX_ROUNDS: usize = 6;
const MIN_ROUNDS: usize = 2;

/// An engine of the comparison with its state.
struct ComparedStudy {
    name: String,
    study: RunnableStudy,
    /// The budget of the file, for the confirmation.
    budget: StudyBudget,
    standing: EngineStanding,
    /// Why the search gets no further part. `None` while it goes on.
    ended: Option<String>,
}

/// The rest of the shared budget.
struct SharedBudget {
    trials: Option<u32>,
    end: Option<Instant>,
    begin: Instant,
}

impl SharedBudget {
    fn new(budget: &StudyBudget) -> Self {
        let begin = Instant::now();
        Self { trials: budget.trials, end: budget.time.and_then(|time| begin.checked_add(time)), begin }
    }

    /// Returns the time until a share of the whole budget is spent; `None` without a limit.
    fn time_until(&self, share: f64) -> Option<Duration> {
        let whole = self.end?.duration_since(self.begin);
        Some(whole.mul_f64(share).saturating_sub(self.begin.elapsed()))
    }

    /// Returns the launches until a share of the whole budget is spent; `None` without a limit. `spent` is the number of
    /// launches so far.
    fn trials_until(&self, share: f64, spent: u32) -> Option<u32> {
        let until = f64_to_u32((f64::from(self.trials?) * share).round());
        Some(until.saturating_sub(spent))
    }

    fn is_spent(&self, share: f64, spent: u32) -> bool {
        self.time_until(share).is_some_and(|left| left.is_zero()) || self.trials_until(share, spent) == Some(0)
    }
}

/// Runs or resumes a comparison.
pub(super) async fn run(
    command: &TuneCommand,
    mut comparison: EngineComparison,
    global: &GlobalOptions,
) -> Result<(), CommandFailure> {
    comparison.budget.trials = command.trials.or(comparison.budget.trials);
    comparison.budget.time = command.time.or(comparison.budget.time);
    if command.dry_run {
        for entrant in &comparison.entrants {
            let installed = detect(&entrant.job).await;
            entrant.job.check_release(installed.version)?;
            note(global, &format!("engine {}:", entrant.name));
            dry_run(&entrant.job, &installed, global).await?;
        }
        return Ok(());
    }
    for entrant in &comparison.entrants {
        if let Some(error) = entrant.job.engine.missing_program(&entrant.job.file) {
            return Err(error.into());
        }
    }
    let store = Store::open(&global.db, true).await?;
    let view = command.start_view(global, None).await?;
    let viewed = view.as_ref().map(|view| Arc::clone(&view.0));
    let mut engines = Vec::new();
    for mut entrant in comparison.entrants {
        command.override_job(&mut entrant.job)?;
        let mut installed = detect(&entrant.job).await;
        let slots = Slots::resolve(&entrant.job, &mut installed)?;
        installed.recall_release(&store, &entrant.job.name).await?;
        entrant.job.check_release(installed.version)?;
        let budget = entrant.job.budget;
        let study = RunnableStudy::new(entrant.job, installed, slots, &store, global, viewed.clone()).await?;
        study.note_conditions();
        engines.push(ComparedStudy {
            name: entrant.name,
            study,
            budget,
            standing: EngineStanding::default(),
            ended: None,
        });
    }
    let mut runner = ComparisonRun {
        store: &store,
        global,
        stop: stops()?,
        accepts_change: command.accept_change,
        shared: SharedBudget::new(&comparison.budget),
        view,
    };
    let conclusion = Box::pin(runner.conclude(&comparison.name, &mut engines)).await;
    store.close().await;
    conclusion
}

/// The parts that all steps of a comparison share.
struct ComparisonRun<'a> {
    store: &'a Store,
    global: &'a GlobalOptions,
    stop: watch::Receiver<StopRequest>,
    accepts_change: bool,
    shared: SharedBudget,
    view: Option<ViewGuard>,
}

impl ComparisonRun<'_> {
    async fn conclude(&mut self, name: &str, engines: &mut [ComparedStudy]) -> Result<(), CommandFailure> {
        self.search(engines).await?;
        let goal = engines[0].study.job.objective.goal;
        let mut order: Vec<usize> =
            (0..engines.len()).filter(|index| engines[*index].standing.value.is_some()).collect();
        let value = |index: &usize| engines[*index].standing.value.unwrap_or_default();
        order.sort_by(|a, b| match goal {
            Goal::Maximize => value(b).total_cmp(&value(a)),
            Goal::Minimize => value(a).total_cmp(&value(b)),
        });
        let Some(&first) = order.first() else {
            let failure = CommandFailure::new(NOTHING_FEASIBLE, "no engine has a configuration that keeps every limit");
            return Err(failure.with_hint("`setpoint trials --study NAME` shows the launches of each engine's study"));
        };
        let second = order.get(1).copied();
        let rounds = match second {
            Some(second) => self.launch_in_turn(engines, [first, second]).await?,
            None => Vec::new(),
        };
        let mut gain = compare_engines(&rounds, goal);
        let (mut winner, mut other) = (first, second);
        if let Some(second) = second.filter(|_| gain.gain.is_some_and(|gain| gain < 0.0)) {
            let reversed: Vec<_> = rounds.iter().map(|(first, second)| (*second, *first)).collect();
            gain = compare_engines(&reversed, goal);
            (winner, other) = (second, Some(first));
        }
        let study = self.confirm(&mut engines[winner]).await?;
        drop(self.view.take());
        for engine in engines.iter_mut() {
            engine.standing = self.standing(engine, goal).await?;
        }
        let mut compared = Vec::new();
        for (index, engine) in engines.iter().enumerate() {
            compared.push(ComparedEngine {
                name: engine.name.clone(),
                study: engine.study.job.name.clone(),
                value: engine.standing.value,
                launches: self.launches(engine).await?,
                note: engine.ended.clone(),
                is_winner: index == winner,
            });
        }
        let metric = engines[winner].study.job.objective.value_name();
        let other = other.map(|other| engines[other].name.as_str());
        print(&engine_comparison_text(name, &metric, &compared, other.map(|other| (other, &gain, rounds.len()))))?;
        print_findings(self.global, self.store, &study, &engines[winner].study.job).await
    }

    /// Notes a step, below the view if that is shown.
    fn note(&self, text: &str) {
        match &self.view {
            Some(view) => view.0.note(text),
            None => note(self.global, text),
        }
    }

    /// Runs the searches in turn, until their share of the budget is spent.
    async fn search(&self, engines: &mut [ComparedStudy]) -> Result<(), CommandFailure> {
        let goal = engines[0].study.job.objective.goal;
        for part in 0..PARTS {
            for index in 0..engines.len() {
                if engines[index].ended.is_some() {
                    continue;
                }
                let spent = self.all_launches(engines).await?;
                if part > 0 && self.shared.is_spent(SEARCH_SHARE, spent) {
                    return Ok(());
                }
                let active = engines.iter().filter(|engine| engine.ended.is_none()).count();
                let later = engines[index + 1..].iter().filter(|engine| engine.ended.is_none()).count();
                let turns = u32::try_from(later + 1 + active * (PARTS - part - 1) as usize).unwrap_or(u32::MAX);
                let engine = &mut engines[index];
                let before = self.launches(engine).await?;
                let trials = self.shared.trials_until(SEARCH_SHARE, spent).map(|left| left.div_ceil(turns).max(1));
                let budget = &mut engine.study.job.budget;
                budget.trials = trials.map(|trials| (before + trials).max(FIRST_PART));
                budget.time = self.shared.time_until(SEARCH_SHARE).map(|left| left / turns);
                (budget.confirm, budget.ablation) = (Some(0), Some(0));
                let ending = self.run_study(engine).await?.1;
                engine.standing = self.standing(engine, goal).await?;
                if !matches!(ending, StudyEnding::TrialsSpent | StudyEnding::TimeSpent) {
                    engine.ended = Some(ending.to_string());
                }
            }
            self.drop_losers(engines, goal);
        }
        Ok(())
    }

    /// Ends the searches of the engines that cannot win.
    fn drop_losers(&self, engines: &mut [ComparedStudy], goal: Goal) {
        let standings: Vec<_> = engines.iter().map(|engine| engine.standing).collect();
        let winner_of = |standing: &EngineStanding| standings.iter().position(|other| standing.loses_to(other, goal));
        let names: Vec<_> = engines.iter().map(|engine| engine.name.clone()).collect();
        for engine in engines.iter_mut().filter(|engine| engine.ended.is_none()) {
            if let Some(better) = winner_of(&engine.standing) {
                let text = format!("dropped: with its largest expected gain it stays below {}", names[better]);
                self.note(&format!("engine {} is {text}", engine.name));
                engine.ended = Some(text);
            }
        }
    }

    /// Launches the winners of two engines in turn. Returns their values of each round.
    async fn launch_in_turn(
        &self,
        engines: &mut [ComparedStudy],
        pair: [usize; 2],
    ) -> Result<Vec<(f64, f64)>, CommandFailure> {
        let goal = engines[pair[0]].study.job.objective.goal;
        let mut rounds = Vec::new();
        let mut winners = Vec::new();
        for index in pair {
            match self.winner(&engines[index], goal).await? {
                Some(winner) => winners.push(winner),
                None => return Ok(rounds),
            }
        }
        for round in 0..MAX_ROUNDS {
            let spent = self.all_launches(engines).await?;
            let is_clear = rounds.len() > MIN_ROUNDS && {
                let gain = compare_engines(&rounds, goal);
                gain.low.is_some_and(|low| low > 0.0) || gain.high.is_some_and(|high| high < 0.0)
            };
            if is_clear || self.shared.is_spent(SEARCH_SHARE + TURNS_SHARE, spent) {
                break;
            }
            // The order is reversed in every second round, so that a drift of the machine cancels.
            let mut values = [None; 2];
            for place in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
                values[place] = self.measure_again(&mut engines[pair[place]], &winners[place]).await?;
            }
            if let [Some(first), Some(second)] = values {
                rounds.push((first, second));
            }
        }
        Ok(rounds)
    }

    /// Returns an engine's best configuration so far.
    async fn winner(&self, engine: &ComparedStudy, goal: Goal) -> Result<Option<Config>, CommandFailure> {
        let Some(study) = self.store.study(&engine.study.job.name).await? else { return Ok(None) };
        let best = self.store.best(&study, goal, 1).await?.pop();
        Ok(best.map(|best| best.first.trial.proposal.config.clone()))
    }

    /// Launches a configuration once more. Returns its value; `None` if it failed or broke a limit.
    async fn measure_again(&self, engine: &mut ComparedStudy, config: &Config) -> Result<Option<f64>, CommandFailure> {
        let budget = &mut engine.study.job.budget;
        (budget.trials, budget.time) = (None, None);
        engine.study.job.repeat = Some(config.clone());
        let ended = self.run_study(engine).await;
        engine.study.job.repeat = None;
        let (study, _) = ended?;
        let last = self.store.trials(&study).await?.pop();
        Ok(last.and_then(|scored| match scored.score {
            Score::Feasible { value } => Some(value),
            _ => None,
        }))
    }

    /// Confirms the winner against its engine's defaults, with the rest of the budget.
    async fn confirm(&self, engine: &mut ComparedStudy) -> Result<Study, CommandFailure> {
        let before = self.launches(engine).await?;
        let per_round = 2;
        let budget = &mut engine.study.job.budget;
        *budget = engine.budget;
        // Without a limit in launches, the time ends the confirmation.
        budget.trials = Some(before + engine.budget.confirm.unwrap_or(2) * per_round);
        budget.confirm = Some(engine.budget.confirm.unwrap_or(2));
        budget.time = self.shared.time_until(1.0);
        Ok(self.run_study(engine).await?.0)
    }

    async fn run_study(&self, engine: &mut ComparedStudy) -> Result<(Study, StudyEnding), CommandFailure> {
        self.note(&format!("engine {}", engine.name));
        engine.study.renew_display(self.store, self.global).await?;
        let summary = engine.study.run(self.store, &self.stop, self.accepts_change).await?;
        match summary.ending {
            ending @ StudyEnding::Interrupted => Err(CommandFailure::new(INTERRUPTED, ending.to_string())),
            StudyEnding::Paused(pause) => {
                Err(CommandFailure::new(ENGINE_NEVER_HEALTHY, pause.to_string()).with_hint(pause.hint))
            }
            ending => Ok((summary.study, ending)),
        }
    }

    async fn standing(&self, engine: &ComparedStudy, goal: Goal) -> Result<EngineStanding, CommandFailure> {
        let Some(study) = self.store.study(&engine.study.job.name).await? else { return Ok(EngineStanding::default()) };
        let best = self.store.best(&study, goal, 1).await?.pop();
        let judgement = self.store.judgement(&study).await?;
        Ok(EngineStanding {
            value: best.map(|best| best.value),
            remaining: judgement.and_then(|judgement| judgement.remaining).map(|[_, _, high]| high),
            noise: launch_noise(&self.store.launched_within(&study, &[]).await?, goal).between_launches,
        })
    }

    /// Returns the number of an engine's launches so far.
    async fn launches(&self, engine: &ComparedStudy) -> Result<u32, CommandFailure> {
        let Some(study) = self.store.study(&engine.study.job.name).await? else { return Ok(0) };
        let counts = self.store.counts(study.id).await?;
        Ok(u32::try_from(counts.measured + counts.failed).unwrap_or(u32::MAX))
    }

    async fn all_launches(&self, engines: &[ComparedStudy]) -> Result<u32, CommandFailure> {
        let mut all = 0_u32;
        for engine in engines {
            all = all.saturating_add(self.launches(engine).await?);
        }
        Ok(all)
    }
}
