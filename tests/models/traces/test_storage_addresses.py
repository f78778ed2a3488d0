"""Storage ids are addresses, which are used again: by numbers that no call made, and by temporaries inside of a call.

`x * 2` wraps 2 into a tensor, at an address where a saved tensor may have been: it is no reader of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from handwritten_trace import Call, backward, imported, tensor

NUMBER = tensor(10, 8)  # a double, at the address of what was storage 10


def step(*inside: Call, given: Sequence[list[Any]] = ()) -> list[Call]:
    """A forward pass whose storage 10 (4000 bytes) is gone before the backward pass, and a product in the backward pass."""
    x, weight, a, b, loss = tensor(1, 50), tensor(2, 70), tensor(10, 4000), tensor(11, 8000), tensor(12, 4)
    gradient, product = tensor(20, 8000), tensor(21, 8000)
    return [
        Call("aten::linear", [x, weight], [a], sequence=0),
        Call("aten::exp", [a], [b], sequence=1),
        Call("aten::sum", [b], [loss], sequence=2),
        backward(
            "ExpBackward0",
            Call("aten::mul", [gradient, b, *given], [product], children=inside),
            gradient=gradient,
            sequence=1,
        ),
    ]


def saved_bytes(folder: Path, *inside: Call, given: Sequence[list[Any]] = ()) -> list[int]:
    problem = imported(step(*inside, given=given), folder)
    return sorted(problem.tensor_bytes[problem.saved].tolist())


def test_a_number_inside_of_a_call_reads_nothing(tmp_path: Path) -> None:
    product = tensor(21, 8000)
    converted = tensor(30, 4)
    inside = Call(
        "aten::mul",
        [tensor(20, 8000), NUMBER],
        [product],
        # What was no reader outside is none further inside, where it was given.
        children=[
            Call("aten::to", [NUMBER], [converted], children=[Call("aten::copy_", [converted, NUMBER], [converted])])
        ],
    )
    assert saved_bytes(tmp_path, inside) == [8000]


def test_a_number_of_an_outermost_call_reads_nothing(tmp_path: Path) -> None:
    # No call returned 8 of the 4000 bytes; where a view of 8 bytes was returned, it is read.
    assert saved_bytes(tmp_path, given=[NUMBER]) == [8000]
    calls = step(given=[NUMBER])
    calls.insert(1, Call("aten::select", [tensor(10, 4000)], [NUMBER]))
    problem = imported(calls, tmp_path)
    assert sorted(problem.tensor_bytes[problem.saved].tolist()) == [4000, 8000]


def test_what_the_call_around_was_given_is_read(tmp_path: Path) -> None:
    inside = Call("aten::mul", [tensor(20, 8000), tensor(12, 4)], [tensor(21, 8000)])
    assert saved_bytes(tmp_path, inside, given=[tensor(12, 4)]) == [4, 8000]
    # The same, but nobody gave it: a number at the address of the loss, and still one where it is passed on.
    inside.children = [Call("aten::to", [tensor(12, 4)], [tensor(30, 4)])]
    assert saved_bytes(tmp_path, inside) == [8000]


def test_what_is_too_large_for_a_number_is_read(tmp_path: Path) -> None:
    # Autocast keeps a converted weight for later calls, which nobody gives them.
    cached = Call("aten::mul", [tensor(20, 8000), tensor(10, 4000)], [tensor(21, 8000)])
    assert saved_bytes(tmp_path, cached) == [4000, 8000]


def test_what_was_made_inside_of_the_call_is_no_number(tmp_path: Path) -> None:
    # Two sums of 8 bytes, born in the call: the first is read after the second, so both are there at once.
    made = [Call("aten::sum", [tensor(20, 8000)], [tensor(storage, 8)]) for storage in (40, 41)]
    used = Call("aten::div", [tensor(41, 8), tensor(40, 8)], [tensor(21, 8000)])
    problem = imported(step(*made, used), tmp_path)
    assert problem.workspace_bytes.max() == 8000 + 8 + 8


def test_a_result_has_its_own_size_where_a_larger_temporary_was_at_its_address(tmp_path: Path) -> None:
    # The call lists its result first (4000 bytes); inside, the address first holds 9000 bytes, which are copied and freed.
    inside = [
        Call("aten::empty", [], [tensor(10, 9000)]),
        Call("aten::copy_", [tensor(10, 9000), tensor(1, 50)], [tensor(10, 9000)]),
        Call("aten::empty", [], [tensor(10, 4000)]),
    ]
    calls = step(given=[tensor(10, 4000)])
    calls[0] = Call("aten::linear", [tensor(1, 50), tensor(2, 70)], [tensor(10, 4000)], children=inside, sequence=0)
    problem = imported(calls, tmp_path)
    assert sorted(problem.tensor_bytes[problem.saved].tolist()) == [4000, 8000]
    # What a call returns a part of is as large as it was made.
    calls[0].children = inside[2:]
    calls[0].outputs = [tensor(10, 3000)]
    assert sorted(imported(calls, tmp_path).tensor_bytes.tolist())[-2] == 4000
