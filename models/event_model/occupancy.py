"""Whose bytes are in use: memory by kind at every sample of a timeline, and what is on the device at one of them."""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from slackswap.models.event_model.residency import END, FETCH, NO_TENSOR, START, Ledger, Steps
from slackswap.models.event_model.score import RunTimeline
from slackswap.models.problem import IntArray
from slackswap.models.schedule import step_name

MemoryKind = Literal["kept", "swapped", "recomputed", "temporaries", "gradients", "workspace"]
MEMORY_KINDS: tuple[MemoryKind, ...] = ("kept", "swapped", "recomputed", "temporaries", "gradients", "workspace")
KEPT, SWAPPED, RECOMPUTED, TEMPORARIES, GRADIENTS, WORKSPACE = range(6)
MOST_NAMED = 12


class Resident(msgspec.Struct, frozen=True):
    """A tensor on the device, or on its way there."""

    tensor: str
    bytes: int
    kind: MemoryKind


class Occupancy(msgspec.Struct, frozen=True, kw_only=True):
    """What is in memory at one moment.

    Attributes
    ----------
    by_kind : bytes of every kind, in the order of `MEMORY_KINDS`; they add up to `used_bytes`
        Saved tensors by their decision; ``temporaries`` are tensors of the forward pass that no backward step reads,
        ``gradients`` the tensors that backward operators write, ``workspace`` what lives while `running` runs, gradient
        buffers included.
    largest : the largest tensors, at most 12
    n_tensors : how many there are
    """

    at_s: float
    running: str | None
    used_bytes: int
    by_kind: dict[MemoryKind, int]
    largest: tuple[Resident, ...]
    n_tensors: int


def kinds_of(steps: Steps) -> IntArray:
    """Return the kind of memory that each tensor is, as an index into `MEMORY_KINDS`."""
    problem = steps.problem
    kinds = np.where(problem.saved, KEPT, TEMPORARIES)
    rebuilt = steps.schedule.rebuilds(problem)
    kinds[rebuilt[rebuilt >= 0]] = RECOMPUTED
    kinds[steps.schedule.offload_tensor] = SWAPPED
    kinds[problem.producer >= problem.n_forward] = GRADIENTS
    return kinds.astype(np.int64)


def memory_by_kind(steps: Steps, ledger: Ledger) -> npt.NDArray[np.int64]:
    """Return the (q, 6) bytes of each of `MEMORY_KINDS` after every sample of memory."""
    kinds = kinds_of(steps).tolist()
    changes = np.zeros((len(ledger.what), len(MEMORY_KINDS)), np.int64)
    for i, (what, index) in enumerate(zip(ledger.what.tolist(), ledger.index.tolist(), strict=True)):
        if what in (START, END):
            sign = 1 if what == START else -1
            changes[i, WORKSPACE] += sign * steps.workspace_bytes(index)
            for t in steps.outputs(index) if what == START else steps.plain_drops(index):
                changes[i, kinds[t]] += sign * steps.sizes[t]
        elif index != NO_TENSOR:
            changes[i, kinds[index]] += steps.sizes[index] if what == FETCH else -steps.sizes[index]
    return np.cumsum(changes, axis=0)


def occupancy(timeline: RunTimeline, steps: Steps, ledger: Ledger, sample: int) -> Occupancy:
    """Return what is in memory right after a sample; nothing, if the sample is -1."""
    there, running = _there(steps, ledger, sample)
    kinds = kinds_of(steps)
    by_kind = dict.fromkeys(MEMORY_KINDS, 0)
    for t in there:
        by_kind[MEMORY_KINDS[kinds[t]]] += steps.sizes[t]
    by_kind["workspace"] = 0 if running is None else steps.workspace_bytes(running)
    largest = sorted(there, key=lambda t: (-steps.sizes[t], t))[:MOST_NAMED]
    names = steps.problem.tensor_names
    return Occupancy(
        at_s=float(timeline.memory_s[sample]) if sample >= 0 else 0.0,
        running=None if running is None else step_name(steps.problem, steps.codes[running]),
        used_bytes=sum(by_kind.values()),
        by_kind=by_kind,
        largest=tuple(Resident(names[t], steps.sizes[t], MEMORY_KINDS[kinds[t]]) for t in largest),
        n_tensors=len(there),
    )


def _there(steps: Steps, ledger: Ledger, sample: int) -> tuple[set[int], int | None]:
    """Tensors on the device or on their way there after a sample, and the step that runs."""
    there: set[int] = set()
    running: int | None = None
    until = sample + 1
    for what, index in zip(ledger.what[:until].tolist(), ledger.index[:until].tolist(), strict=True):
        if what == START:
            running = index
            there.update(steps.outputs(index))
        elif what == END:
            running = None
            there.difference_update(steps.plain_drops(index))
        elif what == FETCH:
            there.add(index)
        else:
            there.discard(index)
    return there, running
