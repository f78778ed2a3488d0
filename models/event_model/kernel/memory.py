"""Memory in use, and its log (rules 1 and 2)."""

from __future__ import annotations

from slackswap.models.compilation import compiled_part
from slackswap.models.event_model.kernel.columns import (
    LOWEST,
    N_WAITING,
    NO_ENTRY,
    NOW,
    PEAK,
    SAMPLES,
    USED,
    WAITING,
    Log,
    ProblemColumns,
    Scratch,
)


@compiled_part
def use(n_bytes: int, scratch: Scratch, log: Log) -> None:
    """Count an allocation (or, negative, a release)."""
    integers = scratch.integers
    integers[USED] += n_bytes
    integers[PEAK] = max(integers[PEAK], integers[USED])
    if log.memory_s.size > 0:
        log_memory(scratch, log, scratch.floats[NOW], integers[USED])


@compiled_part
def release(problem: ProblemColumns, t: int, scratch: Scratch, log: Log) -> None:
    """Free the device copy; if the host has one and a prefetch is foreseen, that prefetch waits from now."""
    scratch.on_device[t] = 0
    use(-problem.tensor_bytes[t], scratch, log)
    e = scratch.entry[t]
    if scratch.on_host[t] == 1 and e != NO_ENTRY:
        scratch.entry_state[e] = WAITING
        scratch.integers[N_WAITING] += 1
        scratch.integers[LOWEST] = min(scratch.integers[LOWEST], e)


@compiled_part
def log_memory(scratch: Scratch, log: Log, at_s: float, used_bytes: int) -> None:
    """Add a sample to the timeline of memory."""
    n = scratch.integers[SAMPLES]
    if n < log.memory_s.size:
        log.memory_s[n] = at_s
        log.memory_bytes[n] = used_bytes
    scratch.integers[SAMPLES] = n + 1
