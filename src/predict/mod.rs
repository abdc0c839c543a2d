//! What a configuration would give: a study's own load on the twin, in virtual time.

mod allocate;

pub use allocate::{Shortage, allocate};
