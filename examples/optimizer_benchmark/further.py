"""Further problems of the harness's kind: other models, loads and limits, so that no design is chosen on a few problems alone."""

import importlib


def problems():
    """name -> problem"""
    of = importlib.import_module("problems")
    base, tensor_parallel = of.BASE, of.P_int("tp", 2, 8, grid="pow2")
    cache = of.P_cat("kv_cache_dtype", ["auto", "fp8"])

    def problem(name, model, devices, tokens, prefixes, clients, longest, params, limits):
        """`tokens` of prompt and reply, `prefixes` as (share of the prompt, how many), `limits` of p99 TTFT and TPOT in seconds."""
        return of.Problem(name, model, devices, *tokens, *prefixes, clients, longest, params, dict(zip(("ttft", "tpot"), limits)))

    all_of_them = [
        problem("chat14b", "14b", 1, (1024, 256), (0.25, 40), 200, 4096, base, (4.0, 0.050)),
        problem("rag8b", "8b", 1, (4096, 128), (0.5, 20), 64, 8192, base, (6.0, 0.060)),
        problem("long70b_tp", "70b", 8, (6000, 300), (0.3, 30), 128, 16384, [tensor_parallel, *base, cache], (12.0, 0.080)),
        problem("chat70b_tp", "70b", 8, (600, 400), (0.0, 0), 400, 4096, [tensor_parallel, *base], (3.0, 0.060)),
        problem("short8b", "8b", 1, (800, 100), (0.0, 0), 128, 4096, base, (1.5, 0.100)),
    ]
    return {one.name: one for one in all_of_them}
