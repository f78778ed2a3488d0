"""What makes an imported problem doubtful, whatever it was imported from: times of zero, and speeds that no GPU has."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slackswap.hardware.gpu_names import find_gpu
from slackswap.models.problem import FloatArray, Problem

# Caches and rounding of time stamps let a short kernel look a little faster than memory.
_TOLERANCE = 1.1
# Below this size a tensor may never leave the cache.
_MIN_BYTES = 64 << 20


def remarks_on(problem: Problem) -> list[str]:
    """Return one sentence for each doubt, none for a plausible problem."""
    return [*_free_work(problem), *_too_fast(problem)]


def computed_too_fast(duration_s: Sequence[float] | FloatArray, flops: Sequence[float], gpu_name: str) -> list[str]:
    """Compare the FLOPs of operators with the highest peak of the named GPU; no sentence where it has no such peak.

    Parameters
    ----------
    duration_s, flops : per operator
    gpu_name : as the profiler wrote it
    """
    hardware = find_gpu(gpu_name) if gpu_name else None
    if hardware is None:
        return []
    peak = max(hardware.gpu.peak_flops_per_s.values())
    speeds = [done / took for done, took in zip(flops, duration_s, strict=True) if done and took > 0]
    fast = [speed for speed in speeds if speed > _TOLERANCE * peak]
    if not fast:
        return []
    return [
        f"{len(fast)} operators compute faster than the {hardware.gpu.name} can: up to {max(fast) / 1e12:.0f} TFLOP/s of"
        f" {peak / 1e12:.0f}; are times or shapes of another run?"
    ]


def _free_work(problem: Problem) -> list[str]:
    writes = np.zeros(problem.n_operators, np.int64)
    np.add.at(writes, problem.producer, problem.tensor_bytes)
    instant = problem.duration_s == 0
    busy = instant & (writes > 0)
    free = problem.saved & (problem.rebuild_s == 0) & (problem.tensor_bytes > 0)
    said = []
    if busy.any():
        said.append(
            f"{int(busy.sum())} of {problem.n_operators} operators take 0 s and yet write"
            f" {writes[busy].sum() / 1e6:.1f} MB: their times are left out (copies from the host), not recorded, or below the"
            " resolution."
        )
    if free.any():
        said.append(
            f"{int(free.sum())} saved tensors ({problem.tensor_bytes[free].sum() / 1e6:.1f} MB) cost 0 s to rebuild:"
            " planners recompute them for nothing."
        )
    return said


def _too_fast(problem: Problem) -> list[str]:
    """Compare the bytes that operators write with what the named GPU can move in their time."""
    name = str(problem.metadata.get("gpu", ""))
    hardware = find_gpu(name) if name else None
    if hardware is None:
        return []
    writes = np.zeros(problem.n_operators, np.float64)
    np.add.at(writes, problem.producer, problem.tensor_bytes.astype(np.float64))
    peak_bytes_per_s = hardware.gpu.memory_bytes_per_s
    fast = (problem.duration_s > 0) & (writes >= _MIN_BYTES)
    fast &= writes > _TOLERANCE * peak_bytes_per_s * problem.duration_s
    if not fast.any():
        return []
    speed = (writes[fast] / problem.duration_s[fast]).max()
    return [
        f"{int(fast.sum())} operators write faster than the memory of the {hardware.gpu.name}: up to {speed / 1e9:.0f} GB/s"
        f" of {peak_bytes_per_s / 1e9:.0f}; are times or sizes of another run?"
    ]
