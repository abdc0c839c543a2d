//! Step time from measured kernels of one model on one device. `LLMServingSim`'s profiler has recorded them inside
//! vLLM.
//!
//! A profile is a folder with these files:
//!
//! - `tp1_dense.csv`: layer, tokens, microseconds
//! - `tp1_per_sequence.csv`: layer, sequences, microseconds
//! - `tp1_attention.csv`: prompt tokens, their context, decodes, their context, microseconds; all of one layer
//! - `meta.yaml`: only the skew of attention is read
//!
//! The files `tp2_*` are those of one of two tensor-parallel devices, and so on.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use super::settings::Settings;
use super::step_time::{Curve, KernelGrid, MeasuredKernels, StepTime};
use crate::stats::f64_to_u32;

/// Parts of a transformer layer by their names in the table, and how often each occurs in a layer.
const LAYER: [(&str, f64); 7] = [
    ("layernorm", 2.0),
    ("qkv_proj", 1.0),
    ("rotary_emb", 1.0),
    ("o_proj", 1.0),
    ("gate_up_proj", 1.0),
    ("act_fn", 1.0),
    ("down_proj", 1.0),
];
/// Parts that occur once in the model.
const ONCE: [&str; 2] = ["embedding", "final_layernorm"];
/// Parts whose time depends on the number of sequences.
const PER_SEQUENCE: [&str; 2] = ["lm_head", "sampler"];

#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: csv::Error,
    },
    #[error("{} has no column {column}", path.display())]
    Column { path: PathBuf, column: &'static str },
    #[error("{}, line {line}: {column} is {value:?}, must be a number of at least 0", path.display())]
    Number { path: PathBuf, line: u64, column: &'static str, value: String },
    #[error("{} has no rows of {what}", path.display())]
    Missing { path: PathBuf, what: &'static str },
}

/// Measured times, in seconds for the whole model.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerProfile {
    linear: Curve,
    sampling: Curve,
    attention: MeasuredKernels,
    layers: f64,
}

/// Seconds of attention in all layers, by prompt tokens, their context, decodes, and their context.
type Cells = HashMap<[u32; 4], f64>;

impl LayerProfile {
    /// Reads the profile of a model with this number of layers, on one of `tensor` devices.
    ///
    /// # Errors
    /// If a table is missing, or lacks a column or a part of the layer.
    pub fn read(folder: &Path, tensor: u32, layers: u32) -> Result<Self, ProfileError> {
        let layers = f64::from(layers);
        let table = |name| folder.join(format!("tp{tensor}_{name}.csv"));
        let dense = parts(&table("dense"), "tokens")?;
        let often = LAYER.iter().map(|(part, times)| (*part, times * layers)).chain(ONCE.map(|part| (part, 1.0)));
        let linear = sum(&table("dense"), &dense, often)?;
        let per_sequence = parts(&table("per_sequence"), "sequences")?;
        let sampling = sum(&table("per_sequence"), &per_sequence, PER_SEQUENCE.into_iter().map(|part| (part, 1.0)))?;
        let path = table("attention");
        let cells: Cells = rows(&path, ["prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"], None)?
            .into_iter()
            .map(|(_, [chunk, context, decodes, decode_context, time])| {
                ([chunk, context, decodes, decode_context].map(whole), time * 1e-6 * layers)
            })
            .collect();
        let attention = attention(&cells, tail(folder, tensor)).map_err(|what| ProfileError::Missing { path, what })?;
        Ok(Self { linear, sampling, attention, layers })
    }

    /// Returns the step time of this model and device. Terms that a profile of kernels lacks (launches, the host) have
    /// the common values of GPUs.
    #[must_use]
    pub fn step_time(&self, settings: &Settings) -> StepTime {
        let Self { linear, sampling, attention, layers } = self.clone();
        StepTime::measured(linear, sampling, attention, layers, settings)
    }
}

/// Reads the numbers of the named columns, and the text of another column on request.
fn rows<const N: usize>(
    path: &Path,
    columns: [&'static str; N],
    text: Option<&'static str>,
) -> Result<Vec<(String, [f64; N])>, ProfileError> {
    let read = |source| ProfileError::Read { path: path.to_owned(), source };
    let mut reader = csv::Reader::from_path(path).map_err(read)?;
    let headers = reader.headers().map_err(read)?.clone();
    let find = |column| {
        let at = headers.iter().position(|header| header == column);
        at.ok_or_else(|| ProfileError::Column { path: path.to_owned(), column })
    };
    let text = text.map(find).transpose()?;
    let mut at = [0; N];
    for (at, column) in at.iter_mut().zip(columns) {
        *at = find(column)?;
    }
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.map_err(read)?;
        let mut numbers = [0.0; N];
        for ((number, at), column) in numbers.iter_mut().zip(at).zip(columns) {
            let value = record.get(at).unwrap_or("");
            *number =
                value.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0).ok_or_else(|| {
                    let line = record.position().map_or(0, csv::Position::line);
                    ProfileError::Number { path: path.to_owned(), line, column, value: value.to_owned() }
                })?;
        }
        rows.push((text.and_then(|at| record.get(at)).unwrap_or("").to_owned(), numbers));
    }
    Ok(rows)
}

/// Returns the seconds of each part of a layer, by the size of the batch.
fn parts(path: &Path, size: &'static str) -> Result<HashMap<String, BTreeMap<u32, f64>>, ProfileError> {
    let mut parts: HashMap<String, BTreeMap<u32, f64>> = HashMap::new();
    for (part, [size, time]) in rows(path, [size, "time_us"], Some("layer"))? {
        parts.entry(part).or_default().insert(whole(size), time * 1e-6);
    }
    Ok(parts)
}

/// Sums the parts, each multiplied by its number of occurrences, at the sizes at which all parts were measured.
fn sum(
    path: &Path,
    parts: &HashMap<String, BTreeMap<u32, f64>>,
    times: impl Iterator<Item = (&'static str, f64)>,
) -> Result<Curve, ProfileError> {
    let mut sums: Option<BTreeMap<u32, f64>> = None;
    for (what, times) in times {
        let missing = || ProfileError::Missing { path: path.to_owned(), what };
        let part = parts.get(what).ok_or_else(missing)?;
        sums = Some(match sums {
            None => part.iter().map(|(size, time)| (*size, times * time)).collect(),
            Some(sums) => {
                let both = sums.into_iter().filter_map(|(size, sum)| Some((size, sum + times * part.get(&size)?)));
                both.collect()
            }
        });
        if sums.as_ref().is_none_or(BTreeMap::is_empty) {
            return Err(missing());
        }
    }
    Ok(Curve::Points(sums.unwrap_or_default().into_iter().map(|(size, sum)| (f64::from(size), sum)).collect()))
}

/// Builds the grids of attention. The error names the rows that are missing.
fn attention(cells: &Cells, tail: f64) -> Result<MeasuredKernels, &'static str> {
    let axis = |keep: &dyn Fn(&[u32; 4]) -> bool, number: usize| common(cells.keys().filter(|key| keep(key)), number);
    let decode = |key: &[u32; 4]| key[0] == 0 && key[2] > 0;
    let prompt = |key: &[u32; 4]| key[0] > 0 && key[2] == 0;
    let mixed = |key: &[u32; 4]| key[0] > 0 && key[2] > 0;
    let at = |point: [f64; 4]| cell(cells, point.map(whole));
    let none = |what| move || what;
    Ok(MeasuredKernels {
        decode: KernelGrid::new([axis(&decode, 2), axis(&decode, 3)], |[decodes, context]| {
            at([0.0, 0.0, decodes, context])
        })
        .ok_or_else(none("decodes without prompts"))?,
        prompt: KernelGrid::new([axis(&prompt, 0), axis(&prompt, 1)], |[chunk, context]| {
            at([chunk, context, 0.0, 0.0])
        })
        .ok_or_else(none("prompts without decodes"))?,
        mixed: KernelGrid::new([0, 1, 2, 3].map(|number| axis(&mixed, number)), at)
            .ok_or_else(none("prompts with decodes"))?,
        tail,
    })
}

/// Returns the values of one coordinate that have at least half as many rows as the most frequent one. They form the
/// grid. Points that were measured outside of it are left out.
fn common<'a>(keys: impl Iterator<Item = &'a [u32; 4]>, number: usize) -> Vec<f64> {
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    for key in keys {
        *counts.entry(key[number]).or_default() += 1;
    }
    let most = counts.values().copied().max().unwrap_or(0);
    counts.into_iter().filter(|(_, count)| 2 * count >= most).map(|(value, _)| f64::from(value)).collect()
}

/// Returns the time of a cell. The profiler could not measure cells that exceed the device's cache. Their decode part
/// is extrapolated in proportion to the context, from the largest smaller context.
fn cell(cells: &Cells, key: [u32; 4]) -> f64 {
    if let Some(time) = cells.get(&key) {
        return *time;
    }
    let [chunk, context, decodes, decode_context] = key;
    let without = cells.get(&[chunk, context, 0, 0]).copied().unwrap_or(0.0);
    let below: BTreeSet<u32> =
        cells.keys().filter(|at| at[..3] == key[..3] && at[3] < decode_context).map(|at| at[3]).collect();
    match below.last() {
        Some(largest) => {
            let time = cells.get(&[chunk, context, decodes, *largest]).copied().unwrap_or(without);
            without + (time - without) * f64::from(decode_context) / f64::from(*largest)
        }
        None => without,
    }
}

/// Reads `alpha_default` of `skew_fit` in `meta.yaml`, 0 if it was not measured. Attention over a batch with unequal
/// contexts takes longer than with equal ones of the same mean. The value is the position of its time between those of
/// the mean context (0) and of the longest one (1).
fn tail(folder: &Path, tensor: u32) -> f64 {
    let text = std::fs::read_to_string(folder.join("meta.yaml")).unwrap_or_default();
    let own = format!("{tensor}:");
    let mut lines = text.lines().map(str::trim).skip_while(|line| *line != "skew_fit:").skip_while(|line| *line != own);
    lines.find_map(|line| line.strip_prefix("alpha_default:")?.trim().parse().ok()).unwrap_or(0.0_f64).clamp(0.0, 1.0)
}

fn whole(number: f64) -> u32 {
    f64_to_u32(number.round())
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;
    use crate::config::ResolvedConfig;
    use crate::twin::BatchWork;

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let mut dense = "layer,tokens,time_us\n".to_owned();
        for tokens in [1, 100] {
            for part in LAYER.iter().map(|(part, _)| *part).chain(ONCE) {
                writeln!(dense, "{part},{tokens},{}", tokens * 10).unwrap();
            }
        }
        let mut attention = "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n".to_owned();
        for (chunk, context) in [(0, 0), (16, 0), (16, 64), (64, 0), (64, 64)] {
            for (decodes, length) in [(0, 0), (1, 100), (1, 200), (100, 100), (100, 200)] {
                // Leaves out the cells that the cache had no room for.
                if chunk + decodes > 0 && !(chunk == 64 && length == 200) {
                    let time = chunk * (chunk + 2 * context) + decodes * length;
                    writeln!(attention, "{chunk},{context},{decodes},{length},{time}").unwrap();
                }
            }
        }
        for (name, text) in [
            ("tp1_dense.csv", dense),
            ("tp1_per_sequence.csv", "layer,sequences,time_us\nlm_head,1,5\nlm_head,9,5\nsampler,1,1\nsampler,9,9\n".to_owned()),
            ("tp1_attention.csv", attention),
            ("meta.yaml", "skew_fit:\n  enabled: true\n  per_tp:\n    1:\n      alpha_default: 0.5\n    2:\n      alpha_default: 0.7\n".to_owned()),
        ] {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        folder
    }

    fn step_time(folder: &Path) -> StepTime {
        let settings = Settings {
            resolved: ResolvedConfig { max_num_seqs: 256, ..crate::twin::tests::settings().resolved },
            eager: false,
            ..crate::twin::tests::settings()
        };
        LayerProfile::read(folder, 1, 2).unwrap().step_time(&settings)
    }

    fn close(seconds: f64, microseconds: f64) {
        assert!((seconds * 1e6 - microseconds).abs() < 1e-6, "{} and not {microseconds}", seconds * 1e6);
    }

    #[test]
    fn a_step_is_the_sum_of_what_was_measured() {
        let folder = folder();
        let work = BatchWork {
            sequences: 9,
            tokens: 9,
            decodes: 9,
            samples: 9,
            decode_context: 9 * 150,
            decode_longest: 150,
            ..BatchWork::default()
        };
        let parts = step_time(folder.path()).parts(&work);
        // Sixteen tokens are computed: two layers of eight parts, and two parts once.
        close(parts.linear_s, 160.0 * (2.0 * 8.0 + 2.0));
        close(parts.sampling_s, 14.0);
        close(parts.attention_s, 2.0 * 9.0 * 150.0);
        assert!(parts.launch_s == 0.0);
    }

    #[test]
    fn an_uneven_batch_is_slower_by_its_longest_context() {
        let folder = folder();
        let even = BatchWork { decodes: 10, decode_context: 1500, decode_longest: 150, ..BatchWork::default() };
        let uneven = BatchWork { decode_longest: 200, ..even };
        let time = step_time(folder.path());
        // Half of the way from 10 times 150 tokens to 10 times 200, in two layers.
        close(time.parts(&uneven).attention_s - time.parts(&even).attention_s, 500.0);
    }

    #[test]
    fn prompts_and_decodes_are_looked_up_together_and_several_prompts_by_their_pairs() {
        let folder = folder();
        let time = step_time(folder.path());
        let one = BatchWork {
            prompt_tokens: 64,
            prompt_pairs: 64 * 65 / 2,
            decodes: 10,
            decode_context: 1000,
            ..BatchWork::default()
        };
        close(time.parts(&one).attention_s, 2.0 * (64.0 * 64.0 + 1000.0));
        let halves = BatchWork { prompt_pairs: 32 * 33, ..one };
        let least = 16.0 * 16.0 + 1000.0;
        let share = f64::from(32 * 33) / f64::from(64 * 65 / 2);
        close(time.parts(&halves).attention_s, 2.0 * (least + share * (64.0 * 64.0 - 16.0 * 16.0)));
        // The cell with a context of 200 is missing: the decodes' part is extrapolated.
        let long = BatchWork { decode_context: 2000, ..one };
        close(time.parts(&long).attention_s, 2.0 * (64.0 * 64.0 + 2000.0));
    }

    #[test]
    fn a_missing_column_or_row_is_reported() {
        let folder = folder();
        let path = folder.path().join("tp1_per_sequence.csv");
        std::fs::write(&path, "layer,sequences,time_us\nlm_head,1,-5\n").unwrap();
        let text = LayerProfile::read(folder.path(), 1, 2).unwrap_err().to_string();
        assert!(text.ends_with("line 2: time_us is \"-5\", must be a number of at least 0"), "{text}");
        std::fs::write(&path, "layer,sequences,time_us\nlm_head,1,5\n").unwrap();
        let text = LayerProfile::read(folder.path(), 1, 2).unwrap_err().to_string();
        assert!(text.ends_with("has no rows of sampler"), "{text}");
        assert!(matches!(LayerProfile::read(folder.path(), 2, 2), Err(ProfileError::Read { .. })));
    }
}
