"""The rows of a comparison: each is one optimizer, with the facts that it receives of a problem."""

import copy
from dataclasses import dataclass

from peers import PEERS as PEER_KINDS
from program import Program

# Shapes of two published models with 8 and 70 thousand million weights (Llama 3.1). The wrong model is the one whose
# size is further from that of the problem's model.
SMALL = {"parameters": 8.0e9, "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336}
LARGE = {"parameters": 70.6e9, "num_hidden_layers": 80, "hidden_size": 8192, "intermediate_size": 28672}


def of_another_model(context):
    """A model of another size."""
    context["model"].update(LARGE if context["model"]["parameters"] < 30e9 else SMALL)


def of_another_load(context):
    """Prompts as long as the replies and the other way round, an eighth of the clients, prefixes if there are none."""
    load = context["load"]
    load["input_tokens"], load["output_tokens"] = load["output_tokens"], load["input_tokens"]
    load["concurrency"] = max(1, load["concurrency"] // 8)
    shared = load["shared_prefix_fraction"] > 0
    load["shared_prefix_fraction"], load["shared_prefixes"] = (0.0, 0) if shared else (0.8, 16)


def of_another_device(context):
    """An L4: about a tenth of an H100's memory bandwidth and of its compute, and 24 GB."""
    context["device"].update(name="l4", memory_bytes=24e9)


WRONG = {"model": of_another_model, "load": of_another_load, "device": of_another_device}


@dataclass(frozen=True)
class Row:
    """`peer` names an optimizer of `peers.py`; None is the program under test."""

    label: str
    peer: str | None = None
    context: bool = False
    wrong: str | None = None
    parallel: int = 1

    def space(self, problem, trials, seed):
        """The first message of a run."""
        message = problem.space_message(trials, seed, self.parallel)
        if self.context:
            # A copy, because the problem's own context is used for other rows.
            message["context"] = copy.deepcopy(problem.context())
            if self.wrong:
                WRONG[self.wrong](message["context"])
        return message

    def start(self, command, space):
        return PEER_KINDS[self.peer](space) if self.peer else Program(command, space)


OWN, CONTEXT, PARALLEL = "setpoint", "setpoint_context", "setpoint_parallel4"
RANDOM, TPE, GP = "random", "optuna_tpe_known", "optuna_gp_known"
PEERS = (RANDOM, TPE, GP)
WRONG_ROWS = tuple(f"setpoint_wrong_{kind}" for kind in WRONG)

ROWS = {
    row.label: row
    for row in [
        *(Row(name, peer=name) for name in PEERS),
        Row(OWN),
        Row(CONTEXT, context=True),
        *(Row(label, context=True, wrong=kind) for label, kind in zip(WRONG_ROWS, WRONG)),
        Row(PARALLEL, parallel=4),
    ]
}
# The replayed tables come without prior knowledge, so the peers receive none.
TABLE_PEERS = (RANDOM, "optuna_tpe", "optuna_gp")
TABLE_ROWS = {row.label: row for row in [*(Row(name, peer=name) for name in TABLE_PEERS), Row(OWN)]}
