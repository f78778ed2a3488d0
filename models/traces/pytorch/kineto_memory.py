"""Blocks of device memory from the ``[memory]`` events of a Kineto step: what the forward pass leaves for the backward pass.

With addresses a free belongs to the live block at its address. Traces of 2021 have none: a free then takes the newest live
block of its size, which keeps totals exact and gives producers that agree with an execution trace; the oldest does not.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from slackswap.models.traces.pytorch.execution_trace import Iteration
from slackswap.models.traces.pytorch.kineto import KinetoTrace
from slackswap.models.traces.pytorch.kineto_events import CpuOperator, MemoryEvent


@dataclass(slots=True)
class Block:
    """One allocation; operators are indices, None outside of both passes.

    Attributes
    ----------
    bytes : as the allocator rounded it
    born_us, freed_us : freed_us is None where the step does not free it
    producer : forward operator that allocated it
    last_user : backward operator in which it was freed, or the last that had started before
    """

    bytes: int
    born_us: float
    freed_us: float | None = None
    producer: int | None = None
    last_user: int | None = None


@dataclass(frozen=True, slots=True)
class SavedBlocks:
    """Blocks born in the forward pass and not freed before the backward one.

    Attributes
    ----------
    blocks : in order of birth
    ambiguous_frees : frees that fitted several live blocks, for lack of addresses
    frees : all frees of the step
    """

    blocks: tuple[Block, ...]
    ambiguous_frees: int
    frees: int

    @property
    def bytes(self) -> int:
        """Sum of the blocks: A, with the allocator's rounding."""
        return sum(block.bytes for block in self.blocks)


@dataclass(slots=True)
class _Pairing:
    """Live blocks by what a free names them by."""

    live: dict[Hashable, list[Block]] = field(default_factory=lambda: defaultdict(list))
    frees: int = 0
    ambiguous: int = 0

    def take(self, event: MemoryEvent) -> Block | None:
        """Take one event into account; return the block of an allocation."""
        key = _key(event)
        if event.bytes > 0:
            block = Block(event.bytes, event.time_us)
            if event.address is not None and self.live[key]:
                self.live[key].pop().freed_us = event.time_us  # its free was not recorded: the address is in use again
            self.live[key].append(block)
            return block
        self.frees += 1
        self.ambiguous += len(self.live[key]) > 1
        if self.live[key]:
            self.live[key].pop().freed_us = event.time_us
        return None


def saved_blocks(iteration: Iteration, event_of: Mapping[int, CpuOperator], kineto: KinetoTrace) -> SavedBlocks:
    """Pair the allocations and frees of a step and return the blocks that the forward pass leaves.

    Parameters
    ----------
    iteration : the operators
    event_of : the event of each of their nodes
    kineto : the step, with its memory events
    """
    forward = [event_of[root.node.id] for root in iteration.forward]
    backward = [event_of[root.node.id] for root in iteration.backward]
    first_backward_us = min(event.start_us for event in backward)
    born = _Births(forward)
    starts = sorted((event.start_us, i) for i, event in enumerate(backward))
    pairing = _Pairing()
    blocks = []
    for event in kineto.memory:
        block = pairing.take(event)
        if block is not None and event.time_us < first_backward_us and event.thread == forward[0].thread:
            block.producer = born.operator_at(event.time_us)
            blocks.append(block)
    saved = tuple(
        block for block in blocks if block.producer is not None and not _freed_before(block, first_backward_us)
    )
    for block in saved:
        if block.freed_us is not None:
            before = bisect_right(starts, (block.freed_us, len(backward)))
            block.last_user = len(forward) + starts[before - 1][1] if before else None
    return SavedBlocks(saved, pairing.ambiguous, pairing.frees)


class _Births:
    """Finds the operator of one thread that was running at a time."""

    def __init__(self, events: Sequence[CpuOperator]) -> None:
        self._events = sorted(enumerate(events), key=lambda item: item[1].start_us)
        self._starts = [event.start_us for _, event in self._events]

    def operator_at(self, time_us: float) -> int | None:
        before = bisect_right(self._starts, time_us)
        if not before:
            return None
        operator, event = self._events[before - 1]
        return operator if time_us <= event.end_us else None


def _freed_before(block: Block, time_us: float) -> bool:
    return block.freed_us is not None and block.freed_us < time_us


def _key(event: MemoryEvent) -> Hashable:
    return (event.device, abs(event.bytes)) if event.address is None else (event.device, "at", event.address)
