"""What a workload's metadata declares: its parameters, how it was simplified and what it leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from slackswap.models.workloads.workload import Parameters

ROOFLINE = "an operator's time is its FLOPs or bytes over a sustained share of the peak, plus 5 us or so per launch"
WORKSPACE = "unsaved forward outputs and gradients are workspace of the operators that write or read them"
TRANSFORMER_LEFT_OUT = (
    "the gradient of the embedding table",
    "norm statistics (8 bytes per token and norm) and token ids",
    "parameters, their gradients and the optimizer, which stay on the GPU outside the budget",
)


def metadata(
    parameters: Parameters, dtype: str, *, heuristics: Sequence[str] = (), left_out: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the metadata of a workload's problem: `model`, `heuristics` and `left_out`."""
    return {
        "model": {**asdict(parameters), "dtype": dtype},
        "heuristics": [ROOFLINE, WORKSPACE, *heuristics],
        "left_out": list(left_out),
    }
