//! Properties of every rule: none refuses the defaults, none refuses because of an unknown fact, none panics.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::config::Value;
use crate::facts::{ExpertLayers, Gpu, HostLimits, LatentAttention};
use crate::rule::{rejection, repair};

const RELEASES: [EngineVersion; 12] = [
    EngineVersion::new(0, 6, 3),
    EngineVersion::new(0, 7, 3),
    EngineVersion::new(0, 8, 5),
    EngineVersion::new(0, 9, 1),
    EngineVersion::new(0, 10, 2),
    EngineVersion::new(0, 11, 0),
    EngineVersion::V0_12,
    EngineVersion::new(0, 15, 0),
    EngineVersion::new(0, 20, 2),
    EngineVersion::V0_32,
    EngineVersion::new(0, 33, 0),
    EngineVersion::LATEST,
];

/// Returns models with plain, grouped and multi-query attention, a window, experts, latent attention and pictures.
fn models() -> Vec<ModelShape> {
    let base = json!({"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14_336, "vocab_size": 128_256, "torch_dtype": "bfloat16",
        "max_position_embeddings": 8192});
    let with = |changes: serde_json::Value| {
        let mut shape = base.clone();
        shape.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        ModelShape::from_json(&shape)
    };
    vec![
        with(json!({})),
        with(json!({"num_key_value_heads": 32, "max_position_embeddings": 2048})),
        with(json!({"num_key_value_heads": 1, "max_position_embeddings": 131_072})),
        with(json!({"model_type": "mistral", "sliding_window": 4096, "max_position_embeddings": 32_768})),
        with(json!({"model_type": "gemma2", "sliding_window": 4096, "head_dim": 256})),
        with(json!({"model_type": "mixtral", "num_local_experts": 8, "max_position_embeddings": 65_536})),
        with(json!({"model_type": "deepseek_v3", "kv_lora_rank": 512, "qk_rope_head_dim": 64, "n_routed_experts": 256,
            "max_position_embeddings": 163_840})),
        with(json!({"model_type": "qwen2_vl", "vision_config": {}})),
        with(json!({"is_encoder_decoder": true, "max_position_embeddings": 1024})),
    ]
}

fn gpu(gib: u64, capability: (u8, u8), a100: bool) -> Device {
    Device::Cuda(Gpu { memory: Some(gib << 30), count: Some(1), capability: Some(capability), a100, units: &[] })
}

#[test]
fn the_defaults_of_every_release_are_accepted_for_every_model_on_every_device() {
    let devices = [
        Device::Cpu,
        Device::UNKNOWN_GPU,
        gpu(24, (8, 9), false),
        gpu(40, (8, 0), true),
        gpu(80, (8, 0), true),
        gpu(80, (9, 0), false),
        gpu(141, (9, 0), false),
        gpu(180, (10, 0), false),
    ];
    for version in RELEASES {
        for model in models() {
            for device in devices {
                let facts = Facts {
                    host: HostLimits { memory: Some(64 << 30), numa_nodes: Some(1), amx: Some(false), cores: None },
                    ..Facts::new(VLLM_RULES, &model, version, device)
                };
                // A model may be too large for a device, or its length may not fit the remaining memory.
                let finding = rejection(&Config::new(), &facts).filter(|finding| !["R6", "R7"].contains(&finding.rule));
                assert_eq!(finding, None, "{version} {device:?} {model:?}");
            }
        }
    }
}

/// Flags that some rule or some default depends on, with the kind of their values.
const INTEGERS: [&str; 17] = [
    "block-size",
    "data-parallel-size",
    "data-parallel-size-local",
    "long-prefill-token-threshold",
    "max-long-partial-prefills",
    "max-model-len",
    "max-num-batched-tokens",
    "max-num-partial-prefills",
    "max-num-seqs",
    "max-seq-len-to-capture",
    "nnodes",
    "num-gpu-blocks-override",
    "num-lookahead-slots",
    "num-scheduler-steps",
    "pipeline-parallel-size",
    "prefill-context-parallel-size",
    "tensor-parallel-size",
];
const FLOATS: [&str; 4] = ["cpu-offload-gb", "gpu-memory-utilization", "scheduler-delay-factor", "swap-space"];
const SWITCHES: [&str; 8] = [
    "async-scheduling",
    "disable-sliding-window",
    "enable-chunked-prefill",
    "enable-lora",
    "enable-prefix-caching",
    "enforce-eager",
    "use-v2-block-manager",
    "worker-use-ray",
];
const TEXTS: [(&str, &[&str]); 9] = [
    ("attention-backend", &["FLASH_ATTN", "FLASHINFER", "TRITON_MLA", "none"]),
    ("distributed-executor-backend", &["mp", "ray", "uni"]),
    ("dtype", &["auto", "half", "bfloat16", "float32"]),
    ("kv-cache-dtype", &["auto", "fp8", "fp8_e5m2"]),
    ("load-format", &["auto", "bitsandbytes", "sharded_state"]),
    ("preemption-mode", &["swap", "recompute"]),
    ("quantization", &["awq", "gptq", "fp8", "bitsandbytes", "fp_quant"]),
    ("scheduling-policy", &["fcfs", "priority"]),
    ("speculative-config", &["{", "{\"method\":\"ngram\"}", "{\"method\":7}"]),
];

fn integer() -> impl Strategy<Value = i64> {
    prop_oneof![
        3 => prop::sample::select(vec![i64::MIN, -1, 0, 1, 2, 3, 8, 16, 17, 64, 100, 512, 2048, 4096, i64::MAX]),
        1 => any::<i64>(),
        2 => 0_i64..10_000,
    ]
}

fn flag() -> impl Strategy<Value = (String, Value)> {
    let named = |names: &'static [&'static str]| prop::sample::select(names).prop_map(str::to_owned);
    let text = prop::sample::select(&TEXTS[..]).prop_flat_map(|(name, values)| {
        prop::sample::select(values).prop_map(move |value| (name.to_owned(), Value::from(value)))
    });
    prop_oneof![
        4 => (named(&INTEGERS), integer()).prop_map(|(name, value)| (name, value.into())),
        1 => (named(&FLOATS), prop_oneof![any::<f64>(), -1.0..200.0]).prop_map(|(name, value)| (name, value.into())),
        2 => (named(&SWITCHES), any::<bool>()).prop_map(|(name, value)| (name, value.into())),
        2 => text,
    ]
}

/// Returns sizes up to the largest that is read from a `config.json`.
fn size() -> impl Strategy<Value = Option<u64>> {
    prop::option::of(prop_oneof![
        prop::sample::select(vec![1, 2, 3, 8, 32, 128, 4096, 1 << 32]),
        1_u64..100,
        1..=(1_u64 << 32)
    ])
}

fn shape() -> impl Strategy<Value = ModelShape> {
    let known = prop::sample::select(models());
    let sizes = prop::collection::vec(size(), 10);
    let odd = (known.clone(), sizes, any::<(bool, bool, Option<u64>)>()).prop_map(|(base, sizes, rest)| ModelShape {
        hidden_size: sizes[0],
        layers: sizes[1],
        attention_heads: sizes[2],
        kv_heads: sizes[3],
        head_dim: sizes[4],
        intermediate_size: sizes[5],
        vocab_size: sizes[6],
        sliding_window: sizes[7],
        sliding_layers: sizes[8],
        latent: sizes[9].map(|kv_lora_rank| LatentAttention { kv_lora_rank, qk_rope_head_dim: 64 }),
        experts: sizes[9].map(|count| ExpertLayers {
            count,
            per_token: None,
            intermediate_size: None,
            shared: 0,
            dense_layers: 0,
        }),
        multimodal: rest.0,
        encoder_decoder: rest.1,
        checkpoint_bytes: rest.2,
        ..base
    });
    prop_oneof![2 => known, 1 => odd, 1 => Just(ModelShape::from_json(&json!({})))]
}

fn device() -> impl Strategy<Value = Device> {
    let memory = prop::option::of(prop::sample::select(vec![0_u64, 16 << 30, 40 << 30, 80 << 30, 180 << 30, u64::MAX]));
    let capability = prop::option::of(prop::sample::select(vec![(7_u8, 5_u8), (8, 0), (8, 9), (9, 0), (10, 0)]));
    let known = (memory, prop::option::of(prop::sample::select(vec![1_u32, 8, u32::MAX])), capability, any::<bool>());
    let exists = |device: &Device| {
        let gpu = device.gpu().unwrap_or_default();
        gpu.memory.is_none_or(|memory| memory <= 48 << 30) || gpu.capability.is_none_or(|known| known.0 >= 8)
    };
    let cuda = known.prop_map(|(memory, count, capability, a100)| {
        Device::Cuda(Gpu { memory, count, capability, a100, units: &[] })
    });
    prop_oneof![1 => Just(Device::Cpu), 4 => cuda.prop_filter("no such GPU exists", exists)]
}

fn environment() -> impl Strategy<Value = BTreeMap<String, String>> {
    let values: [(&str, &[&str]); 3] = [
        ("VLLM_USE_V1", &["0", "1", "x"]),
        ("VLLM_PP_LAYER_PARTITION", &["16,16", "4294967296", "18446744073709551615,1", "", "a"]),
        ("VLLM_ATTENTION_BACKEND", &["FLASH_ATTN", "FLASHINFER", "XFORMERS", "FLASHMLA", "?"]),
    ];
    let one = prop::sample::select(values.to_vec()).prop_flat_map(|(name, values)| {
        prop::sample::select(values).prop_map(move |value| (name.to_owned(), value.to_owned()))
    });
    prop::collection::vec(one, 0..3).prop_map(|pairs| pairs.into_iter().collect())
}

/// All inputs of rules.
#[derive(Clone, Debug)]
struct Case {
    model: ModelShape,
    version: EngineVersion,
    device: Device,
    env: BTreeMap<String, String>,
    longest_request: Option<u64>,
    host_memory: Option<u64>,
    numa_nodes: Option<u32>,
    config: Config,
}

impl Case {
    fn facts(&self) -> Facts<'_> {
        Facts {
            env: &self.env,
            longest_request: self.longest_request,
            host: HostLimits { memory: self.host_memory, numa_nodes: self.numa_nodes, amx: None, cores: None },
            ..Facts::new(VLLM_RULES, &self.model, self.version, self.device)
        }
    }

    fn rejections(&self) -> BTreeSet<&'static str> {
        let findings = check(&self.config, &self.facts());
        findings.into_iter().filter(|finding| finding.severity.rejects()).map(|finding| finding.rule).collect()
    }

    /// Returns the case with fewer known facts. A model's other keys are kept: their absence would mean that the model
    /// lacks a feature.
    fn forget(mut self, forgotten: u16) -> Self {
        let is_forgotten = |bit: u32| forgotten & (1 << bit) != 0;
        if let Device::Cuda(gpu) = &mut self.device {
            gpu.memory = gpu.memory.filter(|_| !is_forgotten(0));
            gpu.count = gpu.count.filter(|_| !is_forgotten(1));
            gpu.capability = gpu.capability.filter(|_| !is_forgotten(2));
        }
        self.host_memory = self.host_memory.filter(|_| !is_forgotten(3));
        self.numa_nodes = self.numa_nodes.filter(|_| !is_forgotten(15));
        self.longest_request = self.longest_request.filter(|_| !is_forgotten(4));
        self.model.checkpoint_bytes = self.model.checkpoint_bytes.filter(|_| !is_forgotten(5));
        self.model.dtype = self.model.dtype.filter(|_| !is_forgotten(6));
        let model = &mut self.model;
        let sizes = [
            &mut model.hidden_size,
            &mut model.layers,
            &mut model.attention_heads,
            &mut model.kv_heads,
            &mut model.head_dim,
            &mut model.intermediate_size,
            &mut model.vocab_size,
            &mut model.sliding_layers,
        ];
        for (bit, size) in (7..).zip(sizes) {
            *size = size.filter(|_| !is_forgotten(bit));
        }
        self
    }
}

fn case() -> impl Strategy<Value = Case> {
    let amounts = || prop::option::of(prop_oneof![Just(0), Just(u64::MAX), 0_u64..1 << 40]);
    let flags = prop::collection::vec(flag(), 0..8);
    let host = (amounts(), prop::option::of(1_u32..4));
    let parts = (shape(), prop::sample::select(&RELEASES[..]), device(), environment(), amounts(), host, flags);
    parts.prop_map(|(model, version, device, env, longest_request, (host_memory, numa_nodes), flags)| {
        let config = flags.into_iter().collect();
        Case { model, version, device, env, longest_request, host_memory, numa_nodes, config }
    })
}

/// Returns plain models with few flags, near the limits of defaults, in releases with two engines and later.
fn plausible_case() -> impl Strategy<Value = Case> {
    let numbers = [
        ("max-num-seqs", vec![64_i64, 300, 1500, 3000, 9000, 20_000]),
        ("max-num-batched-tokens", vec![128, 300, 512, 2048, 4096, 20_000]),
        ("block-size", vec![8, 16, 64]),
    ];
    let number = prop::sample::select(numbers.to_vec()).prop_flat_map(|(name, values)| {
        prop::sample::select(values).prop_map(move |value| (name.to_owned(), Value::from(value)))
    });
    let other = prop::sample::select(vec![
        ("enable-chunked-prefill", Value::from(true)),
        ("enable-prefix-caching", Value::from(true)),
        ("kv-cache-dtype", Value::from("fp8")),
    ]);
    let flag = prop_oneof![3 => number, 1 => other.prop_map(|(name, value)| (name.to_owned(), value))];
    let releases = prop::sample::select(&RELEASES[2..10]);
    let parts = (prop::sample::select(models()), releases, device(), prop::collection::vec(flag, 1..4));
    parts.prop_map(|(model, version, device, flags)| {
        let (env, config) = (BTreeMap::new(), flags.into_iter().collect());
        Case { model, version, device, env, longest_request: None, host_memory: None, numa_nodes: None, config }
    })
}

proptest! {
    #[test]
    fn checks_and_repairs_end_and_a_repair_is_accepted(case in case()) {
        for finding in check(&case.config, &case.facts()) {
            prop_assert!(!finding.message.is_empty());
        }
        if let Some(repaired) = repair(&case.config, &case.facts()) {
            prop_assert_eq!(rejection(&repaired, &case.facts()), None);
        }
    }

    #[test]
    fn nothing_is_refused_because_a_fact_is_unknown(case in case(), forgotten in any::<u16>()) {
        let known = case.rejections();
        let unknown = case.clone().forget(forgotten).rejections();
        prop_assert!(unknown.is_subset(&known), "{:?} is not among {:?}", unknown, known);
    }

    #[test]
    fn no_default_that_depends_on_an_unknown_device_refuses(case in plausible_case(), forgotten in any::<u16>()) {
        let known = case.rejections();
        let unknown = case.clone().forget(forgotten).rejections();
        prop_assert!(unknown.is_subset(&known), "{:?} is not among {:?}", unknown, known);
    }
}
