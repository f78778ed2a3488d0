"""From storages to the tensor records of a problem; whatever kind of trace the storages were found in."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from slackswap.models.problem import Rebuild, Tensor
from slackswap.models.traces.rebuild_recipes import RecipeBook
from slackswap.models.traces.storage_lifetimes import Lifetime


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
