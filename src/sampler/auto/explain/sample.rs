//! Configurations by which effects are measured: an even sample of those that are allowed and probably serve, and the same
//! with one value exchanged.

use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::config::Config;
use crate::sampler::{Ask, sobol};
use crate::surrogate::{Encoding, Process};

/// Rows of a sample.
const ROWS: usize = 512;
/// Points drawn for that at most, twice.
const MOST_DRAWN: usize = 16 * ROWS;
/// Rows that a value is taken from, the opposite one first, until the exchange is allowed.
const TRIES: usize = 8;

/// Where effects are measured.
pub(super) struct Region<'a, 's> {
    pub(super) ask: &'a Ask<'a>,
    pub(super) encoding: &'a Encoding<'s>,
    /// Above 0 where a configuration probably does not serve.
    pub(super) crash: Option<&'a Process>,
}

/// A point of the unit cube, and the configuration there as the models see it. Coordinates of parameters that are not active
/// are kept in the former, for when an exchange makes them active.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) unit: Vec<f64>,
    pub(super) point: Vec<f64>,
}

/// A row with one coordinate from another row.
#[derive(Clone, Debug)]
pub(super) struct Exchange {
    pub(super) row: usize,
    /// The place among `others` that it is from.
    pub(super) from: usize,
    pub(super) point: Vec<f64>,
}

/// Two even samples of as many rows, which do not depend on each other, and for each coordinate the rows of the first with that of the second.
pub(super) struct Sample {
    pub(super) rows: Vec<Place>,
    pub(super) others: Vec<Place>,
    pub(super) exchanges: Vec<Vec<Exchange>>,
}

impl Region<'_, '_> {
    /// The configuration at a point of the unit cube; `None` where it is not of the region.
    pub(super) fn place(&self, unit: &[f64]) -> Option<(Config, Vec<f64>)> {
        self.of(self.ask.space.decode(unit))
    }

    /// A configuration with its point, where it is of the region.
    pub(super) fn of(&self, config: Config) -> Option<(Config, Vec<f64>)> {
        if !(self.ask.allowed)(&config) {
            return None;
        }
        let point = self.encoding.point(&config)?;
        let serves = self.crash.is_none_or(|crash| crash.mean(&point) <= 0.0);
        serves.then_some((config, point))
    }
}

impl Sample {
    /// `None` where too little is allowed to be found.
    pub(super) fn new(region: &Region<'_, '_>) -> Option<Self> {
        let dimensions = region.ask.space.dimensions();
        let (mut rows, mut others) = (Vec::new(), Vec::new());
        let (mut alone, mut others_alone) = (Vec::new(), Vec::new());
        for index in 0..MOST_DRAWN {
            let both = sobol::point(index, 2 * dimensions, 0);
            let (one, other) = both.split_at(dimensions);
            let place = |unit: &[f64]| region.place(unit).map(|(_, point)| Place { unit: unit.to_vec(), point });
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
        // Points of a sequence at a fixed distance depend on each other: what is not one point goes together by chance.
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
            let of_row = |(row, place): (usize, &Place)| {
                (0..TRIES).find_map(|attempt| {
                    let from = if attempt == 0 { row } else { rng.random_range(0..others.len()) };
                    let point = exchanged(region, place, &others[from], &[coordinate])?;
                    Some(Exchange { row, from, point })
                })
            };
            rows.iter().enumerate().filter_map(of_row).collect()
        };
        let exchanges = (0..dimensions).map(&mut exchange).collect();
        Some(Self { rows, others, exchanges })
    }
}

/// A place with some coordinates of another one.
pub(super) fn exchanged(region: &Region<'_, '_>, to: &Place, from: &Place, coordinates: &[usize]) -> Option<Vec<f64>> {
    let mut unit = to.unit.clone();
    for coordinate in coordinates {
        unit[*coordinate] = from.unit[*coordinate];
    }
    region.place(&unit).map(|(_, point)| point)
}
