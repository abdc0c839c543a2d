//! The configurations for the effects: an even sample of those that are allowed and probably serve, and copies with one
//! value exchanged.

use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::config::Config;
use crate::sampler::{SamplerAsk, sobol};
use crate::surrogate::{Encoding, Process};

/// Number of rows of a sample.
const ROWS: usize = 512;
/// Maximum number of points drawn for each of the two samples.
const MAX_DRAWN: usize = 16 * ROWS;
/// Maximum number of rows that are tried as the source of an exchanged value. The first is the row of the same index in
/// the other sample, the next ones are drawn.
const TRIES: usize = 8;

/// The configurations for the effects: allowed, and expected to serve.
pub(super) struct Region<'a, 's> {
    pub(super) ask: &'a SamplerAsk<'a>,
    pub(super) encoding: &'a Encoding<'s>,
    /// Predicts whether a configuration serves: above 0 it probably does not.
    pub(super) crash: Option<&'a Process>,
}

/// A point of the unit cube, and its configuration as a point of the models. Coordinates of inactive parameters are
/// kept in `unit`, for an exchange that makes them active.
#[derive(Clone, Debug)]
pub(super) struct SamplePlace {
    pub(super) unit: Vec<f64>,
    pub(super) point: Vec<f64>,
}

/// A row with one coordinate from another row.
#[derive(Clone, Debug)]
pub(super) struct ExchangedRow {
    pub(super) row: usize,
    /// Index among `others` of the row that the coordinate comes from.
    pub(super) from: usize,
    pub(super) point: Vec<f64>,
}

/// Two even samples of equal size that are independent of each other. For each coordinate, `exchanges` has the rows of
/// the first sample with that coordinate taken from the second.
pub(super) struct SobolSample {
    pub(super) rows: Vec<SamplePlace>,
    pub(super) others: Vec<SamplePlace>,
    pub(super) exchanges: Vec<Vec<ExchangedRow>>,
}

impl Region<'_, '_> {
    /// Returns the configuration at a point of the unit cube, or `None` if it is outside of the region.
    pub(super) fn configuration_at(&self, unit: &[f64]) -> Option<(Config, Vec<f64>)> {
        self.locate(self.ask.space.decode(unit))
    }

    /// Returns a configuration with its point, or `None` if it is outside of the region.
    pub(super) fn locate(&self, config: Config) -> Option<(Config, Vec<f64>)> {
        if !(self.ask.allowed)(&config) {
            return None;
        }
        let point = self.encoding.point(&config)?;
        let serves = self.crash.is_none_or(|crash| crash.mean(&point) <= 0.0);
        serves.then_some((config, point))
    }
}

impl SobolSample {
    /// Draws the sample. `None` if too few allowed points are found.
    pub(super) fn new(region: &Region<'_, '_>) -> Option<Self> {
        let dimensions = region.ask.space.dimensions();
        let (mut rows, mut others) = (Vec::new(), Vec::new());
        let (mut alone, mut others_alone) = (Vec::new(), Vec::new());
        for index in 0..MAX_DRAWN {
            let both = sobol::point(index, 2 * dimensions, 0);
            let (one, other) = both.split_at(dimensions);
            let place = |unit: &[f64]| {
                region.configuration_at(unit).map(|(_, point)| SamplePlace { unit: unit.to_vec(), point })
            };
            match (place(one), place(other)) {
                (Some(one), Some(other)) => {
                    rows.push(one);
                    others.push(other);
                }
                (one, other) => {
                    alone.extend(one);
                    others_alone.extend(other);
                }
            }
            if rows.len() == ROWS {
                break;
            }
        }
        // Points of a sequence at a fixed distance depend on each other. Halves of different points are therefore
        // paired at random.
        let mut rng = ChaCha8Rng::seed_from_u64(0);
        others_alone.shuffle(&mut rng);
        for (one, other) in alone.into_iter().zip(others_alone).take(ROWS - rows.len()) {
            rows.push(one);
            others.push(other);
        }
        if rows.len() < 2 {
            return None;
        }
        let mut exchange = |coordinate: usize| {
            let of_row = |(row, place): (usize, &SamplePlace)| {
                (0..TRIES).find_map(|attempt| {
                    let from = if attempt == 0 { row } else { rng.random_range(0..others.len()) };
                    let point = exchanged(region, place, &others[from], &[coordinate])?;
                    Some(ExchangedRow { row, from, point })
                })
            };
            rows.iter().enumerate().filter_map(of_row).collect()
        };
        let exchanges = (0..dimensions).map(&mut exchange).collect();
        Some(Self { rows, others, exchanges })
    }
}

/// Returns a place with some coordinates of another one, or `None` if it is outside of the region.
pub(super) fn exchanged(
    region: &Region<'_, '_>,
    to: &SamplePlace,
    from: &SamplePlace,
    coordinates: &[usize],
) -> Option<Vec<f64>> {
    let mut unit = to.unit.clone();
    for coordinate in coordinates {
        unit[*coordinate] = from.unit[*coordinate];
    }
    region.configuration_at(&unit).map(|(_, point)| point)
}
