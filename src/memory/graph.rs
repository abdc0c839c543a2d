//! Memory of captured CUDA graphs.

use super::MemoryLaunch;
use crate::facts::{EngineVersion, ModelShape};
use crate::stats::gib;

/// Bytes of the graph of one batch size in one layer. Measured on an L40S with 0.9.0.1 for 28, 32 and 64 layers and 11
/// to 67 sizes.
const LAYER: u64 = 256 << 10;

/// Estimates the memory of all graphs in GiB, 0 if none is captured. `None` if the shape lacks the number of layers.
pub(super) fn graphs(model: &ModelShape, launch: &MemoryLaunch) -> Option<f64> {
    if captured_sizes(launch) == 0 {
        return Some(0.0);
    }
    let layers = super::cache::stage_layers(model.layers?, launch);
    Some(gib(captured_sizes(launch).saturating_mul(layers).saturating_mul(LAYER)))
}

/// Returns the number of captured batch sizes. By default these are 1, 2, 4 and the multiples of 8. From 0.12 on, only
/// multiples of 16 are captured above 256. Eager mode and CPUs capture none.
#[must_use]
pub fn captured_sizes(launch: &MemoryLaunch) -> u64 {
    if launch.eager || launch.target.cpu {
        return 0;
    }
    let resolved = &launch.resolved;
    let since = |minor| launch.target.version >= EngineVersion::new(0, minor, 0);
    let largest = match (resolved.v0, since(10)) {
        (true, _) => resolved.max_num_seqs.min(8192).next_multiple_of(8),
        (false, false) => 512,
        (false, true) => resolved.max_num_seqs.saturating_mul(2).min(512),
    };
    let largest = if resolved.v0 { largest } else { largest.min(resolved.max_num_batched_tokens) };
    let fine = if since(12) { largest.min(256) } else { largest };
    3 + fine / 8 + (largest - fine) / 16
}

/// Returns whether the release subtracts an estimate of the graphs before it sizes the cache.
pub(super) fn subtracts_graphs(launch: &MemoryLaunch) -> bool {
    launch.estimates_graphs && launch.target.version >= EngineVersion::V0_20
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ResolvedConfig;
    use crate::memory::{LaunchTarget, test_launch, test_model};

    fn of(v0: bool, version: &str, seqs: u64) -> f64 {
        let version = version.parse().unwrap();
        let launch = test_launch();
        let target = LaunchTarget { version, ..launch.target };
        let resolved = ResolvedConfig { v0, max_num_seqs: seqs, ..launch.resolved };
        graphs(&test_model(), &MemoryLaunch { target, resolved, ..launch }).unwrap()
    }

    #[test]
    fn graphs_grow_with_the_captured_sizes_as_measured_on_an_l40s() {
        for (v0, seqs, measured) in [(false, 256, 0.52), (true, 256, 0.26), (true, 128, 0.16), (true, 64, 0.12)] {
            let estimate = of(v0, "0.9.0", seqs);
            assert!((estimate - measured).abs() < 0.05, "{seqs} sequences: {estimate} GiB, measured {measured}");
        }
        assert_eq!(graphs(&test_model(), &MemoryLaunch { eager: true, ..test_launch() }), Some(0.0));
        assert!(of(false, "0.12.0", 256) < of(false, "0.11.0", 256));
    }
}
