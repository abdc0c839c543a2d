//! The view of a study on a terminal: trials, best configuration, current launches, charts and logs.
//!
//! [`draw`] is a pure function of [`ViewState`]. [`run_view`] owns the terminal: it draws, reads keys, and gives the
//! terminal back when the view ends, when the process is suspended, and after a panic. A task of the caller's runtime
//! observes the study ([`feed_view`]); the two share a [`ViewLink`].

mod charts;
mod chooser;
mod configuration;
mod draw;
mod feed;
mod header;
mod help;
mod key;
mod launches;
mod link;
mod log;
mod panel;
mod run;
mod screen;
mod state;
mod suspend;
#[cfg(test)]
mod tests;
mod text;
mod theme;
mod trials;

pub(crate) use feed::{FeedTarget, feed_view};
pub(crate) use link::ViewLink;
pub(crate) use run::{ViewEnd, run_view};
pub(crate) use screen::{ViewOutput, has_terminal};
pub(crate) use state::{LiveLaunch, LiveProgress, ViewPurpose};
