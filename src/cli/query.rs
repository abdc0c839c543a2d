//! `studies`, `trials`, `show` and `best`: questions to the database.

use clap::Args;
use serde_json::Value as Json;

use super::failure::{Failure, INVALID, NOTHING_FEASIBLE, USAGE};
use super::output::{print, print_json};
use super::{Format, Global, ListFormat};
use crate::objective::Goal;
use crate::report::{self, Order, Standing};
use crate::store::{Ranked, Scored, Store, Study, Verdict};
use crate::tuner::left_on_the_table;

#[derive(Debug, Args)]
pub(super) struct Studies {
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

#[derive(Debug, Args)]
pub(super) struct Trials {
    #[command(flatten)]
    which: Which,
    #[arg(long, value_enum, default_value_t = ListFormat::Table)]
    format: ListFormat,
}

#[derive(Debug, Args)]
pub(super) struct Show {
    /// The trial's number.
    trial: u32,
    #[command(flatten)]
    which: Which,
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

#[derive(Debug, Args)]
pub(super) struct Best {
    #[command(flatten)]
    which: Which,
    #[arg(long, value_enum, default_value_t = ListFormat::Table)]
    format: ListFormat,
    /// How many configurations the table shows.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    top: u32,
}

#[derive(Debug, Args)]
pub(super) struct Which {
    /// The study's name, where the database holds several.
    #[arg(long, value_name = "NAME")]
    pub(super) study: Option<String>,
}

impl Which {
    /// The study that was named, or the only one.
    pub(super) async fn find(&self, store: &Store) -> Result<Study, Failure> {
        let studies = store.studies().await?;
        let names = || studies.iter().map(|(study, _)| study.name.as_str()).collect::<Vec<_>>().join(", ");
        let found = match (&self.study, studies.as_slice()) {
            (Some(name), _) => studies.iter().find(|(study, _)| study.name == *name).map(|(study, _)| study.clone()),
            (None, [(only, _)]) => Some(only.clone()),
            (None, []) => return Err(Failure::new(INVALID, "the database holds no study")),
            (None, _) => {
                let message = format!("the database holds several studies: {}", names());
                return Err(Failure::new(USAGE, message).with_hint("name one with --study"));
            }
        };
        found.ok_or_else(|| {
            let name = self.study.as_deref().unwrap_or_default();
            Failure::new(INVALID, format!("there is no study {name:?}")).with_hint(format!("there are: {}", names()))
        })
    }
}

impl Studies {
    pub(super) async fn run(self, global: &Global) -> Result<(), Failure> {
        let store = Store::open(&global.db, false).await?;
        let studies = store.studies().await?;
        match self.format {
            Format::Table => print(&report::studies_table(&studies)),
            Format::Json => {
                print_json(&studies.iter().map(|(study, counts)| report::study_json(study, *counts)).collect())
            }
        }
    }
}

impl Trials {
    pub(super) async fn run(self, global: &Global) -> Result<(), Failure> {
        let store = Store::open(&global.db, false).await?;
        let study = self.which.find(&store).await?;
        let trials = store.trials(&study).await?;
        let contexts = store.contexts(&study).await?;
        let is_earlier = |number| contexts.get(&number).is_some_and(|stored| stored.is_earlier);
        match self.format {
            ListFormat::Table => print(&report::trials_table(&study, &trials, is_earlier)),
            ListFormat::Json => {
                let json = |scored: &Scored| {
                    let mut json = report::trial_json(&study, scored);
                    report::add_context(&mut json, contexts.get(&scored.trial.proposal.number));
                    json
                };
                print_json(&trials.iter().map(json).collect())
            }
            ListFormat::Csv => {
                let csv =
                    report::trials_csv(&trials, is_earlier).map_err(|error| Failure::unexpected(error.to_string()))?;
                print(&csv)
            }
        }
    }
}

impl Show {
    pub(super) async fn run(self, global: &Global) -> Result<(), Failure> {
        let store = Store::open(&global.db, false).await?;
        let study = self.which.find(&store).await?;
        let scored = find_trial(&store, &study, self.trial).await?;
        let startup = store.startup(&study, self.trial).await?;
        let placement = store.placement(&study, self.trial).await?;
        let incidents = store.incidents(&study, Some(self.trial)).await?;
        let story = store.telemetry(&study, self.trial).await?;
        let context = store.contexts(&study).await?.remove(&self.trial);
        match self.format {
            Format::Table => {
                let start = startup.as_ref().map(report::startup_text).unwrap_or_default();
                let server = story.as_ref().map(report::telemetry_text).unwrap_or_default();
                let incidents = report::incidents_text(&incidents);
                let place = placement.as_ref().map(report::placement_text).unwrap_or_default();
                let context = context.as_ref().map(report::context_text).unwrap_or_default();
                print(&format!("{}{context}{place}{incidents}{start}{server}", report::show_text(&study, &scored)))
            }
            Format::Json => {
                let mut json = report::trial_json(&study, &scored);
                report::add_context(&mut json, context.as_ref());
                json["startup"] = serde_json::to_value(&startup).unwrap_or_default();
                json["placement"] = serde_json::to_value(&placement).unwrap_or_default();
                json["telemetry"] = story.as_ref().map_or(Json::Null, report::telemetry_json);
                json["incidents"] = incidents.iter().map(report::incident_json).collect();
                print_json(&json)
            }
        }
    }
}

/// A trial that must be there.
pub(super) async fn find_trial(store: &Store, study: &Study, number: u32) -> Result<Scored, Failure> {
    if let Some(scored) = store.trial(study, number).await? {
        return Ok(scored);
    }
    let missing = Failure::new(INVALID, format!("study {:?} has no finished trial {number}", study.name));
    // What a paused study waits with has incidents and nothing else yet.
    let incidents = store.incidents(study, Some(number)).await?;
    Err(missing.with_hint(if incidents.is_empty() {
        "`setpoint trials` lists them".to_owned()
    } else {
        format!("it is to be launched again after\n{}", report::incidents_text(&incidents).trim_end())
    }))
}

impl Best {
    pub(super) async fn run(self, global: &Global) -> Result<(), Failure> {
        let store = Store::open(&global.db, false).await?;
        let study = self.which.find(&store).await?;
        let (mut ranked, order) = ordered(&store, &study, self.top).await?;
        ranked.truncate(self.top as usize);
        let Some(winner) = ranked.first() else { return Err(nothing_feasible(&store, &study).await?) };
        let conclusion = Conclusion::of(&store, &study).await?;
        match self.format {
            ListFormat::Table => {
                let mut standings = Vec::new();
                for (ranked, order) in ranked.iter().zip(&order) {
                    standings.push((standing(&store, &study, ranked.clone()).await?, *order));
                }
                print(&report::best_table(&study, &standings))?;
                let lines = order_lines(&ranked, &order).into_iter().chain(conclusion.lines(&study, winner));
                print(&lines.collect::<Vec<_>>().join("\n"))
            }
            ListFormat::Json => {
                let standing = standing(&store, &study, winner.clone()).await?;
                let mut json = report::standing_json(&study, &standing, &order[0]);
                let Conclusion { baseline, verdict } = &conclusion;
                json["gain"] = report::gain(&study, winner, baseline.as_ref()).into();
                json["gain_significant"] = report::is_significant(winner, baseline.as_ref()).into();
                json["judgement"] = verdict.as_ref().map_or(Json::Null, report::verdict_json);
                json["baseline"] = baseline.as_ref().map_or(Json::Null, |ranked| report::ranked_json(&study, ranked));
                print_json(&json)
            }
            ListFormat::Csv => {
                let rows: Vec<_> = ranked.into_iter().zip(order).collect();
                let csv = report::ranking_csv(&rows).map_err(|error| Failure::unexpected(error.to_string()))?;
                print(&csv)
            }
        }
    }
}

/// The best feasible configurations and the reason for the place of each. The reason of the first one compares it with the
/// second, so that at least two are returned where there are two.
pub(super) async fn ordered(store: &Store, study: &Study, most: u32) -> Result<(Vec<Ranked>, Vec<Order>), Failure> {
    let ranked = best(store, study, most.max(2)).await?;
    let order = Order::of(goal(study), &ranked);
    Ok((ranked, order))
}

/// The reasons of a ranking's order, each once, and that of the first configuration with its number.
pub(super) fn order_lines(ranking: &[Ranked], order: &[Order]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for (ranked, order) in ranking.iter().zip(order) {
        let line = match order {
            Order::Confirmed { .. } => format!("trial {} is first, {order}", ranked.first.trial.proposal.number),
            order => format!("{}: {order}", order.name()),
        };
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines
}

/// A configuration with all its measurements.
pub(super) async fn standing(store: &Store, study: &Study, ranked: Ranked) -> Result<Standing, Failure> {
    let repeats = store.repeats(study, ranked.first.trial.proposal.number).await?;
    Ok(Standing { ranked, repeats })
}

/// The engine's defaults and the judgement of a study, beside which a configuration is shown.
pub(super) struct Conclusion {
    pub(super) baseline: Option<Ranked>,
    pub(super) verdict: Option<Verdict>,
}

impl Conclusion {
    pub(super) async fn of(store: &Store, study: &Study) -> Result<Self, Failure> {
        Ok(Self { baseline: store.baseline(study).await?, verdict: store.verdict(study).await? })
    }

    /// The gain, whether it is significant, and the estimated remaining gain.
    pub(super) fn lines(&self, study: &Study, best: &Ranked) -> Vec<String> {
        let baseline = self.baseline.as_ref();
        let mut lines = vec![report::gain_text(study, best, baseline)];
        if let Some(remaining) = self.verdict.as_ref().and_then(|verdict| verdict.remaining) {
            lines.push(left_on_the_table(remaining));
            if report::is_significant(best, baseline) != Some(true) {
                lines.push(report::BOTH_GAINS.to_owned());
            }
        }
        lines
    }
}

fn goal(study: &Study) -> Goal {
    study.objective().map_or(Goal::Maximize, |objective| objective.goal)
}

/// The best feasible configurations by the study's own objective, as the sampler's model ranks them where it has judged them.
pub(super) async fn best(store: &Store, study: &Study, most: u32) -> Result<Vec<Ranked>, Failure> {
    let verdict = store.verdict(study).await?;
    Ok(store.leaders(study, goal(study), verdict.as_ref(), most).await?)
}

pub(super) async fn nothing_feasible(store: &Store, study: &Study) -> Result<Failure, Failure> {
    let trials = store.trials(study).await?;
    let measured: Vec<_> = trials.iter().filter(|scored| scored.trial.outcome.measurement().is_some()).collect();
    if let Some(first) = measured.first()
        && measured.iter().all(|scored| scored.score.value().is_none())
    {
        let metric = study.objective().map_or_else(|| "the objective".to_owned(), |objective| objective.metric);
        let message =
            format!("none of {} measured trials of study {:?} has a value of {metric}", measured.len(), study.name);
        let hint = format!("`setpoint show {}` gives the reason", first.trial.proposal.number);
        return Ok(Failure::new(NOTHING_FEASIBLE, message).with_hint(hint));
    }
    let message = if measured.is_empty() {
        format!("no trial of study {:?} has been measured", study.name)
    } else {
        format!("none of {} measured trials of study {:?} kept the limits", measured.len(), study.name)
    };
    Ok(Failure::new(NOTHING_FEASIBLE, message).with_hint("`setpoint trials` shows what happened to each"))
}
