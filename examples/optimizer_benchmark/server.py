"""A simplified inference server: throughput and p99 latencies of a configuration, or a crash.

The formulas have the form of those of real servers: device memory that is divided into weights, activations and cache, a
roofline of memory bandwidth and compute, and batches in a steady state. The constants are plausible for a GPU of the
class of an H100. **They are not measured**: a result on this model is a result about optimizers, not about an engine.

Every function computes all configurations at once. An array has one element for each configuration. Times are in seconds,
sizes in bytes, lengths in tokens, rates in tokens per second.
"""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

# Values of the parameters that a configuration does not set.
DEFAULTS = {
    "tensor_parallel_size": 1, "gpu_memory_utilization": 0.90, "max_num_seqs": 256, "max_num_batched_tokens": 8192, "block_size": 16,
    "chunked_prefill": True, "prefix_caching": False, "scheduler_delay": 0.0, "kv_cache_dtype": "auto", "attn_backend": "flash",
    "enforce_eager": False, "spec_method": "none", "num_spec_tokens": 0,
}

DEVICE_MEMORY = 80e9
# Operations and bytes per second: the data sheet's times the share that kernels reach.
COMPUTE, BANDWIDTH = 989e12 * 0.55, 3.35e12 * 0.80
# Bytes per second between two devices, and seconds to begin a message.
LINK, LINK_LATENCY = 300e9, 9e-6

WEIGHT_BYTES = 2
# The draft model's size as a share of the model's.
DRAFT_SHARE = 0.09
# Probability that a drafted token is accepted.
ACCEPTED = {"none": 0.0, "ngram": 0.42, "draft": 0.72}
# Quantile of the normal distribution behind p99.
P99 = 2.33


@dataclass(frozen=True)
class Model:
    """A dense transformer with grouped-query attention."""

    parameters: float
    layers: int
    hidden: int
    intermediate: int
    vocabulary: int
    kv_heads: int = 8
    head_dim: int = 128

    @property
    def kv_bytes(self):
        """Keys and values of one token in 16 bits."""
        return 2 * self.layers * self.kv_heads * self.head_dim * 2


@dataclass(frozen=True)
class Load:
    """Clients in a closed loop. `shared` is the share of a prompt that is one of `prefixes` common prefixes."""

    input_tokens: int
    output_tokens: int
    clients: int
    shared: float = 0.0
    prefixes: int = 0


def settings_of(configs):
    """Converts configurations to one array per parameter, with defaults for the parameters that they lack."""
    def column(name, default):
        return np.array([config.get(name, default) for config in configs], dtype=dtype_of(default))

    return SimpleNamespace(**{name: column(name, default) for name, default in DEFAULTS.items()})


def dtype_of(default):
    return np.str_ if isinstance(default, str) else bool if isinstance(default, bool) else float


def smooth_maximum(a, b, power=4.0):
    """A maximum without a corner: the longer of two overlapping times, and more if they are alike."""
    return (a**power + b**power) ** (1 / power)


class Server:
    """`devices` GPUs, split into replicas of `tensor_parallel_size` each, in every configuration of `settings`."""

    def __init__(self, model, devices, load, max_model_len, settings):
        self.model, self.load, self.max_model_len, self.settings = model, load, max_model_len, settings
        self.parallel = settings.tensor_parallel_size
        self.replicas = devices / self.parallel
        # Of one replica.
        self.clients = load.clients / self.replicas
        self.fp8 = settings.kv_cache_dtype == "fp8"
        self.kv_bytes = model.kv_bytes * np.where(self.fp8, 0.5, 1.0)
        self.context = load.input_tokens + 0.5 * load.output_tokens + settings.block_size / 2
        self.drafts = np.where(settings.spec_method == "none", 0, settings.num_spec_tokens)
        self.tokens_per_step = self.accepted_tokens()
        self.cache_tokens, self.crashed = self.memory()
        self.prompt_tokens, self.cached_tokens = self.prefix_cache()
        self.batch, self.excess = self.steady_batch()

    def predict(self):
        """Returns throughput, p99 TTFT, p99 TPOT and whether the engine fails to start."""
        pairs = zip(self.chunked(), self.unchunked())
        throughput, ttft, tpot = (np.where(self.settings.chunked_prefill, a, b) for a, b in pairs)
        return throughput * self.replicas, ttft, tpot, self.crashed

    def accepted_tokens(self):
        """Tokens of one sequence per step: the model's own and the accepted drafts before the first rejected one."""
        probability = np.select([self.settings.spec_method == name for name in ACCEPTED], ACCEPTED.values())
        return (1 - probability ** (self.drafts + 1)) / (1 - probability)

    # Memory

    def memory(self):
        """Returns the tokens that the cache holds, and whether the engine fails to start."""
        settings, model, parallel = self.settings, self.model, self.parallel
        draft = np.where(settings.spec_method == "draft", DRAFT_SHARE, 0.0)
        weights = model.parameters * WEIGHT_BYTES * (1 + draft) / parallel
        activations = settings.max_num_batched_tokens * (model.hidden * 12 + model.intermediate * 4 / parallel)
        logits = settings.max_num_seqs * (1 + self.drafts) * model.vocabulary * 8 / np.sqrt(parallel)
        granted = DEVICE_MEMORY * settings.gpu_memory_utilization
        cache = granted - weights - activations - logits - 0.4e9
        tokens = cache / (self.kv_bytes / parallel)
        crashed = ((tokens < self.max_model_len) | (granted + self.memory_outside(activations) > DEVICE_MEMORY)
                   | (settings.max_num_batched_tokens < settings.max_num_seqs)
                   | (~settings.chunked_prefill & (settings.max_num_batched_tokens < self.max_model_len)))
        return np.maximum(tokens, self.max_model_len), crashed

    def memory_outside(self, activations):
        """Memory beyond the granted share: the driver, buffers between devices, CUDA graphs, fragments."""
        graphs = 0.25e9 + np.minimum(self.settings.max_num_seqs, 512) * self.model.layers * self.model.hidden * 10 / self.parallel
        buffers = np.where(self.parallel > 1, 0.6e9 + 0.12e9 * self.parallel, 0.0)
        return 0.7e9 + buffers + np.where(self.settings.enforce_eager, 0.0, graphs) + 0.18 * activations

    def prefix_cache(self):
        """Returns the tokens of a prompt that are computed, and the cache's tokens that one sequence occupies.

        Prefixes stay in the cache as far as running sequences leave room for them.
        """
        settings, load = self.settings, self.load
        prefix = load.shared * load.input_tokens
        own = load.input_tokens - prefix + 0.5 * load.output_tokens + settings.block_size / 2
        room = self.cache_tokens - np.minimum(settings.max_num_seqs, self.clients) * own
        kept = np.clip(room / np.maximum(load.prefixes * prefix / np.sqrt(self.replicas), 1.0), 0.0, 1.0)
        # Only whole blocks are shared.
        whole_blocks = np.clip(1 - 0.5 * settings.block_size / max(prefix, 1.0), 0.0, 1.0)
        hits = np.where(settings.prefix_caching, load.shared * kept**0.7 * whole_blocks, 0.0)
        occupied = np.where(settings.prefix_caching, own + (load.shared - hits) * load.input_tokens, self.context)
        return np.maximum(load.input_tokens * (1 - hits), 16.0), np.maximum(occupied, 32.0)

    def steady_batch(self):
        """Returns the running sequences, and the share by which demand exceeds the cache, which causes preemptions."""
        wanted = np.minimum(self.settings.max_num_seqs, self.clients)
        demand = wanted * (self.cached_tokens + 0.2 * self.load.output_tokens)
        return np.minimum(wanted, self.cache_tokens / self.cached_tokens), np.clip(demand / self.cache_tokens - 1, 0.0, 1.5)

    # Time of a step

    def step_time(self, sequences, prefill):
        """Duration of a step with this number of decoding sequences and of prompt tokens."""
        tokens = sequences * (1 + self.drafts) + prefill
        transfer = self.transfer_time(sequences)
        # Few tokens make matrices of shapes that use the device badly.
        compute = self.compute_time(sequences, prefill) * (1 + 0.25 * np.exp(-tokens / 384.0))
        return (smooth_maximum(transfer, compute) + self.communication_time(tokens) + self.host_time(sequences, prefill)
                + self.drafting_time(sequences, transfer))

    def transfer_time(self, sequences):
        """Reads of the weights and of the cache."""
        weights = self.model.parameters * WEIGHT_BYTES / self.parallel / BANDWIDTH
        cache = sequences * self.context * self.kv_bytes / self.parallel / BANDWIDTH
        return weights + cache * self.decode_factor()

    def compute_time(self, sequences, prefill):
        model, decoded = self.model, sequences * (1 + self.drafts)
        computed = prefill * self.prefill_factor()
        attention = 2 * model.layers * model.hidden * computed * self.load.input_tokens
        return (2 * model.parameters * (decoded + computed) + attention) / (self.parallel * COMPUTE)

    def decode_factor(self):
        """Cost of reading the cache, by block size, kernels and data type."""
        settings = self.settings
        is_flash, block = settings.attn_backend == "flash", settings.block_size
        of_block = np.select([block <= 8, block <= 16, block <= 32], [1.14, 1.0, np.where(is_flash, 1.02, 0.95)], 1.0)
        of_kernels = np.select([is_flash, settings.attn_backend == "flashinfer"],
                               [np.where(self.fp8, 1.30, 1.0), np.where(self.fp8, 0.95, 0.93)], 1.15)
        return of_block * of_kernels

    def prefill_factor(self):
        """Cost of computing prompt tokens, by kernels."""
        return np.select([self.settings.attn_backend == name for name in ("flash", "flashinfer")], [1.0, 1.06], 1.10)

    def communication_time(self, tokens):
        """Two reductions over the replica's devices per layer."""
        begin = LINK_LATENCY * (1 + 0.5 * np.log2(self.parallel))
        sent = tokens * self.model.hidden * 2 * 2 * (self.parallel - 1) / self.parallel / LINK
        return np.where(self.parallel > 1, 2 * self.model.layers * (begin + sent), 0.0)

    def host_time(self, sequences, prefill):
        """Scheduling, block tables, and launches of kernels without CUDA graphs."""
        settings, block = self.settings, self.settings.block_size
        return (1.1e-3 + 9e-6 * sequences + 1.2e-8 * sequences * self.context / block
                + np.where(settings.enforce_eager, 45e-6 * self.model.layers, 0.0)
                + np.where(settings.prefix_caching, 0.10e-3 + 1.2e-6 * sequences * 16 / block, 0.0)
                + np.where(settings.chunked_prefill & (prefill > 0), 0.12e-3, 0.0))

    def drafting_time(self, sequences, transfer):
        by_model = self.drafts * (DRAFT_SHARE * transfer + 0.25e-3)
        by_ngram = 0.08e-3 * self.drafts + 2e-6 * sequences * self.drafts
        method = self.settings.spec_method
        return np.where(method == "draft", by_model, np.where(method == "ngram", by_ngram, 0.0))

    # Metrics of a replica

    def chunked(self):
        """Throughput, p99 TTFT and p99 TPOT with chunked prefill: every step decodes and computes a part of prompts."""
        settings, delay = self.settings, self.settings.scheduler_delay
        budget = np.maximum(settings.max_num_batched_tokens - self.batch * (1 + self.drafts), 32.0)
        batch = self.batch * np.minimum(1.0, budget / self.prefill_per_step(self.batch))
        prefill = self.prefill_per_step(batch)
        busy = np.minimum(budget, prefill + P99 * np.sqrt(prefill * self.prompt_tokens * 1.5))
        step, busy_step = self.step_time(batch, prefill), self.step_time(batch, busy)
        delay_gain = 1 + 0.012 * np.tanh(3 * delay) - 0.010 * delay
        throughput = batch * self.tokens_per_step / step / self.preemption_cost() * delay_gain
        tpot = self.token_time(0.30 * step + 0.70 * busy_step)
        # A long prompt needs several steps.
        steps = np.maximum(2.0 * self.prompt_tokens / budget, 1.0)
        ttft = steps * busy_step * (1 + 0.6 * delay) + self.queueing(batch, throughput) + step
        return throughput, ttft, tpot

    def unchunked(self):
        """The same without chunked prefill: decoding waits during steps that compute whole prompts."""
        delay = self.settings.scheduler_delay
        prompts = np.minimum(self.settings.max_num_batched_tokens, self.prompt_tokens * (1 + 1.2 * delay + self.batch / 96.0))
        prefill_step, decode_step = self.step_time(0.0, prompts), self.step_time(self.batch, 0.0)
        stall = self.prefill_per_step(self.batch) * prefill_step / prompts
        throughput = self.batch * self.tokens_per_step / (decode_step + stall) / self.preemption_cost() * 1.02 * (1 - 0.012 * delay)
        interruption = prefill_step * 1.1 / self.load.output_tokens * (1 + 2.0 / (1 + 2 * delay))
        tpot = self.token_time(decode_step + 1.5 * stall) + interruption
        ttft = prefill_step * (1.3 + 0.8 * delay) + self.queueing(self.batch, throughput) + decode_step
        return throughput, ttft, tpot

    def prefill_per_step(self, batch):
        """Prompt tokens that each step must compute, so that new sequences replace the finished ones."""
        return batch * self.tokens_per_step / self.load.output_tokens * self.prompt_tokens

    def preemption_cost(self):
        """Work per useful token: preempted sequences are computed again."""
        return 1 + 0.22 * self.excess

    def token_time(self, step):
        """p99 of the time per token, from a step's duration."""
        return step / np.maximum(self.tokens_per_step * 0.9, 1.0) * (1 + 0.45 * self.excess)

    def queueing(self, batch, throughput):
        """p99 of the wait of clients that are not in the batch."""
        finished = throughput / self.load.output_tokens
        return 0.375 * np.maximum(self.clients - batch, 0) / np.maximum(finished, 1e-9)
