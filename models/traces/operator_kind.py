"""Names of PyTorch operators: what kind of work they are, and how they are shown."""

from __future__ import annotations

import re

from slackswap.models.traces.execution_trace import EVALUATE_FUNCTION

# The first pattern that occurs in a name decides; names are compared without `aten::` and in lower case.
_KINDS = (
    ("attention", r"attention|sdpa"),
    ("convolution", r"conv(?!ert)"),
    ("norm", r"(batch|layer|group|instance|rms)_?norm"),
    ("dropout", r"dropout|bernoulli"),
    ("embedding", r"embedding"),
    ("loss", r"loss|cross_entropy"),
    ("gemm", r"linear|matmul|einsum|(^|_)(add|badd|b|add_b)?mm(_|$|backward)"),
    ("copy", r"^(to|_to_copy|copy_?|clone|contiguous|cat|stack)(\.|$|backward)|^(cat|clone|copy|to_?copy)"),
    (
        "elementwise",
        r"^_?(add|sub|rsub|mul|div|neg|pow|exp|log|sqrt|rsqrt|tanh|sigmoid|relu|gelu|silu|elu|hardtanh|leaky_?relu|clamp|where"
        r"|masked_?fill|threshold|abs|fill|zero|ones_?like|zeros_?like)(_|\.|$|backward)",
    ),
)
_COMPILED = tuple((kind, re.compile(pattern)) for kind, pattern in _KINDS)
_RANDOM = re.compile(r"dropout|bernoulli|multinomial|::(rand|normal|uniform|exponential)")
_COLLECTIVE = re.compile(r"nccl|rccl|c10d|record_param_comms|gloo")


def shown_name(name: str) -> str:
    """Return an operator's name without the prefix that says who called it."""
    return name.removeprefix(EVALUATE_FUNCTION).removeprefix("torch::autograd::").removeprefix("aten::")


def operator_kind(name: str) -> str:
    """Return the kind of the problem format that a forward or backward operator belongs to."""
    lowered = shown_name(name).lower()
    return next((kind for kind, pattern in _COMPILED if pattern.search(lowered)), "other")


def is_random(name: str) -> bool:
    """Whether a call draws random numbers."""
    return bool(_RANDOM.search(name))


def is_collective(name: str) -> bool:
    """Whether a call communicates with other processes."""
    return bool(_COLLECTIVE.search(name))
