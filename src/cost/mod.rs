//! The expected cost of a launch: its start, by a model of the phases of earlier starts, and its load.
//!
//! Samplers divide the expected gain of a trial by it, and predictions and estimates report its start. What trials have cost is
//! recorded elsewhere: by the tuner for the launches of a study, and of other programs by the sampler (`Past::cost`).

mod starts;

pub(crate) use starts::expected_start_s;
pub(crate) use starts::{LaunchCosts, LaunchSurroundings, ObservedLaunch, StartHistory};
