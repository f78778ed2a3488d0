"""Schedules: what `from_lists` sorts, what stays as given, read-only columns, odd shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from instances import two_layers

from slackswap.models.schedule import Schedule, step_name


def test_drops_and_prefetches_are_sorted_offloads_stay_in_queue_order() -> None:
    schedule = Schedule.from_lists(
        steps=[0, 1, 2, 3],
        drops=[{2, 0, 1}, [], (3,), []],
        offloads=[(2, 0), (0, 0)],
        prefetches=[(2, 3, 1), (1, 3, 2), (0, 2, 1)],
    )
    assert schedule.drops_start.tolist() == [0, 3, 3, 4, 4]
    assert schedule.drops.tolist() == [0, 1, 2, 3]
    assert [schedule.drops_after(k).tolist() for k in range(4)] == [[0, 1, 2], [], [3], []]
    # The D2H queue is first in first out: its order says something.
    assert schedule.offload_tensor.tolist() == [2, 0]
    assert schedule.offload_after.tolist() == [0, 0]
    # The H2D queue is in order of (deadline, tensor): (2, 0), (3, 1), (3, 2).
    assert schedule.prefetch_tensor.tolist() == [0, 1, 2]
    assert schedule.prefetch_deadline.tolist() == [2, 3, 3]
    assert schedule.prefetch_after.tolist() == [1, 2, 1]


rows = st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))


@given(st.lists(rows, unique_by=lambda row: row[:2]), st.randoms())
def test_the_order_in_which_prefetches_are_given_does_not_matter(
    prefetches: list[tuple[int, int, int]], random: np.random.Generator
) -> None:
    shuffled = list(prefetches)
    random.shuffle(shuffled)
    first, second = (Schedule.from_lists([], [], (), given) for given in (prefetches, shuffled))
    for column in ("prefetch_tensor", "prefetch_deadline", "prefetch_after"):
        assert getattr(first, column).tolist() == getattr(second, column).tolist()
    assert first.prefetch_deadline.tolist() == sorted(first.prefetch_deadline.tolist())


def test_generators_are_read_once() -> None:
    schedule = Schedule.from_lists(
        [0, 1],
        [(t for t in (1, 0)), iter(())],
        ((t, 0) for t in range(2)),
        ((t, 1, 0) for t in (1, 0)),
    )
    assert schedule.drops.tolist() == [0, 1]
    assert schedule.offload_tensor.tolist() == [0, 1]
    assert schedule.prefetch_tensor.tolist() == [0, 1]


def test_an_empty_schedule_has_its_types() -> None:
    schedule = Schedule.from_lists([], [])
    assert schedule.n_steps == 0
    assert schedule.drops_start.tolist() == [0]
    for name in Schedule.__dataclass_fields__:
        column = getattr(schedule, name)
        assert column.dtype == np.int64
        assert column.ndim == 1


def test_columns_are_read_only_copies() -> None:
    mine = {name: np.arange(2) for name in Schedule.__dataclass_fields__}
    schedule = Schedule(**mine)
    for name, column in mine.items():
        column[0] = 9  # whoever made the array may go on changing it
        assert getattr(schedule, name).tolist() == [0, 1], name
        with pytest.raises(ValueError, match="read-only"):
            getattr(schedule, name)[0] = 9


def test_narrow_and_long_columns_are_taken_as_they_are() -> None:
    # Whether they describe a schedule is for `check` to say, so that every reason can be listed.
    empty: Any = np.zeros(0, np.int8)
    narrow: Any = np.array([3, 2, 1], np.int8)
    schedule = Schedule(narrow, empty, np.arange(7), empty, empty, empty, empty, empty)
    assert schedule.n_steps == 3
    assert schedule.steps.dtype == np.int64
    assert schedule.drops_start.size == 0
    assert schedule.drops.size == 7


def test_numbers_that_are_no_index_do_not_wrap_around() -> None:
    for big in (1 << 63, -(1 << 63) - 1):
        with pytest.raises(OverflowError):
            Schedule.from_lists([big], [[]])
        with pytest.raises(OverflowError):
            Schedule.from_lists([0], [[]], [(0, big)])


def test_steps_are_operators_or_rebuilds() -> None:
    # two_layers has 4 operators: code 4 rebuilds a0, code 5 rebuilds a1.
    problem = two_layers()
    schedule = Schedule.from_lists([0, 1, 5, 2, 4, 3], [[]] * 6)
    assert schedule.rebuilds(problem).tolist() == [-4, -3, 1, -2, 0, -1]
    names = [step_name(problem, code) for code in schedule.steps.tolist()]
    assert names == ["f0", "f1", "rebuild a1", "b1", "rebuild a0", "b0"]
