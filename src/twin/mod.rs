//! The engine in virtual time: scheduler, paged cache and step time as pure functions of what is asked and when.
//!
//! The simulated server runs it against the clock, a prediction as fast as it can; both see the same schedule.

mod batch;
mod block;
mod engine;
mod schedule;
mod schedule_v0;
mod sequence;
mod settings;
#[cfg(test)]
mod tests;

pub use batch::{Batch, Item, Work};
pub use engine::{AddError, Counters, Engine, Event};
pub use sequence::RequestId;
pub use settings::{Policy, Settings, SettingsError};
