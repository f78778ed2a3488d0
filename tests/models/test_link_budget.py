"""Eq. 1 of the paper, on problems small enough to do it by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackswap.hardware.link import Link
from slackswap.models.link_budget import LinkBudget, link_budget
from slackswap.models.problem import Operator, Problem, Tensor


def problem(size_bytes: int = 400, metadata: dict[str, Any] | None = None) -> Problem:
    """One tensor that the backward pass reads; T_F = 3 s, D2H 20 bytes/s."""
    operators = [Operator("f", "forward", 3.0), Operator("b", "backward", 5.0)]
    return Problem.from_records("one tensor", operators, [Tensor("t", size_bytes, 0, (1,))], Link(20.0, 70.0), metadata)


def test_the_forward_pass_hides_what_the_link_copies_meanwhile() -> None:
    budget = link_budget(problem(metadata={"forward_flops": 1200.0}))
    # W T_F = 20 x 3 = 60 of A = 400 bytes.
    assert (budget.saved_bytes, budget.forward_s, budget.d2h_bytes_per_s) == (400, 3.0, 20.0)
    assert budget.hideable_bytes == 60.0
    assert budget.hideable_fraction == pytest.approx(0.15)
    # I = 1200 / 400 FLOP/B; beta = 1200 / 3 / 20 FLOP/B; I / beta = 0.15 again.
    assert budget.intensity_flops_per_byte == pytest.approx(3.0)
    assert budget.balance_flops_per_byte == pytest.approx(20.0)


def test_no_more_than_everything_hides() -> None:
    assert link_budget(problem(size_bytes=59)).hideable_fraction == 1.0


def test_where_nothing_is_saved_everything_hides() -> None:
    operators = [Operator("f", "forward", 3.0), Operator("b", "backward", 5.0)]
    budget = link_budget(Problem.from_records("empty", operators, [], Link(20.0, 20.0), {"forward_flops": 6.0}))
    assert (budget.saved_bytes, budget.hideable_fraction) == (0, 1.0)
    assert budget.intensity_flops_per_byte is None
    assert budget.balance_flops_per_byte == pytest.approx(0.1)  # 6 / 3 / 20


def test_an_empty_forward_pass_has_no_balance() -> None:
    budget = LinkBudget(saved_bytes=10, forward_s=0.0, d2h_bytes_per_s=20.0, forward_flops=6.0)
    assert budget.hideable_fraction == 0.0
    assert budget.balance_flops_per_byte is None


@pytest.mark.parametrize(
    "flops",
    [None, "1200", True, [1200], float("nan"), float("inf"), -1.0, 0, 10**400],
    ids=lambda value: repr(value)[:8],
)
def test_metadata_that_is_no_number_of_flops_counts_as_unknown(flops: object) -> None:
    budget = link_budget(problem(metadata={"forward_flops": flops}))
    assert budget.forward_flops is None
    assert budget.intensity_flops_per_byte is None
    assert budget.balance_flops_per_byte is None
    assert budget.hideable_fraction == pytest.approx(0.15)  # f needs no FLOPs


def test_flops_may_be_a_whole_number() -> None:
    assert link_budget(problem(metadata={"forward_flops": 1200})).intensity_flops_per_byte == 3.0


@given(
    saved_bytes=st.integers(1, 10**12),
    forward_s=st.floats(1e-6, 1e3),
    bandwidth=st.floats(1e3, 1e12),
    flops=st.floats(1.0, 1e18),
)
def test_both_forms_of_eq_1_agree(saved_bytes: int, forward_s: float, bandwidth: float, flops: float) -> None:
    budget = LinkBudget(saved_bytes, forward_s, bandwidth, flops)
    intensity, balance = budget.intensity_flops_per_byte, budget.balance_flops_per_byte
    assert intensity is not None
    assert balance is not None
    assert budget.hideable_fraction == pytest.approx(min(1.0, intensity / balance))
