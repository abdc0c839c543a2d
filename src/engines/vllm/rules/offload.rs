//! Weights and KV cache blocks outside the device, and KV connectors (`OffloadConfig`, `KVTransferConfig` in vLLM
//! 0.32).

use super::{Candidate, Rule, Violation, refusal};

pub(super) const RULES: &[Rule] = &[
    refusal("R18", "the prefetch of offloaded layers has valid group sizes and steps", groups),
    refusal("R18a", "the KV connector has a known name, a role and a valid setup", connector),
    refusal("R18b", "the Python package of the KV connector is installed", package),
];

fn groups(candidate: &Candidate<'_>) -> Option<Violation> {
    let group = candidate.number_or("offload-group-size", 0);
    if group <= 0 && candidate.text("offload-backend") != Some("prefetch") {
        return None;
    }
    let taken = candidate.number_or("offload-num-in-group", 1);
    if taken > group {
        let message = format!("offload_num_in_group ({taken}) must be <= offload_group_size ({group})");
        let violation = Violation::new(message);
        return Some(if group > 0 {
            violation.set("offload-num-in-group", group)
        } else {
            violation.set("offload-group-size", taken)
        });
    }
    let step = candidate.number_or("offload-prefetch-step", 1);
    (step < 1).then(|| {
        let message = format!(
            "offload_prefetch_step ({step}) must be >= 1 when prefetch offloading is enabled (offload_group_size > 0)"
        );
        Violation::new(message).set("offload-prefetch-step", 1_i64)
    })
}

/// Connectors of 0.32: `vllm/distributed/kv_transfer/kv_connector/factory.py`.
const CONNECTORS: [&str; 18] = [
    "DecodeBenchConnector",
    "ExampleConnector",
    "ExampleHiddenStatesConnector",
    "FlexKVConnectorV1",
    "HF3FSKVConnector",
    "HiSparseConnector",
    "LMCacheConnectorV1",
    "LMCacheMPConnector",
    "MoRIIOConnector",
    "MooncakeConnector",
    "MooncakeStoreConnector",
    "MultiConnector",
    "NixlConnector",
    "NixlPullConnector",
    "NixlPushConnector",
    "OffloadingConnector",
    "SimpleCPUOffloadConnector",
    "TransferConnector",
];

const FLAG: &str = "kv-transfer-config";

/// Returns whether the engine loads the connector's class. It does so to determine whether the connector supports
/// groups of layers, unless a flag decides that.
fn loads_connector_class(candidate: &Candidate<'_>) -> bool {
    !candidate.has("disable-hybrid-kv-cache-manager")
}

fn connector(candidate: &Candidate<'_>) -> Option<Violation> {
    let fields = candidate.fields(FLAG)?;
    let text = |name: &str| fields.get(name).and_then(serde_json::Value::as_str);
    let refused = |message: String| Some(Violation::new(message).unset(FLAG));
    let Some(name) = text("kv_connector") else {
        let offloads = candidate.has("kv-offloading-size");
        return if loads_connector_class(candidate) && !offloads {
            refused("Connector name is not set in KVTransferConfig".to_owned())
        } else {
            None
        };
    };
    if text("kv_role").is_none() {
        return refused(format!(
            "Please specify kv_role when kv_connector is set ({name}), supported roles are kv_producer, kv_both, \
             kv_consumer"
        ));
    }
    let own = fields.get("kv_connector_module_path").is_some_and(|path| !path.is_null());
    let overridden = candidate.has("kv-offloading-size");
    if loads_connector_class(candidate) && !own && !overridden && !CONNECTORS.contains(&name) {
        return refused(format!("Unsupported connector type: {name}"));
    }
    if candidate.on_cpu() && name == "HiSparseConnector" && !overridden {
        return refused("HiSparse currently requires NVIDIA CUDA.".to_owned());
    }
    let decode = candidate.number_or("decode-context-parallel-size", 1);
    let mla = candidate.facts.model.latent.is_some();
    if name == "NixlConnector" && decode > 1 && !overridden {
        let tensor = candidate.number_or("tensor-parallel-size", 1);
        let whole = tensor.max(candidate.number_or("prefill-context-parallel-size", 1));
        if decode != whole {
            return refused(format!(
                "decode_context_parallel_size={decode} must be 1 or equal to the NIXL transfer parallel size={whole}."
            ));
        }
        if !mla {
            return refused("PD with decode_context_parallel_size > 1 is only supported for MLA models.".to_owned());
        }
    }
    None
}

/// Checks for packages that vLLM for CPUs does not include.
fn package(candidate: &Candidate<'_>) -> Option<Violation> {
    if !candidate.on_cpu() || !loads_connector_class(candidate) {
        return None;
    }
    let offloads = candidate.has("kv-offloading-size");
    if offloads && candidate.text("kv-offloading-backend") == Some("lmcache") {
        let violation = Violation::new("No module named 'lmcache': install it for --kv-offloading-backend lmcache");
        return Some(violation.unset("kv-offloading-backend"));
    }
    let fields = candidate.fields(FLAG).filter(|_| !offloads)?;
    let module = match fields.get("kv_connector").and_then(serde_json::Value::as_str)? {
        "LMCacheMPConnector" => "lmcache",
        "MoRIIOConnector" => "msgpack",
        _ => return None,
    };
    Some(Violation::new(format!("No module named '{module}': install it for this KV connector")).unset(FLAG))
}

#[cfg(test)]
mod tests {
    use crate::engines::vllm::rules::tests::on_cpu;

    #[test]
    fn prefetched_groups_hold_what_is_taken_out() {
        assert_eq!(on_cpu("--offload-backend prefetch"), Some("R18"));
        assert_eq!(on_cpu("--offload-group-size 2 --offload-num-in-group 4"), Some("R18"));
        assert_eq!(on_cpu("--offload-group-size 4 --offload-num-in-group 2"), Some("R18d"), "nowhere to fetch them to");
        assert_eq!(on_cpu("--offload-group-size 4 --offload-prefetch-step 0"), Some("R18"));
        assert_eq!(on_cpu("--offload-num-in-group 2"), None);
    }

    #[test]
    fn connectors_have_names_and_roles() {
        let with = |json: &str| on_cpu(&format!("--kv-transfer-config {json}"));
        assert_eq!(with(r#"{"kv_connector":"NixlConnector","kv_role":"kv_both"}"#), None);
        assert_eq!(with(r#"{"kv_connector":"NixlConnector"}"#), Some("R18a"));
        assert_eq!(with(r#"{"kv_connector":"Foo","kv_role":"kv_both"}"#), Some("R18a"));
        assert_eq!(with("{}"), Some("R18a"));
        assert_eq!(with("{} --disable-hybrid-kv-cache-manager"), None);
        assert_eq!(on_cpu("--kv-offloading-size 4 --kv-offloading-backend lmcache"), Some("R18b"));
    }
}
