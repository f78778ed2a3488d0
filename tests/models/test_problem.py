"""What a problem derives from its columns, and its graph view."""

from __future__ import annotations

import dataclasses

import networkx
import numpy as np
import pytest
from hypothesis import given
from instances import MB, MS, PLAIN_LINK, chain, columns, one_operator, problems, two_layers, zero_sizes

from slackswap.hardware.input_error import InputError
from slackswap.hardware.link import Link
from slackswap.models.problem import Operator, Problem, Rebuild, Tensor


def test_uses_of_two_layers() -> None:
    # f0 f1 b1 b0 are operators 0 1 2 3; a0 goes 0 -> 1, 3 and a1 goes 1 -> 2.
    problem = two_layers()
    assert (problem.n_operators, problem.n_forward, problem.n_tensors) == (4, 2, 2)
    assert problem.readers_of(0).tolist() == [1, 3]
    assert problem.first_backward_reader.tolist() == [3, 2]
    assert problem.last_forward_use.tolist() == [1, 1]  # a1 has no forward reader: its producer
    assert problem.last_use.tolist() == [3, 2]
    assert [problem.reads_of(i).tolist() for i in range(4)] == [[], [0], [1], [0]]
    assert [list(problem.writes_of(i)) for i in range(4)] == [[0], [1], [], []]


def test_totals_of_two_layers() -> None:
    problem = two_layers()
    assert problem.forward_s == 10 * MS + 20 * MS
    assert problem.backward_s == 40 * MS + 20 * MS
    assert problem.ideal_s == pytest.approx(90 * MS)
    assert problem.saved.tolist() == [True, True]
    assert problem.saved_bytes == 30 * MB


def test_ideal_time_is_added_up_in_execution_order() -> None:
    # Pairwise summation gives another last bit here: 1 + 1e-16 eight times stays 1, 8e-16 added at once does not.
    operators = [Operator(f"f{i}", "forward", s) for i, s in enumerate([1.0, *[1e-16] * 16])]
    problem = Problem.from_records("sum", operators, [], PLAIN_LINK)
    assert problem.ideal_s == 1.0
    assert np.array([1.0, *[1e-16] * 16]).sum() != 1.0


def test_allocation_counts_every_output_and_the_workspace() -> None:
    # f0 writes 1 + 2 MB beside 4 MB of workspace; f1 writes nothing and needs 8 MB.
    operators = [Operator("f0", "forward", 0.0, 4 * MB), Operator("f1", "forward", 0.0, 8 * MB)]
    tensors = [Tensor("a", 1 * MB, 0, (1,)), Tensor("b", 2 * MB, 0, ())]
    problem = Problem.from_records("outputs", operators, tensors, PLAIN_LINK)
    assert problem.allocation_bytes.tolist() == [7 * MB, 8 * MB]


def test_temporaries_and_gradients_are_not_saved() -> None:
    # t is read in the forward pass only, g is written by the backward pass, nobody reads u.
    operators = [Operator(n, "forward" if n[0] == "f" else "backward", 0.0) for n in ("f0", "f1", "b1", "b0")]
    tensors = [Tensor("t", 1, 0, (1,)), Tensor("u", 1, 1, ()), Tensor("g", 1, 2, (3,))]
    problem = Problem.from_records("unsaved", operators, tensors, PLAIN_LINK)
    assert problem.saved.tolist() == [False, False, False]
    assert problem.first_backward_reader.tolist() == [4, 4, 3]  # 4: none
    assert problem.saved_bytes == 0


def test_no_rebuild_is_an_infinite_cost() -> None:
    problem = chain(3)
    assert problem.rebuild_s.tolist() == [np.inf, 1 * MS, 1 * MS]
    assert problem.rebuildable.tolist() == [False, True, True]
    assert problem.rebuild_inputs_of(0).tolist() == []
    assert problem.rebuild_inputs_of(2).tolist() == [1]


def test_smallest_problems() -> None:
    # No backward pass: nothing is saved. All zero: a size of 0 is a size, a time of 0 is a time.
    alone = one_operator()
    assert (alone.n_forward, alone.backward_s, alone.saved_bytes) == (1, 0.0, 0)
    zero = zero_sizes()
    assert zero.saved.tolist() == [True, True]
    assert (zero.saved_bytes, zero.ideal_s) == (1 * MB, 3 * MS)
    assert zero.rebuild_s[1] == 0.0


def test_columns_are_read_only() -> None:
    problem = two_layers()
    for name, column in vars(problem).items():
        if isinstance(column, np.ndarray) and column.size:
            with pytest.raises(ValueError, match="read-only"):
                column[0] = column[-1]
            assert not column.flags.writeable, name
    with pytest.raises(dataclasses.FrozenInstanceError):
        problem.name = "other"  # type: ignore[misc]


def test_another_link_leaves_the_rest() -> None:
    link = Link(d2h_bytes_per_s=5e9, h2d_bytes_per_s=6e9)
    other = two_layers().with_link(link)
    assert other.link == link
    assert {**columns(other), "link": PLAIN_LINK} == columns(two_layers())


def test_rebuild_inputs_are_sorted() -> None:
    operators = [Operator(f"f{i}", "forward", 0.0) for i in range(3)]
    tensors = [Tensor("a", 1, 0, ()), Tensor("b", 1, 1, ()), Tensor("c", 1, 2, (), rebuild=Rebuild(0.0, (1, 0)))]
    problem = Problem.from_records("inputs", operators, tensors, PLAIN_LINK)
    assert problem.rebuild_inputs_of(2).tolist() == [0, 1]


def test_a_problem_needs_an_operator() -> None:
    with pytest.raises(InputError) as refused:
        Problem.from_records("empty", [], [], PLAIN_LINK)
    assert str(refused.value) == "$.operators: a problem has at least one operator"


@given(problems())
def test_records_and_columns_say_the_same(problem: Problem) -> None:
    again = Problem.from_records(problem.name, problem.operators(), problem.tensors(), problem.link, problem.metadata)
    assert columns(again) == columns(problem)


@given(problems())
def test_reads_are_the_readers_turned_round(problem: Problem) -> None:
    tensors = problem.tensors()
    for i in range(problem.n_operators):
        assert problem.reads_of(i).tolist() == [t for t, tensor in enumerate(tensors) if i in tensor.readers]
        assert list(problem.writes_of(i)) == [t for t, tensor in enumerate(tensors) if tensor.producer == i]


@given(problems())
def test_uses_follow_from_the_records(problem: Problem) -> None:
    n = problem.n_forward
    for t, tensor in enumerate(problem.tensors()):
        backward = [reader for reader in tensor.readers if reader >= n]
        assert problem.saved[t] == (tensor.producer < n and bool(backward))
        assert problem.first_backward_reader[t] == min(backward, default=problem.n_operators)
        assert problem.last_use[t] == max([tensor.producer, *tensor.readers])
        assert problem.last_forward_use[t] == max([tensor.producer, *(r for r in tensor.readers if r < n)])


def test_graph_of_two_layers() -> None:
    # a0's rebuild reads nothing, a1's reads a0: one `rebuilds` edge.
    graph = two_layers().graph()
    f0, f1, b1, b0 = (("operator", i) for i in range(4))
    a0, a1 = ("tensor", 0), ("tensor", 1)
    assert dict(graph.edges) == {
        (f0, a0): {"role": "writes"},
        (a0, f1): {"role": "reads"},
        (a0, b0): {"role": "reads"},
        (a0, a1): {"role": "rebuilds"},
        (f1, a1): {"role": "writes"},
        (a1, b1): {"role": "reads"},
    }
    assert graph.nodes[b1] == {
        "name": "b1",
        "phase": "backward",
        "kind": "gemm",
        "layer": 2,
        "duration_s": 40 * MS,
        "workspace_bytes": 0,
    }
    assert graph.nodes[a1] == {"name": "a1", "bytes": 20 * MB, "block": 0, "saved": True, "rebuild_s": 20 * MS}


def test_graph_is_a_copy() -> None:
    problem = two_layers()
    problem.graph().remove_node(("operator", 0))
    assert ("operator", 0) in problem.graph()


@given(problems())
def test_graph_holds_every_column(problem: Problem) -> None:
    graph = problem.graph()
    assert networkx.is_directed_acyclic_graph(graph)
    assert graph.number_of_nodes() == problem.n_operators + problem.n_tensors
    edges: dict[str, set[tuple[int, int]]] = {"writes": set(), "reads": set(), "rebuilds": set()}
    for (_, source), (_, target), attributes in graph.edges(data=True):
        edges[attributes["role"]].add((source, target))
    tensors = range(problem.n_tensors)
    assert edges["writes"] == {(int(problem.producer[t]), t) for t in tensors}
    assert edges["reads"] == {(t, int(i)) for t in tensors for i in problem.readers_of(t)}
    assert edges["rebuilds"] == {(int(s), t) for t in tensors for s in problem.rebuild_inputs_of(t)}


def test_columns_that_are_replaced_are_read_only_too() -> None:
    problem = two_layers()
    slower_s = problem.duration_s * 2
    changed = dataclasses.replace(problem, duration_s=slower_s)
    assert not changed.duration_s.flags.writeable
    assert slower_s.flags.writeable  # the caller's array stays the caller's
    assert changed.ideal_s == 2 * problem.ideal_s
