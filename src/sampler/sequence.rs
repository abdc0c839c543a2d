//! The first unseen configuration along a fixed sequence of points.

use super::Ask;
use crate::config::Config;

/// Points that may be drawn in vain before the rest of a finite space is searched in order.
const MOST_DRAWS: usize = 4096;

/// Spaces of at most this many configurations are searched to the last one.
const MOST_ENUMERATED: usize = 65_536;

/// Walks the sequence `point(0), point(1), ...` to the first configuration that the history does not hold.
///
/// Each earlier proposal of the same sampler consumed at least one point, so the walk begins behind those. It ends:
/// after [`MOST_DRAWS`] points a finite space is searched in order, and an endless one counts as used up.
pub(super) fn first_unseen(ask: &Ask<'_>, sampler: &str, point: impl Fn(usize) -> Vec<f64>) -> Option<Config> {
    let seen = ask.seen();
    let start = ask.proposed_by(sampler);
    let unseen = |config: &Config| !seen.contains(&config.key());
    (start..start + MOST_DRAWS)
        .map(|index| ask.space.decode(&point(index)))
        .find(unseen)
        .or_else(|| ask.space.enumerate(MOST_ENUMERATED)?.into_iter().find(unseen))
}
