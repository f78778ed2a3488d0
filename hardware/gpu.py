"""A GPU as the roofline sees it: datasheet peaks and the shares of them that kernels sustain."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

from slackswap.hardware.input_error import InputError

# TF32 rounds inside the tensor core only: its tensors stay FP32 in memory.
DTYPE_BYTES: Mapping[str, int] = MappingProxyType({"bf16": 2, "fp16": 2, "tf32": 4, "fp32": 4})


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU (paper, section 4.1: datasheet peaks and sustained efficiencies).

    Attributes
    ----------
    name : str
    peak_flops_per_s : mapping
        Dense peak (no sparsity) by dtype, a key of `DTYPE_BYTES`; dtypes that the GPU lacks are absent.
    gemm_efficiency, attention_forward_efficiency, attention_backward_efficiency, convolution_efficiency : float
        Share of the peak that kernels of this kind sustain, in (0, 1].
    memory_efficiency : float
        Share of `memory_bytes_per_s` that memory-bound kernels sustain, in (0, 1].
    memory_bytes_per_s : float
        Peak bandwidth of device memory.
    launch_s : float
        Time that one kernel launch adds.
    memory_bytes : int
        Device memory, as the datasheet prints it (GB = 10^9).

    Raises
    ------
    InputError
        A value is out of range or a dtype unknown; the place names the field.
    """

    name: str
    peak_flops_per_s: Mapping[str, float] = field(hash=False)
    gemm_efficiency: float
    attention_forward_efficiency: float
    attention_backward_efficiency: float
    convolution_efficiency: float
    memory_efficiency: float
    memory_bytes_per_s: float
    launch_s: float
    memory_bytes: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "peak_flops_per_s", MappingProxyType(dict(self.peak_flops_per_s)))
        if not self.peak_flops_per_s:
            raise InputError("gives the peak of at least one dtype", place="peak_flops_per_s")
        for dtype, peak in self.peak_flops_per_s.items():
            if dtype not in DTYPE_BYTES:
                raise InputError(
                    f"is not a dtype that is known here: use {', '.join(DTYPE_BYTES)}",
                    place=f"peak_flops_per_s.{dtype}",
                )
            _check_positive(peak, f"peak_flops_per_s.{dtype}")
        for item in fields(self):
            if item.name.endswith("_efficiency") and not 0 < getattr(self, item.name) <= 1:
                raise InputError(f"lies in (0, 1], not {getattr(self, item.name)}", place=item.name)
        _check_positive(self.memory_bytes_per_s, "memory_bytes_per_s")
        _check_positive(self.memory_bytes, "memory_bytes")
        if not (math.isfinite(self.launch_s) and self.launch_s >= 0):
            raise InputError(
                f"a launch takes a finite number of seconds, at least 0, not {self.launch_s}", place="launch_s"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by value: a read-only mapping does not pickle itself."""
        values = (getattr(self, item.name) for item in fields(self))
        return Gpu, tuple(dict(value) if isinstance(value, Mapping) else value for value in values)

    def peak(self, dtype: str) -> float:
        """Return the peak in FLOP/s of `dtype`.

        Raises
        ------
        InputError
            The GPU has no peak for it; the message lists those that it has.
        """
        if dtype not in self.peak_flops_per_s:
            raise InputError(
                f"the {self.name} has no peak for '{dtype}': use {', '.join(self.peak_flops_per_s)}", place="dtype"
            )
        return self.peak_flops_per_s[dtype]

    @property
    def training_dtype(self) -> str:
        """The first of bf16, fp16, tf32, fp32 that the GPU has: what one would train in."""
        return next(dtype for dtype in DTYPE_BYTES if dtype in self.peak_flops_per_s)


def _check_positive(value: float, place: str) -> None:
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"is a finite number above 0, not {value}", place=place)
