"""Writes down an iteration operator by operator, each timed by the roofline of one GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slackswap.hardware import roofline
from slackswap.hardware.catalog import Hardware
from slackswap.hardware.gpu import DTYPE_BYTES
from slackswap.models.problem import Operator, Problem, Rebuild, Tensor


class IterationRecorder:
    """Operators in execution order and the tensors that they save; `problem` turns them into a `Problem`.

    Every operator is a layer of its own, the finest reading of vDNN's per-layer barriers, unless `join_layer` says
    otherwise. The methods that record an operator return its duration in seconds, which is what rebuilding its output
    costs.

    Parameters
    ----------
    hardware : Hardware
    dtype : str
        What tensors are stored in and matrix products are computed in: a key of `DTYPE_BYTES` that the GPU has.

    Attributes
    ----------
    element_bytes : int
        Bytes of one element of `dtype`.
    forward_flops : float
        FLOPs of the matrix products, convolutions and attention of the forward pass so far: the paper's F (Eq. 1).
    """

    def __init__(self, hardware: Hardware, dtype: str) -> None:
        self._hardware = hardware
        self._gpu = hardware.gpu
        self._dtype = dtype
        self._operators: list[Operator] = []
        self._tensors: list[Tensor] = []
        self._readers: list[list[int]] = []
        self._phase = "forward"
        self._joins = False
        self.element_bytes = DTYPE_BYTES[dtype]
        self.forward_flops = 0.0

    def gemm(self, name: str, flops: int, *, reads: Sequence[int] = (), workspace_bytes: int = 0) -> float:
        """Record a matrix product of `flops`."""
        self._count(flops)
        seconds = roofline.gemm_s(self._gpu, flops, self._dtype)
        return self._record(name, "gemm", seconds, reads, workspace_bytes)

    def gemm_backward(self, name: str, flops: int, *, reads: Sequence[int] = (), workspace_bytes: int = 0) -> float:
        """Record the backward pass of a matrix product of `flops`: one product per gradient, two in all."""
        seconds = roofline.gemm_s(self._gpu, 2 * flops, self._dtype, launches=2)
        return self._record(name, "gemm", seconds, reads, workspace_bytes)

    def attention(self, name: str, flops: int, *, reads: Sequence[int]) -> float:
        """Record a fused attention forward pass of `flops`."""
        self._count(flops)
        seconds = roofline.attention_forward_s(self._gpu, flops, self._dtype)
        return self._record(name, "attention", seconds, reads, 0)

    def attention_backward(self, name: str, flops: int, *, reads: Sequence[int], workspace_bytes: int) -> float:
        """Record the backward pass of a fused attention whose forward pass takes `flops`."""
        seconds = roofline.attention_backward_s(self._gpu, flops, self._dtype)
        return self._record(name, "attention", seconds, reads, workspace_bytes)

    def convolution(self, name: str, flops: int, *, rectified_bytes: int, reads: Sequence[int]) -> float:
        """Record a convolution of `flops` and the ReLU kernel that rewrites its output, `rectified_bytes`, in place."""
        self._count(flops)
        seconds = roofline.convolution_s(self._gpu, flops, self._dtype)
        seconds += roofline.memory_bound_s(self._gpu, 2 * rectified_bytes)
        return self._record(name, "convolution", seconds, reads, 0)

    def convolution_backward(
        self, name: str, flops: int, *, gradients: int, reads: Sequence[int], workspace_bytes: int
    ) -> float:
        """Record `gradients` convolutions of `flops` each: of the weights, and of the input where one is needed."""
        seconds = roofline.convolution_s(self._gpu, gradients * flops, self._dtype, launches=gradients)
        return self._record(name, "convolution", seconds, reads, workspace_bytes)

    def memory_bound(
        self, name: str, kind: str, moved_bytes: int, *, reads: Sequence[int] = (), workspace_bytes: int = 0
    ) -> float:
        """Record a kernel that reads and writes `moved_bytes`."""
        return self._record(name, kind, roofline.memory_bound_s(self._gpu, moved_bytes), reads, workspace_bytes)

    def given(self, name: str) -> None:
        """Record an operator of no duration: what it writes is there when the iteration starts."""
        self._record(name, "copy", 0.0, (), 0)

    def join_layer(self) -> None:
        """Put the next operator into the layer of the latest one: no barrier stands between them."""
        self._joins = True

    def start_backward(self) -> None:
        """Every operator from here on belongs to the backward pass."""
        self._phase = "backward"

    def saved(self, name: str, size_bytes: int, *, block: int | None = None, rebuild: Rebuild | None = None) -> int:
        """Add a tensor that the latest operator writes; return its index."""
        producer = len(self._operators) - 1
        self._tensors.append(Tensor(name, size_bytes, producer, (), block, rebuild))
        self._readers.append([])
        return len(self._tensors) - 1

    def memory_bound_s(self, moved_bytes: int) -> float:
        """Return the seconds of a memory-bound kernel without recording it: part of a rebuild."""
        return roofline.memory_bound_s(self._gpu, moved_bytes)

    def gemm_s(self, flops: int) -> float:
        """Return the seconds of a matrix product without recording it: part of a rebuild."""
        return roofline.gemm_s(self._gpu, flops, self._dtype)

    def problem(self, name: str, metadata: Mapping[str, Any]) -> Problem:
        """Return what was recorded, checked; `metadata` gains the hardware and the forward FLOPs."""
        tensors = [
            Tensor(t.name, t.bytes, t.producer, tuple(readers), t.block, t.rebuild)
            for t, readers in zip(self._tensors, self._readers, strict=True)
        ]
        known = {"hardware": self._hardware.name, "gpu": self._gpu.name, "forward_flops": self.forward_flops}
        return Problem.from_records(name, self._operators, tensors, self._hardware.link, {**metadata, **known})

    def _count(self, flops: int) -> None:
        self.forward_flops += float(flops)

    def _record(self, name: str, kind: str, seconds: float, reads: Sequence[int], workspace_bytes: int) -> float:
        index = len(self._operators)
        layer = self._operators[-1].layer + (not self._joins) if self._operators else 0
        self._joins = False
        self._operators.append(Operator(name, self._phase, seconds, workspace_bytes, layer, kind))
        for tensor in reads:
            self._readers[tensor].append(index)
        return seconds
