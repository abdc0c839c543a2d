"""Tuning problems with a known optimum: a space of launch parameters, limits on p99 latencies, crashes, noise.

Throughput, latencies and crashes are those of the simplified server in `server.py`. They are plausible and not measured.
"""

import math
from dataclasses import dataclass

import numpy as np

import space
from server import DEFAULTS, DEVICE_MEMORY, Load, Model, Server, settings_of

# Shapes of Llama 3.1 8B and 70B and of Qwen 2.5 14B.
MODEL_8B = Model(parameters=8.0e9, layers=32, hidden=4096, intermediate=14336, vocabulary=128256)
MODEL_14B = Model(parameters=14.8e9, layers=48, hidden=5120, intermediate=13824, vocabulary=152064)
MODEL_70B = Model(parameters=70.6e9, layers=80, hidden=8192, intermediate=28672, vocabulary=128256)

CONSTRAINTS = ["ttft_p99", "tpot_p99"]
FAILED = {"status": "failed", "values": None, "constraints": None, "error": "engine failed to start (out of memory or invalid arguments)"}


@dataclass(frozen=True, eq=False)
class Problem:
    """A model on `devices` GPUs under a load. `limits` of p99 TTFT and p99 TPOT are in seconds."""

    name: str
    model: Model
    devices: int
    load: Load
    max_model_len: int
    params: tuple
    limits: tuple

    def truth(self, settings):
        """Returns throughput, the two constraints as an array of rows, and crashes, all without noise."""
        server = Server(self.model, self.devices, self.load, self.max_model_len, settings)
        throughput, ttft, tpot, crashed = server.predict()
        return throughput, np.log(np.stack([ttft, tpot], axis=1) / self.limits), crashed

    def values(self, settings):
        """Returns the throughput of feasible configurations, and minus infinity for the others."""
        throughput, constraints, crashed = self.truth(settings)
        return np.where(~crashed & (constraints <= 0).all(axis=1), throughput, -np.inf)

    def evaluate(self, config, generator, noise, noise_p99):
        """Returns the result of a trial with noise, and the truth. Noise is the standard deviation of a logarithm."""
        throughput, constraints, crashed = (of[0] for of in self.truth(settings_of([config])))
        drawn = generator.standard_normal(1 + len(CONSTRAINTS))
        truth = {"true_value": float(throughput), "true_g": constraints.tolist(), "crash": bool(crashed)}
        if crashed:
            return FAILED, truth
        measured = (constraints + noise_p99 * drawn[1:]).tolist()
        result = {"status": "ok" if max(measured) <= 0 else "infeasible", "values": {"throughput": float(throughput) * math.exp(noise * drawn[0])},
                  "constraints": dict(zip(CONSTRAINTS, measured))}
        return result, truth

    def known_constraints(self):
        """The engine refuses configurations that break these. An optimizer may exclude them without a trial."""
        return [{"expr": "max_num_batched_tokens >= max_num_seqs"},
                {"when": {"param": "chunked_prefill", "in": [False]}, "expr": f"max_num_batched_tokens >= {self.max_model_len}"}]

    def space_message(self, budget, seed, parallel=1):
        """The first message of the protocol, without a context."""
        return {"type": "space", "protocol": 1, "problem": self.name, "params": list(self.params),
                "objectives": [{"name": "throughput", "direction": "maximize"}],
                "constraints": [{"name": name, "feasible": "<=0", "scale": "ln(measured/limit)"} for name in CONSTRAINTS],
                "known_constraints": self.known_constraints(), "budget": budget, "parallel": parallel, "seed": seed}

    def context(self):
        """The facts that a tuner knows of model, devices, load, limits and defaults. It contains no constant of the server."""
        model, load = self.model, self.load
        return {"model": {"parameters": model.parameters, "num_hidden_layers": model.layers, "hidden_size": model.hidden,
                          "intermediate_size": model.intermediate, "num_key_value_heads": model.kv_heads, "head_dim": model.head_dim,
                          "vocab_size": model.vocabulary, "dtype": "bfloat16", "max_model_len": self.max_model_len},
                "device": {"name": "h100-sxm", "count": self.devices, "memory_bytes": DEVICE_MEMORY},
                "load": {"input_tokens": load.input_tokens, "output_tokens": load.output_tokens, "shared_prefix_fraction": load.shared,
                         "shared_prefixes": load.prefixes, "concurrency": load.clients, "arrival": "closed"},
                "limits_s": dict(zip(CONSTRAINTS, self.limits)),
                "defaults": dict(DEFAULTS)}


BATCHING = (space.integer("max_num_seqs", 8, 1024), space.power_of_two("max_num_batched_tokens", 512, 32768),
            space.power_of_two("block_size", 8, 32), space.flag("chunked_prefill"))
MEMORY_SHARE = space.number("gpu_memory_utilization", 0.50, 0.98)
COMMON = (*BATCHING, space.flag("prefix_caching"), MEMORY_SHARE, space.number("scheduler_delay", 0.0, 2.0))
PARALLEL = space.power_of_two("tensor_parallel_size", 2, 8)
CACHE_TYPE = space.choice("kv_cache_dtype", ["auto", "fp8"])
SPECULATIVE = (
    *BATCHING, MEMORY_SHARE, space.choice("attn_backend", ["flash", "flashinfer", "triton"]), space.flag("enforce_eager"),
    space.choice("spec_method", ["none", "ngram", "draft"]),
    space.integer("num_spec_tokens", 1, 8, log=False, when={"param": "spec_method", "in": ["ngram", "draft"]}),
)

MAIN = [
    # Many clients with shared prefixes, moderate limits.
    Problem("chat8b", MODEL_8B, 1, Load(512, 256, 400, shared=0.25, prefixes=40), 4096, COMMON, (4.0, 0.050)),
    # Long prompts, most of them shared, on replicas of two to eight devices.
    Problem("rag70b_tp", MODEL_70B, 8, Load(3072, 256, 256, shared=0.6, prefixes=60), 8192, (PARALLEL, *COMMON, CACHE_TYPE), (6.0, 0.085)),
    # Long replies with conditional parameters of speculative decoding, and a tight limit on the time per token.
    Problem("decode_spec", MODEL_8B, 1, Load(256, 1024, 96), 4096, SPECULATIVE, (1.0, 0.013)),
]

# Other models, loads and limits, so that no design is chosen on three problems alone.
FURTHER = [
    Problem("chat14b", MODEL_14B, 1, Load(1024, 256, 200, shared=0.25, prefixes=40), 4096, COMMON, (4.0, 0.050)),
    Problem("rag8b", MODEL_8B, 1, Load(4096, 128, 64, shared=0.5, prefixes=20), 8192, COMMON, (6.0, 0.060)),
    Problem("long70b_tp", MODEL_70B, 8, Load(6000, 300, 128, shared=0.3, prefixes=30), 16384, (PARALLEL, *COMMON, CACHE_TYPE), (12.0, 0.080)),
    Problem("chat70b_tp", MODEL_70B, 8, Load(600, 400, 400), 4096, (PARALLEL, *COMMON), (3.0, 0.060)),
    Problem("short8b", MODEL_8B, 1, Load(800, 100, 128), 4096, COMMON, (1.5, 0.100)),
]

# name of a group -> name of a problem -> problem
GROUPS = {group: {problem.name: problem for problem in problems} for group, problems in (("main", MAIN), ("further", FURTHER))}
