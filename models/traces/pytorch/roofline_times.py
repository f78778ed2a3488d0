"""Operator times from the roofline of a GPU, for traces that have shapes but no times (of this GPU).

A call that multiplies matrices takes as long as its FLOPs or its memory traffic, whichever is longer; any other call
reads its tensors once and writes its results once. Views and allocations take no time. Of a call that makes other calls,
the longer counts: all of its own traffic, or what it calls.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from slackswap.hardware import Gpu, Hardware, roofline
from slackswap.models.traces.pytorch.call_flops import Work, work_of
from slackswap.models.traces.pytorch.execution_trace import Iteration
from slackswap.models.traces.pytorch.operator_times import OperatorTimes
from slackswap.models.traces.pytorch.shaped_calls import ShapedCall, ShapedTensor
from slackswap.models.traces.storage_lifetimes import changes_inputs

_KERNELS = "aten::"
# Allocate or describe; what else these do is in the calls that they make.
_FREE = frozenset(
    f"aten::{name}"
    for name in (
        *("detach", "detach_", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"),
        *("record_stream", "requires_grad_", "resize_", "set_", "as_strided_", "item", "is_nonzero"),
    )
)
# Overwrite their first argument without reading it.
_OVERWRITE = frozenset(
    f"aten::{name}"
    for name in (
        *("bernoulli_", "copy_", "exponential_", "fill_", "log_normal_", "normal_", "random_", "uniform_", "zero_"),
        *(
            "full_like",
            "ones_like",
            "rand_like",
            "randn_like",
            "zeros_like",
            "nll_loss_backward",
            "nll_loss2d_backward",
        ),
    )
)
# Read of their first argument no more than they return: rows of a table, one entry per row.
_GATHER = frozenset(
    f"aten::{name}"
    for name in ("embedding", "index_select", "index", "gather", "nll_loss_forward", "nll_loss2d_forward", "nll_loss")
)
# What a tensor's element type is computed in, best first. PyTorch's defaults: TF32 in convolutions, not in products.
_COMPUTED_IN: Mapping[str, tuple[str, ...]] = {
    "bf16": ("bf16", "fp16", "tf32", "fp32"),
    "fp16": ("fp16", "bf16", "tf32", "fp32"),
    "fp32": ("fp32", "tf32", "fp16", "bf16"),
}
_CONVOLVED_IN = {**_COMPUTED_IN, "fp32": ("tf32", "fp32", "fp16", "bf16")}


def roofline_operator_times(calls: Sequence[ShapedCall], iteration: Iteration, hardware: Hardware) -> OperatorTimes:
    """Time an iteration's operators by the roofline of a GPU.

    Parameters
    ----------
    calls : with shapes; at least those inside of the iteration's operators
    iteration : as `cut_iteration` finds it
    hardware : its GPU's peaks, bandwidth and launch time count

    Returns
    -------
    OperatorTimes
        Seconds; no operator communicates.
    """
    seconds = _call_s(calls, hardware.gpu)
    durations = tuple(seconds.get(root.node.id, 0.0) for root in iteration.operators)
    return OperatorTimes(durations, frozenset(), _heuristics(calls, hardware.gpu))


def flops_by_operator(
    calls: Sequence[ShapedCall], iteration: Iteration, *, skip_masked: bool = True
) -> tuple[float, ...]:
    """Add up the FLOPs of each operator, those of calls inside of calls that count not twice.

    Parameters
    ----------
    skip_masked : whether what a causal mask makes superfluous is left out; `torch.utils.flop_counter` counts it
    """
    counted: set[int] = set()
    flops: defaultdict[int, float] = defaultdict(float)
    for call in calls:
        if call.node.parent in counted:
            counted.add(call.node.id)
            continue
        work = work_of(call)
        if work is None:
            continue
        counted.add(call.node.id)
        ratio = roofline.ATTENTION_BACKWARD_PER_FORWARD_FLOPS if work.engine == "attention backward" else 1
        operator = iteration.operator_of.get(call.node.id)
        if operator is not None:
            flops[operator] += ratio * (work.needed_flops if skip_masked else work.flops)
    return tuple(flops[i] for i in range(len(iteration.operators)))


def _call_s(calls: Sequence[ShapedCall], gpu: Gpu) -> dict[int, float]:
    """Return the seconds of each call, by id; ids are pre-order, so what lies inside of a call comes after it."""
    inside_s: defaultdict[int, float] = defaultdict(float)
    total_s: dict[int, float] = {}
    for call in sorted(calls, key=lambda call: call.node.id, reverse=True):
        work = work_of(call)
        if work is None:
            total = max(_memory_s(call, gpu), inside_s[call.node.id])
        else:
            total = max(_work_s(work, _dtype(call), gpu), _memory_s(call, gpu, work.launches))
        total_s[call.node.id] = total
        inside_s[call.node.parent] += total
    return total_s


def _work_s(work: Work, dtype: str, gpu: Gpu) -> float:
    if work.engine == "convolution":
        return roofline.convolution_s(
            gpu, work.needed_flops, _computed_in(gpu, dtype, _CONVOLVED_IN), launches=work.launches
        )
    computed_in = _computed_in(gpu, dtype, _COMPUTED_IN)
    if work.engine == "attention":
        return roofline.attention_forward_s(gpu, work.needed_flops, computed_in)
    if work.engine == "attention backward":
        return roofline.attention_backward_s(gpu, work.needed_flops, computed_in)
    return roofline.gemm_s(gpu, work.needed_flops, computed_in, launches=work.launches)


def _memory_s(call: ShapedCall, gpu: Gpu, launches: int = 1) -> float:
    moved_bytes = moved_by(call)
    return roofline.memory_bound_s(gpu, moved_bytes, launches=launches) if moved_bytes is not None else 0.0


def moved_by(call: ShapedCall) -> int | None:
    """Return the bytes that a call's kernel reads and writes; None if it is a view, an allocation or no kernel at all."""
    name = call.node.name
    if not name.startswith(_KERNELS) or name in _FREE or call.node.is_annotation:
        return None
    read, written = _by_storage(call.inputs), _by_storage(call.outputs)
    if not written or (written.keys() <= read.keys() and not changes_inputs(call.node)):
        return None
    first = next((argument.storage for argument in call.arguments if isinstance(argument, ShapedTensor)), None)
    if first is not None and name in _OVERWRITE:
        read.pop(first, None)
    if name in ("aten::nll_loss_backward", "aten::nll_loss2d_backward"):
        read.clear()  # the log-probabilities are not looked at, only where the targets point
    if first is not None and name in _GATHER:
        read[first] = min(read.get(first, 0), sum(written.values()))
    return sum(read.values()) + sum(written.values())


def _by_storage(tensors: Sequence[ShapedTensor]) -> dict[int, int]:
    """Return the bytes of each storage: what two arguments show is read once."""
    found: dict[int, int] = {}
    for tensor in tensors:
        found[tensor.storage] = max(found.get(tensor.storage, 0), tensor.bytes)
    return found


def _dtype(call: ShapedCall) -> str:
    return next((tensor.dtype for tensor in call.inputs if tensor.dtype), "")


def _computed_in(gpu: Gpu, dtype: str, order: Mapping[str, tuple[str, ...]]) -> str:
    """Return the first dtype that the GPU has for elements of `dtype`; where none fits, what one would train in."""
    return next((name for name in order.get(dtype, ()) if name in gpu.peak_flops_per_s), gpu.training_dtype)


def _heuristics(calls: Sequence[ShapedCall], gpu: Gpu) -> tuple[str, ...]:
    said = [
        f"Times are the roofline of the {gpu.name}, not measured: FLOPs by shape at the sustained share of the peak of the"
        " tensors' type (FP32: TF32 in convolutions only, as PyTorch's defaults are), or bytes read and written at the"
        " sustained bandwidth, whichever takes longer, and a launch; views and allocations take none.",
        "Attention under a causal mask counts half of its FLOPs; kernels that a compiler would fuse count one by one.",
    ]
    dtypes = {_dtype(call) for call in calls if work_of(call) is not None} - {""}
    strange = sorted(dtype for dtype in dtypes if dtype not in gpu.peak_flops_per_s)
    if strange:
        shown = ", ".join(f"{dtype} at that of {_computed_in(gpu, dtype, _COMPUTED_IN)}" for dtype in strange)
        said.append(f"The {gpu.name} has no peak of some tensors' types: {shown}.")
    return tuple(said)
