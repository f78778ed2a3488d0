"""From calls and storages to the records of a problem; whatever kind of trace they were found in."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slackswap.models.problem import PHASES, Operator, Rebuild, Tensor
from slackswap.models.traces.operator_kind import operator_kind
from slackswap.models.traces.rebuild_recipes import RecipeBook
from slackswap.models.traces.storage_lifetimes import Lifetime


@dataclass(frozen=True, slots=True)
class TimedCall:
    """One operator of a trace: what it is shown as, what it is called where kinds are looked up, and its time."""

    name: str
    called: str
    duration_s: float


def problem_records(
    calls: Sequence[TimedCall],
    n_forward: int,
    tensors: Sequence[Lifetime],
    temporaries: Sequence[Lifetime],
    *,
    blocks: Sequence[int | None] | None = None,
    can_repeat: Callable[[int], bool] = lambda _: True,
) -> tuple[tuple[Operator, ...], tuple[Tensor, ...]]:
    """Return the operators and tensors of a problem.

    Parameters
    ----------
    calls : in order of execution, the first `n_forward` of the forward pass; each is a layer
    tensors : storages that are read by a later operator than the one that they were born in, in order of birth
    temporaries : storages that become workspace of the operator that they were born in
    blocks : of each tensor; None for none
    can_repeat : whether an operator, by its index, may run again in a rebuild
    """
    workspaces = workspaces_of(temporaries, len(calls))
    operators = tuple(
        Operator(call.name, PHASES[i >= n_forward], call.duration_s, workspaces[i], i, operator_kind(call.called))
        for i, call in enumerate(calls)
    )
    # Temporaries that die inside of their operator are in its workspace already.
    handed_on = [lifetime for lifetime in (*tensors, *temporaries) if lifetime.later_users]
    records = tensor_records(
        tensors,
        [call.name for call in calls],
        n_forward,
        [call.duration_s for call in calls],
        RecipeBook(handed_on, n_forward, workspaces),
        blocks=[None] * len(tensors) if blocks is None else blocks,
        can_repeat=can_repeat,
    )
    return operators, records


def tensor_records(
    lifetimes: Sequence[Lifetime],
    operator_names: Sequence[str],
    n_forward: int,
    duration_s: Sequence[float],
    book: RecipeBook,
    *,
    blocks: Sequence[int | None],
    can_repeat: Callable[[int], bool],
) -> tuple[Tensor, ...]:
    """Return one tensor per storage, with the rebuild that `book` knows for those of the forward pass.

    Parameters
    ----------
    lifetimes : in order of birth; each was born in an operator
    operator_names, duration_s : of all operators; a tensor is named after its producer
    blocks : of each storage
    can_repeat : whether an operator, by its index, may run again
    """
    index_of = {id(lifetime): t for t, lifetime in enumerate(lifetimes)}
    n_written: Counter[int] = Counter()
    tensors = []
    for t, lifetime in enumerate(lifetimes):
        producer = lifetime.operator or 0
        nth = n_written[producer]
        n_written[producer] += 1
        recipe = book.recipe(lifetime, can_repeat) if producer < n_forward else None
        rebuild = None
        if recipe is not None:
            rebuild = Rebuild(
                duration_s=sum(duration_s[operator] for operator in recipe.operators),
                inputs=tuple(index_of[id(source)] for source in recipe.inputs),
                workspace_bytes=recipe.workspace_bytes,
            )
        tensors.append(
            Tensor(
                name=operator_names[producer] + (f":{nth}" if nth else ""),
                bytes=lifetime.bytes,
                producer=producer,
                readers=lifetime.later_users,
                block=blocks[t],
                rebuild=rebuild,
            )
        )
    return tuple(tensors)


def workspaces_of(temporaries: Sequence[Lifetime], n_operators: int) -> list[int]:
    """Peak bytes of the storages that die inside each operator; each lives to the end of the last call that uses it."""
    changes: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for lifetime in temporaries:
        if lifetime.operator is not None:
            changes[lifetime.operator].append((lifetime.creator, lifetime.bytes))
            changes[lifetime.operator].append((max(lifetime.last_call_end, lifetime.creator) + 1, -lifetime.bytes))
    peaks = [0] * n_operators
    for operator, events in changes.items():
        used_bytes = 0
        for _, change_bytes in sorted(events):
            used_bytes += change_bytes
            peaks[operator] = max(peaks[operator], used_bytes)
    return peaks
