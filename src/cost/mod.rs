//! The expected cost of a launch: its start, by a model of the phases of earlier starts, and its load.
//!
//! Samplers divide the expected gain of a trial by this cost. Predictions and estimates report its start. Actual costs
//! are recorded elsewhere: by the tuner for the launches of a study, and by the sampler for other programs
//! (`PastTrial::cost`).

mod starts;

pub(crate) use starts::expected_start_s;
pub(crate) use starts::{LaunchCosts, LaunchSurroundings, ObservedLaunch, StartHistory};
