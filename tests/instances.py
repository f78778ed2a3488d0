"""Tiny named problems, and Hypothesis strategies for random ones, shared by all tests.

Sizes are in megabytes and times in milliseconds, so that on a link of 1 GB/s one megabyte takes one millisecond and the
arithmetic in the tests can be done by hand.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import strategies as st

from slackswap.hardware.link import Link
from slackswap.models.problem import KINDS, Operator, Problem, Rebuild, Tensor

MB = 1_000_000
MS = 1e-3
# 1 MB per ms, no latency and no slow-down while both directions are busy.
PLAIN_LINK = Link(d2h_bytes_per_s=1e9, h2d_bytes_per_s=1e9, duplex_factor=1.0, latency_s=0.0)


def two_layers(link: Link = PLAIN_LINK) -> Problem:
    """Two layers; each backward operator reads what its forward operator wrote.

    ::

        time (ms)   f0 10 | f1 20 | b1 40 | b0 20       ideal step 10 + 20 + 40 + 20 = 90
        a0  10 MB   written by f0, read by f1 and b0     rebuilt from nothing in 10 ms
        a1  20 MB   written by f1, read by b1            rebuilt from a0 in 20 ms
        in use      10    | 30    | 30    | 10           peak 30 MB, saved 30 MB
    """
    operators = [
        Operator("f0", "forward", 10 * MS, layer=0, kind="gemm"),
        Operator("f1", "forward", 20 * MS, layer=1, kind="gemm"),
        Operator("b1", "backward", 40 * MS, layer=2, kind="gemm"),
        Operator("b0", "backward", 20 * MS, layer=3, kind="gemm"),
    ]
    tensors = [
        Tensor("a0", 10 * MB, producer=0, readers=(1, 3), block=0, rebuild=Rebuild(10 * MS)),
        Tensor("a1", 20 * MB, producer=1, readers=(2,), block=0, rebuild=Rebuild(20 * MS, inputs=(0,))),
    ]
    return Problem.from_records("two layers", operators, tensors, link)


def chain(n: int, link: Link = PLAIN_LINK) -> Problem:
    """Return a uniform chain of n layers: 1 ms forward, 2 ms backward, one saved tensor of 1 MB per layer.

    Forward operator i reads tensor i - 1 and writes tensor i, which the next one and backward operator 2n - 1 - i read.
    Tensor 0 has no rebuild; the others are rebuilt in 1 ms from the one before. Two layers form a block. Ideal step
    3n ms, peak n MB.
    """
    operators = [Operator(f"f{i}", "forward", 1 * MS, layer=i, kind="gemm") for i in range(n)]
    operators += [Operator(f"b{i}", "backward", 2 * MS, layer=2 * n - 1 - i, kind="gemm") for i in reversed(range(n))]
    tensors = [
        Tensor(
            f"a{i}",
            1 * MB,
            producer=i,
            readers=(*([i + 1] if i + 1 < n else []), 2 * n - 1 - i),
            block=i // 2,
            rebuild=Rebuild(1 * MS, inputs=(i - 1,)) if i else None,
        )
        for i in range(n)
    ]
    return Problem.from_records(f"chain of {n}", operators, tensors, link)


def one_operator(link: Link = PLAIN_LINK) -> Problem:
    """Return the smallest problem with a tensor: one forward operator of 1 ms, whose 1 MB output nobody reads."""
    return Problem.from_records(
        "one operator", [Operator("f0", "forward", 1 * MS)], [Tensor("a0", 1 * MB, producer=0, readers=())], link
    )


def zero_sizes(link: Link = PLAIN_LINK) -> Problem:
    """Two layers where everything can be zero: f1 and b1 take no time, a1 has no bytes and costs nothing to rebuild.

    The step takes 1 + 0 + 0 + 2 = 3 ms; the peak is a0's 1 MB.
    """
    operators = [
        Operator("f0", "forward", 1 * MS, layer=0),
        Operator("f1", "forward", 0.0, layer=1),
        Operator("b1", "backward", 0.0, layer=2),
        Operator("b0", "backward", 2 * MS, layer=3),
    ]
    tensors = [
        Tensor("a0", 1 * MB, producer=0, readers=(1, 3), rebuild=None),
        Tensor("a1", 0, producer=1, readers=(2,), rebuild=Rebuild(0.0, inputs=(0,))),
    ]
    return Problem.from_records("zero sizes", operators, tensors, link)


def columns(problem: Problem) -> dict[str, object]:
    """Return every column of a problem as lists: equal for equal problems, and readable in a failing test."""
    values = {column.name: getattr(problem, column.name) for column in dataclasses.fields(problem)}
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}


def links() -> st.SearchStrategy[Link]:
    """Return links from much slower to much faster than the operators of `problems`, with and without latency."""
    bandwidth = st.sampled_from([1e8, 1e9, 4e9, 2.5e10])
    return st.builds(Link, bandwidth, bandwidth, st.sampled_from([1.0, 0.85, 0.5]), st.sampled_from([0.0, 1e-5, 1e-3]))


_durations = st.integers(0, 20).map(lambda ms: ms * MS)
_sizes = st.integers(0, 40).map(lambda mb: mb * MB)
_mostly = st.sampled_from([True, True, True, False])
_workspaces = st.sampled_from([0, 0, 1 * MB, 10 * MB])


@st.composite
def problems(draw: st.DrawFn, max_forward: int = 8) -> Problem:
    """Return random valid problems with at most `max_forward` forward operators.

    They hold what the format allows: several outputs per operator or none, temporaries that no backward operator reads,
    tensors without readers, gradients that backward operators write, rebuild chains, zero sizes and zero times.
    """
    n_forward = draw(st.integers(1, max_forward))
    operators: list[Operator] = []
    tensors: list[Tensor] = []
    readers: list[list[int]] = []
    reads_of: dict[int, list[int]] = {}
    layer = 0

    def add_operator(phase: str) -> int:
        nonlocal layer
        layer += draw(st.integers(0, 1))
        name = f"{phase[0]}{len(operators)}"
        kind = draw(st.sampled_from(KINDS))
        operators.append(Operator(name, phase, draw(_durations), draw(_workspaces), layer, kind))
        return len(operators) - 1

    def add_tensor(producer: int, inputs: list[int], block: int | None) -> None:
        rebuild = Rebuild(draw(_durations), tuple(inputs), draw(_workspaces)) if draw(_mostly) else None
        tensors.append(Tensor(f"t{len(tensors)}", draw(_sizes), producer, (), block, rebuild))
        readers.append([])

    for i in range(n_forward):
        known = range(max(0, len(tensors) - 4), len(tensors))
        reads_of[i] = sorted(t for t in known if draw(st.booleans()))
        add_operator("forward")
        for t in reads_of[i]:
            readers[t].append(i)
        block = draw(st.sampled_from([None, i // 2]))
        for _ in range(draw(st.sampled_from([1, 1, 1, 2, 0]))):
            add_tensor(i, reads_of[i], block)
    gradient: int | None = None
    for i in reversed(range(n_forward)):
        if draw(st.integers(0, 5)) == 0:
            continue  # some forward operators have no backward operator
        operator = add_operator("backward")
        written = [t for t, tensor in enumerate(tensors) if tensor.producer == i]
        reads = [t for t in (*reads_of[i], *written) if draw(_mostly)]
        for t in reads if gradient is None else [*reads, gradient]:
            readers[t].append(operator)
        gradient = None
        if draw(st.booleans()):
            add_tensor(operator, sorted(reads), None)
            gradient = draw(st.sampled_from([len(tensors) - 1, None]))
    return Problem.from_records(
        "random",
        operators,
        [Tensor(t.name, t.bytes, t.producer, tuple(readers[i]), t.block, t.rebuild) for i, t in enumerate(tensors)],
        draw(links()),
    )


def decisions(problem: Problem) -> st.SearchStrategy[str]:
    """Return legal decision strings: K anywhere, S where a tensor is saved, R where it is also rebuildable."""
    letters = [
        "K" if not saved else "KSR" if rebuildable else "KS"
        for saved, rebuildable in zip(problem.saved, problem.rebuildable, strict=True)
    ]
    return st.tuples(*map(st.sampled_from, letters)).map("".join)


@st.composite
def crowded_chains(draw: st.DrawFn) -> Problem:
    """Chains whose backward pass holds a large workspace beyond the three steps that admission looks ahead.

    What was fetched in the meantime is then in the way: rule 9.
    """
    n = draw(st.integers(6, 12))
    size = st.integers(5, 15).map(lambda mb: mb * MB)
    duration = st.integers(1, 10).map(lambda ms: ms * MS)
    operators = [Operator(f"f{i}", "forward", draw(duration), layer=i) for i in range(n)]
    for i in reversed(range(n)):
        workspace_bytes = draw(st.sampled_from([0, 0, 0, 25 * MB, 40 * MB]))
        operators.append(Operator(f"b{i}", "backward", draw(duration), workspace_bytes, layer=2 * n - 1 - i))
    tensors = [
        Tensor(f"t{i}", draw(size), i, (2 * n - 1 - i,), None, Rebuild(MS, (i - 1,) if i else ())) for i in range(n)
    ]
    return Problem.from_records("crowded chain", operators, tensors, draw(links()))
