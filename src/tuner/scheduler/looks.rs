//! Live looks: the server of a measured launch takes further configurations, as long as one more look is worth more for
//! its cost than the next launch.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::judge::ask_on_thread;
use super::{NextAction, Scheduler};
use crate::config::{Config, Value};
use crate::engine::LiveHelper;
use crate::job::SamplerQuestion;
use crate::sampler::{KnownOutcome, LiveLooks, PastTrial, Suggestion};
use crate::stats::median;
use crate::trial::{FailureKind, LaunchCommand, LiveKnob, Origin, Proposal, Trial};
use crate::tuner::launcher::{EndedTrial, LookOrder, command_line, failed};
use crate::tuner::race::race_target;
use crate::tuner::run::StudyRun;
use crate::tuner::{TuneError, TunerEvent};

/// The most live looks on one server.
const MAX_LOOKS: u32 = 10;

/// The cost of a live look as a share of a launch, before a launch is measured.
const ASSUMED_COST: f64 = 0.3;

/// A server that was measured and not released yet.
pub(super) struct WaitingServer {
    /// The number of its trial.
    number: u32,
    config: Config,
    knobs: Vec<LiveKnob>,
    /// The number of live looks so far.
    looks: u32,
    state: ServerState,
}

/// The task of a waiting server.
enum ServerState {
    Waits,
    /// It takes a live look.
    Looks(Box<(Proposal, LaunchCommand)>),
    /// It ends.
    Released,
}

/// Returns the helper for live looks of a study. `None` if the study, its sampler or its engine has none, or if several
/// launches run at a time and would disturb each other.
pub(super) fn live_helper(run: &StudyRun<'_>) -> Option<&'static LiveHelper> {
    let (job, engine) = (run.job, &run.job.engine);
    let is_wanted = job.live_looks && job.sampler.uses_live_looks();
    // The value over several workloads depends on other launches.
    let is_simple = run.slots.parallel() == 1 && job.objective.joint.is_none();
    let helper = engine.engine.live_helper(&engine.command, &engine.args, run.installed.version)?;
    let is_knob = |knob: &LiveKnob| job.search_space().parameters.iter().any(|parameter| parameter.name == knob.flag);
    (is_wanted && is_simple && helper.knobs.iter().any(is_knob)).then_some(helper)
}

/// Returns a past trial with the configuration that its server was launched with, if it is a live look. A live look that
/// failed teaches nothing about its configuration.
pub(super) fn with_server(past: PastTrial, server_of: Option<u32>, history: &[PastTrial]) -> PastTrial {
    let Some(server_of) = server_of else { return past };
    let server = history.get(server_of as usize).map(|launch| launch.config.clone());
    let outcome = match past.outcome {
        measured @ KnownOutcome::Measured(_) if server.is_some() => measured,
        _ => KnownOutcome::Inconclusive,
    };
    PastTrial { server: Some(server.unwrap_or_default()), outcome, ..past }
}

impl Scheduler<'_> {
    /// Returns the helper for a launch of this origin. Launches that decide about the winner are plain.
    pub(super) fn helper_for(&self, origin: &Origin) -> Option<&'static LiveHelper> {
        let is_of_search = matches!(origin, Origin::Baseline | Origin::Start | Origin::Sampler(_));
        // Looks after the last launch of the search could not be followed by a launch.
        self.live_helper.filter(|_| is_of_search && self.search_launches_left() != Some(0))
    }

    /// Returns the live looks for a question to the sampler.
    pub(super) fn live_looks(&self) -> Option<LiveLooks> {
        let helper = self.live_helper?;
        let offered = self.live_knobs.as_deref().unwrap_or(helper.knobs);
        let parameters = &self.run.job.search_space().parameters;
        let is_knob = |knob: &&LiveKnob| parameters.iter().any(|parameter| parameter.name == knob.flag);
        let knobs = offered.iter().filter(is_knob).copied().collect();
        let looks = self.history.iter().filter(|past| past.server.is_some() && past.measured().is_some());
        let launches = self.history.iter().filter(|past| past.server.is_none() && past.measured().is_some());
        let usual = |of: &mut dyn Iterator<Item = &PastTrial>| median(of.filter_map(|past| past.cost));
        let (look, launch) = (usual(&mut looks.into_iter()).or(self.first_look_s), usual(&mut launches.into_iter()));
        let cost = look.zip(launch).map_or(ASSUMED_COST, |(look, launch)| (look / launch).clamp(0.001, 1.0));
        Some(LiveLooks { knobs, cost })
    }

    /// Reports each knob whose live looks differ too much from launches.
    pub(super) fn report_refuted_knobs(&mut self, question: &Arc<SamplerQuestion>) {
        let Some(live) = self.live_looks() else { return };
        for bias in question.biases(&live).into_iter().filter(|bias| bias.is_refuted) {
            let [low, high] = bias.interval;
            let text = format!("{} is launched from here on: its live looks disagree with launches", bias.flag);
            if self.noticed.insert(text.clone()) {
                self.run.notice(format!(
                    "{text}, {:.2} of their {} ({low:.2} to {high:.2}; configurations measured in both ways: {})",
                    bias.ratio,
                    self.run.job.objective.value_name(),
                    bias.pairs
                ));
            }
        }
    }

    /// Records the measurement of a launch whose server waits for live looks.
    pub(in crate::tuner) async fn process_measured(
        &mut self,
        ended: EndedTrial,
        knobs: Vec<LiveKnob>,
    ) -> Result<(), TuneError> {
        let Proposal { number, config, origin, .. } = ended.trial.proposal.clone();
        if let Some(running) = self.running.get_mut(&number) {
            // It counts as a finished trial from now on.
            running.is_paid = false;
        }
        self.first_look_s
            .get_or_insert_with(|| (ended.trial.elapsed_s - ended.trial.startup_s.unwrap_or_default()).max(0.0));
        self.live_knobs = Some(knobs.clone());
        self.launched += u32::from(origin.counts_against_budget());
        let scored = Box::pin(self.record(ended)).await?;
        Box::pin(self.track_outcome(&scored.trial, vec![0], 1)).await?;
        self.server = Some(WaitingServer { number, config, knobs, looks: 0, state: ServerState::Waits });
        Ok(())
    }

    /// Records a live look.
    pub(in crate::tuner) async fn process_look(&mut self, ended: EndedTrial, is_usable: bool) -> Result<(), TuneError> {
        if let Some(server) = &mut self.server {
            server.looks += 1;
            // A server that did not take a look takes no other.
            if !is_usable {
                server.looks = MAX_LOOKS;
            }
            server.state = ServerState::Waits;
        }
        Box::pin(self.record(ended)).await.map(drop)
    }

    /// Forgets the server of a trial, which has ended. A live look that it has not finished has failed, unless the run was
    /// interrupted: then nothing is stored. Returns whether the server had waited, so that its trial is recorded.
    pub(super) async fn forget_server(&mut self, number: u32, is_interrupted: bool) -> Result<bool, TuneError> {
        let Some(server) = self.server.take_if(|server| server.number == number) else { return Ok(false) };
        if let (ServerState::Looks(look), false) = (server.state, is_interrupted) {
            let (proposal, launch) = *look;
            let message = "the server ended during the live look".to_owned();
            let trial = Trial {
                proposal,
                launch,
                started_at: self.run.time.timestamp(),
                startup_s: None,
                elapsed_s: 0.0,
                engine_version: None,
                log: None,
                outcome: failed(FailureKind::Crash, message),
                probe: None,
            };
            Box::pin(self.record(trial.into())).await?;
        }
        Ok(true)
    }

    /// Returns the step of a waiting server: its next live look, or its release. `None` without one.
    pub(super) async fn next_server_step(&mut self) -> Result<Option<NextAction>, TuneError> {
        let Some(server) = &self.server else { return Ok(None) };
        if !matches!(server.state, ServerState::Waits) {
            return Ok(Some(NextAction::Wait));
        }
        let number = server.number;
        let order = self.next_look().await?;
        let Some(server) = &mut self.server else { return Ok(None) };
        Ok(Some(if let Some(order) = order {
            server.state = ServerState::Looks(Box::new((order.proposal.clone(), order.launch.clone())));
            NextAction::Look { server_of: number, order: Box::new(order) }
        } else {
            server.state = ServerState::Released;
            NextAction::Release { server_of: number }
        }))
    }

    /// Returns the next live look on the waiting server. `None` if the server is to be released.
    async fn next_look(&mut self) -> Result<Option<LookOrder>, TuneError> {
        let Some(server) = &self.server else { return Ok(None) };
        let look = Duration::from_secs_f64(self.first_look_s.unwrap_or_default());
        let is_over = self.is_time_spent()
            || self.is_confirming()
            || !self.clock.has_time(look + self.clock.search_launch() + self.reserve());
        if server.looks >= MAX_LOOKS || is_over {
            return Ok(None);
        }
        let (number, config, offered) = (server.number, server.config.clone(), server.knobs.clone());
        let question = Arc::new(SamplerQuestion::clone(&*self.question().await).with_server(config.clone()));
        let Some(suggestion) = ask_on_thread(&question, SamplerQuestion::look).await else { return Ok(None) };
        let Suggestion { config: asked, .. } = &suggestion;
        let settings = settings(&offered, &config, asked, |flag| question.default_value(flag).cloned());
        let command = command_line(self.run.job, &self.run.installed, asked, None)?;
        let launch = LaunchCommand::redacted(&command, self.run.job.launch_env(self.run.installed.device, asked));
        let proposal = self.add_proposal(Origin::LiveLook, suggestion, None);
        let proposal = Proposal { server_of: Some(number), ..proposal };
        let past = PastTrial { server: Some(config), ..PastTrial::pending(proposal.clone()) };
        if let Some(known) = self.history.get_mut(proposal.number as usize) {
            *known = past;
        }
        let race = race_target(self.run, &proposal.origin).await?.map(Box::new);
        let expected_load = self.expected_load(&proposal.config).await;
        self.run.emit(TunerEvent::Look { server_of: number, proposal: proposal.clone() });
        Ok(Some(LookOrder { proposal, launch, settings, race, expected_load }))
    }
}

/// Returns the values of the offered knobs for a configuration; `None` is the launched value.
fn settings(
    offered: &[LiveKnob],
    launched: &Config,
    asked: &Config,
    default: impl Fn(&str) -> Option<Value>,
) -> BTreeMap<&'static str, Option<Value>> {
    let value = |knob: &LiveKnob| {
        let is_set = asked.get(knob.flag).is_some() || launched.get(knob.flag).is_some();
        is_set.then(|| asked.get(knob.flag).cloned().or_else(|| default(knob.flag))).flatten()
    };
    offered.iter().map(|knob| (knob.flag, value(knob))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::LiveRange;

    #[test]
    fn a_knob_that_neither_configuration_sets_keeps_its_launched_value() {
        let knob = |flag| LiveKnob { flag, range: LiveRange::Any };
        let offered = [knob("a"), knob("b"), knob("c"), knob("d")];
        let launched = Config::new().with("b", 2_i64).with("c", 3_i64);
        let asked = Config::new().with("a", 7_i64).with("c", 8_i64);
        let default = |flag: &str| (flag == "b").then_some(Value::Int(1));
        let found = settings(&offered, &launched, &asked, default);
        let values: Vec<_> = found.values().map(|value| value.as_ref().and_then(Value::as_i64)).collect();
        assert_eq!(values, [Some(7), Some(1), Some(8), None]);
    }

    #[test]
    fn a_live_look_has_the_launch_of_its_server_and_its_failure_teaches_nothing() {
        let launch = PastTrial::new("auto", Config::new().with("a", 1_i64), KnownOutcome::Failed);
        let look = PastTrial::new("live_look", Config::new().with("a", 2_i64), KnownOutcome::Failed);
        let found = with_server(look, Some(0), std::slice::from_ref(&launch));
        assert_eq!((found.server, found.outcome), (Some(launch.config.clone()), KnownOutcome::Inconclusive));
        assert_eq!(with_server(launch.clone(), None, &[]), launch);
    }
}
