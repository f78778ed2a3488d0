"""How the events of a thread nest into calls, where whole microseconds leave it open."""

from __future__ import annotations

from typing import Any

import pytest

from slackswap.models.traces.pytorch import call_tree
from slackswap.models.traces.pytorch.call_tree import nest_calls
from slackswap.models.traces.pytorch.kineto_events import CpuOperator


def event(name: str, start_us: float, duration_us: float, index: int) -> CpuOperator:
    return CpuOperator(name, (1, 1), start_us, start_us + duration_us, index, -1, 0)


def shape_of(*events: CpuOperator) -> Any:
    """Names, each with what is nested in it."""

    def shown(calls: list[call_tree.Call]) -> Any:
        return [(call.event.name, shown(call.children)) if call.children else call.event.name for call in calls]

    return shown(nest_calls(events)[(1, 1)])


def test_equal_starts_nest_by_length_and_equal_intervals_by_index() -> None:
    # Whole microseconds: all start at 5. The file's order is not the calls' order.
    outer, middle, inner = event("outer", 5, 9, 3), event("middle", 5, 4, 1), event("inner", 5, 4, 2)
    assert shape_of(inner, middle, outer) == [("outer", [("middle", ["inner"])])]
    swapped = event("middle", 5, 4, 2), event("inner", 5, 4, 1)
    assert shape_of(*swapped, outer) == [("outer", [("inner", ["middle"])])]


def test_rounding_may_end_a_child_after_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    # 5.9 + 4.0 and 7.2 + 2.6 end at 9.9 and 9.8; cut to whole microseconds they end at 9 and 9, or rounded at 10.
    parent, child, later = event("parent", 5, 4, 0), event("child", 7, 3, 1), event("later", 9, 2, 2)
    assert shape_of(parent, child, later) == [("parent", ["child"]), "later"]
    monkeypatch.setattr(call_tree, "ROUNDING_US", 0.0)
    assert shape_of(parent, child, later) == ["parent", "child", "later"]


def test_the_last_call_inside_may_seem_to_start_at_the_end_and_take_no_time() -> None:
    zeros, empty, zero = event("zeros", 5, 4, 0), event("empty", 5, 3, 1), event("zero_", 9, 0, 2)
    assert shape_of(zeros, empty, zero) == [("zeros", ["empty", "zero_"])]
    assert shape_of(zeros, empty, event("next", 9, 1, 2)) == [("zeros", ["empty"]), "next"]
    assert shape_of(event("view", 9, 0, 0), event("as_strided", 9, 0, 1)) == [("view", ["as_strided"])]


def test_threads_nest_apart() -> None:
    there = CpuOperator("there", (1, 2), 6, 7, 1, -1, 0)
    assert {thread: len(calls) for thread, calls in nest_calls([event("here", 5, 9, 0), there]).items()} == {
        (1, 1): 1,
        (1, 2): 1,
    }
