//! The page of a study: as a file, and live over HTTP while the study runs.

mod access;
mod cache;
mod events;
mod read;
mod server;

pub(crate) use access::{AccessRules, is_local};
pub(crate) use read::{CommandNames, read_document};
pub(crate) use server::serve;
