//! The state of the view: the data to show, and the choices of its user.

use std::sync::Arc;
use std::time::Duration;

use ratatui::layout::Rect;

use super::key::ViewKey;
use super::panel::{LayoutNeeds, ViewLayout, ViewPanel};
use super::theme::ViewTheme;
use crate::observation::{ObservedStudy, RunningLaunch, StudyObservation, TrialDetail};

/// The command that shows the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ViewPurpose {
    /// `watch`: to leave the view ends the program.
    Watch,
    /// `tune --tui`: the study goes on without the view.
    Tune,
}

/// The data to show.
#[derive(Clone, Debug, Default)]
pub(crate) struct ViewData {
    /// `None` before the study exists.
    pub observation: Option<Arc<StudyObservation>>,
    /// The details of the selected trial and of the best one, once they are read.
    pub details: Vec<Arc<TrialDetail>>,
    /// The studies of the database.
    pub studies: Arc<Vec<ObservedStudy>>,
    /// The last notice of the tuner of this process.
    pub notice: Option<String>,
    /// A problem that the user should know, such as a database that is gone.
    pub problem: Option<String>,
}

/// The progress of a study by the events of its tuner.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LiveProgress {
    /// The used budget: `3 of 16 trials, ends in ~12 min`.
    pub budget: String,
    /// The used share of the budget, from 0 to 1.
    pub share: Option<f64>,
    pub launches: Vec<LiveLaunch>,
}

/// The progress of a launch by the events of its tuner.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LiveLaunch {
    pub number: u32,
    /// The phase and its progress: `loading 310 of 1000 requests, 1240 tok/s`.
    pub text: String,
    /// The share of the phase's requests that have ended.
    pub share: Option<f64>,
}

/// An order of the user to the caller of the view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ViewCommand {
    /// To leave the view.
    Leave,
    /// To stop, as Ctrl-C does without the view.
    Interrupt,
    /// To suspend the process, as Ctrl-Z does without the view.
    Suspend,
    /// To draw everything again.
    Redraw,
    /// To show another study.
    ShowStudy(String),
}

/// The state of the view.
#[derive(Clone, Debug)]
pub(crate) struct ViewState {
    pub theme: ViewTheme,
    pub purpose: ViewPurpose,
    pub data: ViewData,
    /// The progress that the tuner of this process reports.
    pub live: Option<LiveProgress>,
    pub size: Rect,
    pub focus: ViewPanel,
    /// The number of the selected trial. `None`: the newest one.
    pub selected: Option<u32>,
    /// The number of lines that the text of the focused panel is scrolled: up for the log, down for others.
    pub scrolled: usize,
    pub is_help_open: bool,
    /// Whether the user has asked the tuner to stop.
    pub is_stopping: bool,
    /// The place of the marked study in the list, if the list is open.
    pub chooser: Option<usize>,
}

/// The largest number of lines that a text can be scrolled.
const MAX_SCROLLED: usize = 200;

impl ViewState {
    pub(crate) fn new(theme: ViewTheme, purpose: ViewPurpose) -> Self {
        Self {
            theme,
            purpose,
            data: ViewData::default(),
            live: None,
            size: Rect::default(),
            focus: ViewPanel::Trials,
            selected: None,
            scrolled: 0,
            is_help_open: false,
            is_stopping: false,
            chooser: None,
        }
    }

    /// Replaces the data. The choices of another study do not apply.
    pub(crate) fn show(&mut self, data: ViewData) {
        let id = |data: &ViewData| data.observation.as_ref().map(|observation| observation.study.id);
        if id(&data) != id(&self.data) {
            (self.selected, self.scrolled) = (None, 0);
        }
        self.data = data;
        if self.focus == ViewPanel::LoadCurve && !self.has_load_curve() {
            self.focus = ViewPanel::Trials;
        }
    }

    fn has_load_curve(&self) -> bool {
        let objective = self.data.observation.as_ref().and_then(|observation| observation.objective.as_ref());
        objective.is_some_and(|objective| objective.load_goal.is_some())
    }

    pub(super) fn layout(&self) -> Option<ViewLayout> {
        let launches = self.data.observation.as_ref().map_or(0, |observation| observation.running.len());
        let needs = LayoutNeeds {
            focus: self.focus,
            has_load_curve: self.has_load_curve(),
            launches: u16::try_from(launches).unwrap_or(u16::MAX).min(20),
        };
        ViewLayout::new(self.size, needs)
    }

    /// Returns the numbers of all trials, the newest first.
    pub(super) fn numbers(&self) -> Vec<u32> {
        let Some(observation) = &self.data.observation else { return Vec::new() };
        let running = observation.running.iter().map(|launch| launch.number);
        let mut numbers: Vec<_> = observation.trials.iter().map(|trial| trial.number).chain(running).collect();
        numbers.sort_unstable_by(|a, b| b.cmp(a));
        numbers
    }

    /// Returns the number of the selected trial; `None` without trials.
    pub(crate) fn selected_number(&self) -> Option<u32> {
        let newest = || self.numbers().first().copied();
        self.selected.or_else(newest)
    }

    /// Returns the launch of the selected trial, if it runs.
    pub(super) fn selected_launch(&self) -> Option<&RunningLaunch> {
        let number = self.selected_number()?;
        self.data.observation.as_ref()?.running.iter().find(|launch| launch.number == number)
    }

    pub(super) fn detail(&self, number: u32) -> Option<&TrialDetail> {
        let is_of = |detail: &&Arc<TrialDetail>| detail.scored.trial.proposal.number == number;
        self.data.details.iter().find(is_of).map(|detail| &**detail)
    }

    /// Returns the number of the best configuration's first trial.
    pub(crate) fn best_number(&self) -> Option<u32> {
        self.data.observation.as_ref()?.best.as_ref().map(|best| best.number)
    }

    /// Returns the time of the tuner's present run.
    pub(super) fn run_time(&self) -> Option<Duration> {
        self.data.observation.as_ref()?.tuner.as_ref()?.since?.elapsed().ok()
    }

    /// Handles a key. Returns the order of the user that the caller must follow.
    pub(crate) fn press(&mut self, key: ViewKey) -> Option<ViewCommand> {
        match key {
            ViewKey::Control('c') => {
                self.is_stopping = true;
                return Some(ViewCommand::Interrupt);
            }
            ViewKey::Control('z') => return Some(ViewCommand::Suspend),
            ViewKey::Control('l') => return Some(ViewCommand::Redraw),
            _ => {}
        }
        if self.is_help_open {
            self.is_help_open = false;
            return (key == ViewKey::Char('q')).then_some(ViewCommand::Leave);
        }
        if let Some(place) = self.chooser {
            return self.press_in_chooser(key, place);
        }
        match key {
            ViewKey::Char('q') => return Some(ViewCommand::Leave),
            ViewKey::Char('?' | 'h') => self.is_help_open = true,
            ViewKey::Char('s') => self.open_chooser(),
            ViewKey::Tab => self.move_focus(1),
            ViewKey::BackTab => self.move_focus(-1),
            ViewKey::Escape => (self.selected, self.scrolled) = (None, 0),
            ViewKey::Char('b') => {
                self.selected = self.best_number().or(self.selected);
                self.scrolled = 0;
            }
            key => self.move_within(key),
        }
        None
    }

    fn press_in_chooser(&mut self, key: ViewKey, place: usize) -> Option<ViewCommand> {
        let last = self.data.studies.len().saturating_sub(1);
        match key {
            ViewKey::Up | ViewKey::Char('k') => self.chooser = Some(place.saturating_sub(1)),
            ViewKey::Down | ViewKey::Char('j') => self.chooser = Some((place + 1).min(last)),
            ViewKey::Home => self.chooser = Some(0),
            ViewKey::End => self.chooser = Some(last),
            ViewKey::Enter => {
                self.chooser = None;
                let chosen = self.data.studies.get(place)?;
                return Some(ViewCommand::ShowStudy(chosen.study.name.clone()));
            }
            _ => self.chooser = None,
        }
        None
    }

    fn open_chooser(&mut self) {
        let shown = self.data.observation.as_ref().map(|observation| observation.study.id);
        let place = self.data.studies.iter().position(|observed| Some(observed.study.id) == shown);
        self.chooser = (!self.data.studies.is_empty()).then(|| place.unwrap_or_default());
    }

    fn move_focus(&mut self, by: isize) {
        let panels = ViewPanel::all(self.has_load_curve());
        let place = panels.iter().position(|panel| *panel == self.focus).unwrap_or_default();
        let next = place.checked_add_signed(by).unwrap_or(panels.len() - 1) % panels.len();
        (self.focus, self.scrolled) = (panels[next], 0);
    }

    /// Moves the selection, or scrolls the text of the focused panel.
    fn move_within(&mut self, key: ViewKey) {
        let page = self.layout().map_or(1, |layout| usize::from(layout.rows_of(self.focus)).saturating_sub(2).max(1));
        let Some(step) = Step::of(key, page) else { return };
        match self.focus {
            ViewPanel::Log => self.scrolled = step.apply(self.scrolled, MAX_SCROLLED, true),
            ViewPanel::Selected | ViewPanel::Best | ViewPanel::Launches => {
                self.scrolled = step.apply(self.scrolled, MAX_SCROLLED, false);
            }
            ViewPanel::Trials | ViewPanel::Objective | ViewPanel::LoadCurve => {
                let numbers = self.numbers();
                let place = self.selected.and_then(|number| numbers.iter().position(|other| *other == number));
                let next = step.apply(place.unwrap_or_default(), numbers.len().saturating_sub(1), false);
                // The first row follows the newest trial.
                self.selected = numbers.get(next).copied().filter(|_| next > 0);
            }
        }
    }
}

/// A movement within a list or a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Back(usize),
    Forward(usize),
    First,
    Last,
}

impl Step {
    fn of(key: ViewKey, page: usize) -> Option<Self> {
        Some(match key {
            ViewKey::Up | ViewKey::Char('k') => Self::Back(1),
            ViewKey::Down | ViewKey::Char('j') => Self::Forward(1),
            ViewKey::PageUp | ViewKey::Control('b') => Self::Back(page),
            ViewKey::PageDown | ViewKey::Control('f') | ViewKey::Char(' ') => Self::Forward(page),
            ViewKey::Home | ViewKey::Char('g') => Self::First,
            ViewKey::End | ViewKey::Char('G') => Self::Last,
            _ => return None,
        })
    }

    /// Returns the next place from 0 to `last`. A text that is anchored at its end counts its places from there.
    fn apply(self, place: usize, last: usize, is_from_end: bool) -> usize {
        match (self, is_from_end) {
            (Self::Back(by), false) | (Self::Forward(by), true) => place.saturating_sub(by),
            (Self::Forward(by), false) | (Self::Back(by), true) => (place + by).min(last),
            (Self::First, false) | (Self::Last, true) => 0,
            (Self::Last, false) | (Self::First, true) => last,
        }
    }
}
