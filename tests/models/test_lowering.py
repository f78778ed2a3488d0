"""Lowering: where rebuilds stand, what is dropped when, and which deadlines they bring forward."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import reference_lowering
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import MB, MS, PLAIN_LINK, chain, decisions, one_operator, problems, two_layers, zero_sizes

from slackswap.hardware.input_error import InputError
from slackswap.models.lowering import lower
from slackswap.models.plan import Plan
from slackswap.models.problem import Operator, Problem, Rebuild, Tensor
from slackswap.models.schedule import Schedule, step_name


def lowered(problem: Problem, letters: str) -> Schedule:
    return lower(problem, Plan.from_letters(letters))


def steps(problem: Problem, letters: str) -> list[str]:
    return [step_name(problem, code) for code in lowered(problem, letters).steps.tolist()]


def drops(problem: Problem, letters: str) -> list[tuple[str, str]]:
    """Return (tensor, the step whose end drops it), in order."""
    schedule = lowered(problem, letters)
    names = [step_name(problem, code) for code in schedule.steps.tolist()]
    return [(problem.tensor_names[t], names[k]) for k in range(len(names)) for t in schedule.drops_after(k)]


def prefetches(schedule: Schedule) -> list[tuple[int, int, int]]:
    return list(
        zip(
            schedule.prefetch_tensor.tolist(),
            schedule.prefetch_deadline.tolist(),
            schedule.prefetch_after.tolist(),
            strict=True,
        )
    )


# two_layers: a0 is written by f0 and read by f1 and b0; a1 is written by f1 and read by b1; a1 is rebuilt from a0.


def test_kept_tensors_go_after_their_last_use() -> None:
    assert steps(two_layers(), "KK") == ["f0", "f1", "b1", "b0"]
    assert drops(two_layers(), "KK") == [("a1", "b1"), ("a0", "b0")]
    assert lowered(two_layers(), "KK").offload_tensor.size == 0
    assert lowered(two_layers(), "KK").prefetch_tensor.size == 0


def test_recomputed_tensors_go_after_their_last_forward_reader_too() -> None:
    # f1 is a0's last forward reader; nobody reads a1 forward, so it goes with its producer f1.
    assert steps(two_layers(), "RR") == ["f0", "f1", "rebuild a0", "rebuild a1", "b1", "b0"]
    assert drops(two_layers(), "RR") == [("a0", "f1"), ("a1", "f1"), ("a1", "b1"), ("a0", "b0")]


def test_a_rebuild_stands_immediately_before_the_first_backward_reader() -> None:
    assert steps(two_layers(), "RK") == ["f0", "f1", "b1", "rebuild a0", "b0"]
    assert steps(two_layers(), "KR") == ["f0", "f1", "rebuild a1", "b1", "b0"]


def test_swapped_tensors_are_offloaded_once_produced_and_fetched_after_the_forward_pass() -> None:
    schedule = lowered(two_layers(), "SS")
    # a0 comes from step 0, a1 from step 1; b1 (step 2) reads a1, b0 (step 3) reads a0; the forward pass ends with step 1.
    assert list(zip(schedule.offload_tensor, schedule.offload_after, strict=True)) == [(0, 0), (1, 1)]
    assert prefetches(schedule) == [(1, 2, 1), (0, 3, 1)]
    assert drops(two_layers(), "SS") == [("a0", "f1"), ("a1", "f1"), ("a1", "b1"), ("a0", "b0")]


def test_a_rebuild_that_reads_a_swapped_tensor_brings_its_deadline_forward() -> None:
    # Kept a1: a0 is needed first by b0, step 3. Recomputed a1: its rebuild, step 2, needs a0 before.
    assert prefetches(lowered(two_layers(), "SK")) == [(0, 3, 1)]
    assert steps(two_layers(), "SR") == ["f0", "f1", "rebuild a1", "b1", "b0"]
    assert prefetches(lowered(two_layers(), "SR")) == [(0, 2, 1)]
    assert drops(two_layers(), "SR") == [("a0", "f1"), ("a1", "f1"), ("a1", "b1"), ("a0", "b0")]


def test_deadlines_that_become_equal_go_by_tensor_index() -> None:
    # chain(4): b3, b2, b1, b0 read a3, a2, a1, a0. With everything swapped the deadlines are steps 4, 5, 6, 7.
    assert prefetches(lowered(chain(4), "SSSS")) == [(3, 4, 3), (2, 5, 3), (1, 6, 3), (0, 7, 3)]
    # a3 is rebuilt from a2 and a1 (a changed chain): step 4 needs both, and the lower index comes first.
    operators = chain(4).operators()
    tensors = chain(4).tensors()
    tensors[3] = Tensor("a3", MB, 3, (4,), rebuild=Rebuild(MS, inputs=(2, 1)))
    problem = Problem.from_records("two inputs", operators, tensors, PLAIN_LINK)
    # f0 f1 f2 f3 | rebuild a3, b3, b2, b1, b0: a0 is read last, at step 8.
    assert prefetches(lowered(problem, "SSSR")) == [(1, 4, 3), (2, 4, 3), (0, 8, 3)]


def test_recomputed_inputs_are_rebuilt_first_once_and_stay() -> None:
    # chain(4), a0 kept: b3 needs a3, which needs a2, which needs a1. Then b2 and b1 find theirs.
    assert steps(chain(4), "KRRR") == [
        *("f0", "f1", "f2", "f3"),
        *("rebuild a1", "rebuild a2", "rebuild a3", "b3"),
        *("b2", "b1", "b0"),
    ]
    assert drops(chain(4), "KRRR") == [
        *(("a1", "f2"), ("a2", "f3"), ("a3", "f3")),  # after the last forward reader
        *(("a3", "b3"), ("a2", "b2"), ("a1", "b1"), ("a0", "b0")),
    ]
    # a2 kept: the chain ends there, and a1 is rebuilt only before b1.
    assert steps(chain(4), "KRKR") == ["f0", "f1", "f2", "f3", "rebuild a3", "b3", "b2", "rebuild a1", "b1", "b0"]


def diamond() -> Problem:
    """Return four tensors of which a3 is rebuilt from a2 and a1, and both of them from a0; b reads a3, then c reads a1, a2."""
    operators = [Operator(f"f{i}", "forward", MS) for i in range(4)]
    operators += [Operator("b", "backward", MS), Operator("c", "backward", MS)]
    tensors = [
        Tensor("a0", MB, 0, (1, 2, 5), rebuild=Rebuild(MS)),
        Tensor("a1", MB, 1, (3, 5), rebuild=Rebuild(MS, inputs=(0,))),
        Tensor("a2", MB, 2, (3, 5), rebuild=Rebuild(MS, inputs=(0,))),
        Tensor("a3", MB, 3, (4,), rebuild=Rebuild(MS, inputs=(2, 1))),
    ]
    return Problem.from_records("diamond", operators, tensors, PLAIN_LINK)


def test_depth_first_lower_index_first() -> None:
    # b reads a3; its inputs are a1 and a2; a1's input a0 comes first, and a2 finds it there.
    forward = ["f0", "f1", "f2", "f3"]
    rebuilds = ["rebuild a0", "rebuild a1", "rebuild a2", "rebuild a3"]
    assert steps(diamond(), "RRRR") == [*forward, *rebuilds, "b", "c"]
    # Several before one step: c reads a0, a1 and a2, in this order.
    assert steps(diamond(), "RRRK") == [*forward, "b", "rebuild a0", "rebuild a1", "rebuild a2", "c"]
    # Kept a1: only a2 still needs a0 before b.
    assert steps(diamond(), "RKRR") == [*forward, "rebuild a0", "rebuild a2", "rebuild a3", "b", "c"]


def test_a_rebuild_can_be_the_last_use() -> None:
    # t, a forward temporary, is read by f1 alone; but a1 is rebuilt from it, so it stays until then.
    operators = [Operator("f0", "forward", MS), Operator("f1", "forward", MS), Operator("b1", "backward", MS)]
    tensors = [Tensor("t", MB, 0, (1,)), Tensor("a1", MB, 1, (2,), rebuild=Rebuild(MS, inputs=(0,)))]
    problem = Problem.from_records("temporary", operators, tensors, PLAIN_LINK)
    assert drops(problem, "KK") == [("t", "f1"), ("a1", "b1")]
    assert drops(problem, "KR") == [("a1", "f1"), ("t", "rebuild a1"), ("a1", "b1")]


def test_tensors_that_nobody_reads_go_with_their_producer() -> None:
    assert drops(one_operator(), "K") == [("a0", "f0")]


def test_zero_sizes_are_lowered_like_others() -> None:
    assert steps(zero_sizes(), "SR") == ["f0", "f1", "rebuild a1", "b1", "b0"]


def test_a_wrong_plan_is_refused() -> None:
    with pytest.raises(InputError, match="2 decisions, this one has 1"):
        lowered(two_layers(), "K")
    with pytest.raises(InputError, match="has no rebuild"):
        lowered(chain(2), "RK")


def test_a_schedule_outlives_the_next_lowering() -> None:
    # Lowering writes into one buffer per problem and thread; what it returned must not change.
    problem = chain(4)
    first = lowered(problem, "KRRR")
    before = first.steps.tolist(), first.drops.tolist(), first.drops_start.tolist()
    for letters in itertools.product("KS", repeat=4):
        lowered(problem, "".join(letters))
    assert (first.steps.tolist(), first.drops.tolist(), first.drops_start.tolist()) == before


@given(st.data())
def test_steps_agree_with_the_reference_lowering(data: st.DataObject) -> None:
    problem = data.draw(problems())
    letters = data.draw(decisions(problem))
    schedule = lowered(problem, letters)
    expected = [
        problem.n_operators + step.rebuilds if step.rebuilds is not None else problem.operator_names.index(step.name)
        for step in reference_lowering.lower(problem, letters)
    ]
    assert schedule.steps.tolist() == expected


@given(st.data())
@settings(max_examples=150)
def test_drops_and_deadlines_are_those_of_the_rules(data: st.DataObject) -> None:
    problem = data.draw(problems())
    letters = data.draw(decisions(problem))
    schedule, reference = lowered(problem, letters), reference_lowering.lower(problem, letters)
    forward = reference[: problem.n_forward]
    dropped: list[list[int]] = [[] for _ in reference]
    deadlines = []
    for t, letter in enumerate(letters):
        dropped[reference_lowering.last_use(reference, t)].append(t)  # rule 2
        if letter != "K":
            dropped[reference_lowering.last_use(forward, t)].append(t)
        if letter == "S":
            deadlines.append((reference_lowering.first_backward_use(reference, t, problem.n_forward), t))  # rule 6
    assert [schedule.drops_after(k).tolist() for k in range(schedule.n_steps)] == dropped
    assert [(k, t) for t, k, _ in prefetches(schedule)] == sorted(deadlines)
    assert schedule.offload_tensor.tolist() == [t for t, letter in enumerate(letters) if letter == "S"]  # rule 5
    assert schedule.offload_after.tolist() == problem.producer[schedule.offload_tensor].tolist()
    assert np.all(schedule.prefetch_after == problem.n_forward - 1)
