//! Output that fits a terminal: rows of trials and the card at the end of a study.

mod flag_changes;
mod layout;
mod metric_title;
mod study_card;
mod study_verdict;
mod trial_row;

pub(crate) use flag_changes::ShortFlagNames;
pub(super) use layout::wrap_command;
pub(crate) use layout::{TextLayout, wrap_text};
pub(crate) use metric_title::{metric_title, metric_unit};
pub(super) use study_card::cost_text;
pub(crate) use study_card::{CardCommands, card_text};
pub(super) use study_verdict::verdict_text;
pub(crate) use trial_row::{TrialRows, short_duration};
