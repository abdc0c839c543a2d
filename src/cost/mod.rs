//! The expected cost of a launch in seconds: the time until the server is ready, and the time under load.
//!
//! A model of the start-up phases predicts the first part from earlier starts. The second part is the median of the
//! study's earlier launches. Samplers divide the expected gain of a trial by this cost. The command `predict` and the
//! estimate of a study's duration use the first part alone. `PastTrial::cost` contains the actual cost of a trial.

mod starts;

pub(crate) use starts::{LaunchContext, LaunchCostData, ObservedLaunch, StartHistory, typical_start_s};
