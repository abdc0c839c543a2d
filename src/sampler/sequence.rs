//! The first unseen and allowed configuration along a fixed sequence of points.

use std::collections::HashSet;

use super::SamplerAsk;
use crate::config::Config;

/// Draws without a find before a space of at most `MAX_ENUMERATED` configurations is searched in order.
const FEW_DRAWS: usize = 4096;

/// Draws without a find before a larger space counts as used up. If one point in a thousand is allowed, all of these
/// draws are refused with a probability below 1e-28.
const MAX_DRAWS: usize = 65_536;

/// Spaces of at most this many configurations are searched to the last one.
const MAX_ENUMERATED: usize = 65_536;

/// Returns the first configuration of the sequence `point(0), point(1), ...` that is allowed and not in the history.
///
/// Each earlier proposal of the same sampler consumed at least one point, so the walk begins behind those. The walk
/// ends after a number of draws without a find. That count restarts at each point that meets an earlier proposal for
/// the first time.
pub(super) fn first_unseen(ask: &SamplerAsk<'_>, sampler: &str, point: impl Fn(usize) -> Vec<f64>) -> Option<Config> {
    let seen = ask.history_keys();
    let mut walk = Walk { ask, seen: &seen, unmet_history: seen.clone(), refused: HashSet::new(), since_last_known: 0 };
    let mut points = (ask.proposed_by(sampler)..).map(|index| ask.space.decode(&point(index)));
    walk.find_unseen(FEW_DRAWS, &mut points).or_else(|| match ask.space.enumerate(MAX_ENUMERATED) {
        Some(configs) => configs.into_iter().find(|config| !seen.contains(&config.key()) && (ask.allowed)(config)),
        None => walk.find_unseen(MAX_DRAWS, &mut points),
    })
}

struct Walk<'a> {
    ask: &'a SamplerAsk<'a>,
    seen: &'a HashSet<String>,
    /// Earlier proposals that the walk has not come across yet.
    unmet_history: HashSet<String>,
    /// Keys of the configurations refused on this walk. A lookup is cheaper than another check.
    refused: HashSet<String>,
    /// Number of points since the walk last met an earlier proposal for the first time.
    since_last_known: usize,
}

impl Walk<'_> {
    /// Walks until a point fits, or until `most` points were drawn without a find.
    fn find_unseen(&mut self, most: usize, points: &mut impl Iterator<Item = Config>) -> Option<Config> {
        while self.since_last_known < most {
            let config = points.next()?;
            let key = config.key();
            self.since_last_known = if self.unmet_history.remove(&key) { 0 } else { self.since_last_known + 1 };
            if self.seen.contains(&key) || self.refused.contains(&key) {
                continue;
            }
            if (self.ask.allowed)(&config) {
                return Some(config);
            }
            self.refused.insert(key);
        }
        None
    }
}
