"""FLOPs of matrix products, convolutions and attention, by the shapes of their arguments.

A multiply-add is two operations, as in `torch.utils.flop_counter`. Only the calls that do the work are known here: a
linear layer is the ``addmm`` inside of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from slackswap.models.traces.pytorch.shaped_calls import ShapedCall

Engine = Literal["gemm", "convolution", "attention", "attention backward"]
_RANK_OF_BATCH = 3


@dataclass(frozen=True, slots=True)
class Work:
    """What a call computes.

    Attributes
    ----------
    flops : all of them; under a causal mask too, half of which a kernel skips
    needed_flops : without those that a causal mask makes superfluous
    launches : kernels that it takes: a backward pass has one for each gradient
    """

    engine: Engine
    flops: int
    needed_flops: int
    launches: int = 1


def work_of(call: ShapedCall) -> Work | None:
    """Return the FLOPs of a call; None for a call that is not known to have any, or whose shapes are not recorded."""
    rule = _RULES.get(call.node.name)
    return rule(call) if rule else None


def _gemm(first: int) -> Callable[[ShapedCall], Work | None]:
    """Return the rule for a product of the arguments `first` and `first` + 1, matrices or batches of matrices."""

    def rule(call: ShapedCall) -> Work | None:
        a, b = call.shape(first), call.shape(first + 1)
        if len(a) < 1 or not b or a[-1] != b[-2 if len(b) > 1 else -1]:
            return None
        flops = 2 * math.prod(a) * (b[-1] if len(b) > 1 else 1)
        return Work("gemm", flops, flops)

    return rule


def _convolution(call: ShapedCall) -> Work | None:
    out = call.outputs
    flops = _convolution_flops(
        call.shape(0), call.shape(1), out[0].shape if out else (), transposed=call.argument(6) is True
    )
    return None if flops is None else Work("convolution", flops, flops)


def _convolution_backward(call: ShapedCall) -> Work | None:
    """Return the work of as many convolutions as there are gradients of tensors; each has the forward pass's FLOPs."""
    flops = _convolution_flops(call.shape(1), call.shape(2), call.shape(0), transposed=call.argument(7) is True)
    if flops is None:
        return None
    mask = call.argument(10)
    wanted = mask[:2] if isinstance(mask, list | tuple) else [result is not None for result in call.results[:2]]
    gradients = sum(map(bool, wanted))
    return Work("convolution", gradients * flops, gradients * flops, gradients) if gradients else None


def _convolution_flops(
    x: tuple[int, ...], weight: tuple[int, ...], out: tuple[int, ...], *, transposed: bool
) -> int | None:
    """Return 2 x weights x positions x batch; a weight is ``[out, in per group, ...]``, or transposed ``[in, ...]``."""
    if len(weight) < _RANK_OF_BATCH or len(x) < len(weight) or len(out) < len(weight):
        return None
    positions = x if transposed else out
    return 2 * x[0] * math.prod(weight) * math.prod(positions[2:])


def _attention(query: int, causal: int, *, by_head: bool = True) -> Callable[[ShapedCall], Work | None]:
    """Return the rule for fused attention: the index of the query, before key and value, and of the causal flag.

    Shapes are ``[batch, heads, sequence, width]`` if `by_head`, else ``[batch, sequence, heads, width]``. The FLOPs of
    a backward pass are those of its forward pass: the roofline knows their ratio.
    """

    def rule(call: ShapedCall) -> Work | None:
        q, k, v = (call.shape(query + i) for i in range(3))
        if not len(q) == len(k) == len(v) == 4:
            return None
        length = 2 if by_head else 1
        queries = math.prod(q[:-1])
        flops = 2 * queries * k[length] * (q[-1] + v[-1])
        needed = flops // 2 if call.argument(causal) is True else flops
        return Work("attention backward" if query else "attention", flops, needed)

    return rule


_RULES: Mapping[str, Callable[[ShapedCall], Work | None]] = MappingProxyType(
    {
        "aten::mm": _gemm(0),
        "aten::bmm": _gemm(0),
        "aten::mv": _gemm(0),
        "aten::dot": _gemm(0),
        "aten::addmm": _gemm(1),
        "aten::addmm_": _gemm(1),
        "aten::addmv": _gemm(1),
        "aten::_addmm_activation": _gemm(1),
        "aten::baddbmm": _gemm(1),
        "aten::baddbmm_": _gemm(1),
        "aten::convolution": _convolution,
        "aten::convolution_overrideable": _convolution,
        "aten::convolution_backward": _convolution_backward,
        "aten::_scaled_dot_product_flash_attention": _attention(0, 4),
        "aten::_scaled_dot_product_flash_attention_for_cpu": _attention(0, 4),
        "aten::_scaled_dot_product_efficient_attention": _attention(0, 6),
        "aten::_scaled_dot_product_cudnn_attention": _attention(0, 6),
        "aten::_flash_attention_forward": _attention(0, 8, by_head=False),
        "aten::_scaled_dot_product_flash_attention_backward": _attention(1, 11),
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention(1, 7),
        "aten::_scaled_dot_product_efficient_attention_backward": _attention(1, 11),
        "aten::_scaled_dot_product_cudnn_attention_backward": _attention(1, 14),
        "aten::_flash_attention_backward": _attention(1, 11, by_head=False),
    }
)
