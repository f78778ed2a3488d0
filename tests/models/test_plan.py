"""Plans: one decision per tensor, read-only, and refused where a problem cannot carry them out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from instances import chain, decisions, one_operator, problems, two_layers

from slackswap.hardware.input_error import InputError
from slackswap.models.plan import KEEP, LETTERS, RECOMPUTE, SWAP, Plan, check_plan


def test_letters_and_decisions() -> None:
    plan = Plan.from_letters("KSR")
    assert plan.decisions.tolist() == [KEEP, SWAP, RECOMPUTE]
    assert plan.decisions.dtype == np.int8
    assert plan.letters == "KSR"


@given(st.text(LETTERS))
def test_letters_make_the_round_trip(letters: str) -> None:
    assert Plan.from_letters(letters).letters == letters


@pytest.mark.parametrize(
    ("letters", "place", "letter"),
    [
        ("KXK", "decisions[1]", "X"),
        ("s", "decisions[0]", "s"),
        ("KK ", "decisions[2]", " "),
        ("K\n", "decisions[1]", "\n"),
    ],
)
def test_other_letters_are_refused(letters: str, place: str, letter: str) -> None:
    with pytest.raises(InputError, match="is not a decision: use K, S or R") as refused:
        Plan.from_letters(letters)
    assert refused.value.place == place
    assert refused.value.rule.startswith("'" + letter.strip())
    assert len(str(refused.value).splitlines()) == 1


def test_keep_everything_has_a_decision_per_tensor() -> None:
    assert Plan.keep_everything(chain(5)).letters == "KKKKK"
    assert Plan.keep_everything(one_operator()).letters == "K"


def test_decisions_are_a_read_only_copy() -> None:
    mine = np.array([KEEP, SWAP], np.int8)
    plan = Plan(mine)
    mine[0] = RECOMPUTE  # a search goes on changing its own array
    assert plan.letters == "KS"
    assert mine.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        plan.decisions[0] = SWAP


@pytest.mark.parametrize(
    ("decided", "place", "rule"),
    [
        # two_layers has two tensors.
        ([], "decisions", "a plan for 'two layers' has 2 decisions, this one has 0"),
        ([0], "decisions", "a plan for 'two layers' has 2 decisions, this one has 1"),
        ([0, 0, 0], "decisions", "a plan for 'two layers' has 2 decisions, this one has 3"),
        ([[0, 0]], "decisions", "a plan for 'two layers' has 2 decisions, this one has 2"),
        ([0, 3], "decisions[1]", "tensor 'a1' is decided by no known decision: use keep, swap or recompute"),
        ([-1, 0], "decisions[0]", "tensor 'a0' is decided by no known decision: use keep, swap or recompute"),
    ],
)
def test_each_rule_names_its_place(decided: list[int], place: str, rule: str) -> None:
    with pytest.raises(InputError) as refused:
        check_plan(two_layers(), Plan(np.array(decided, np.int8)))
    assert (refused.value.place, refused.value.rule) == (place, rule)


@pytest.mark.parametrize("letter", ["S", "R"])
def test_only_saved_tensors_are_freed(letter: str) -> None:
    # Nobody reads a0, so it is not saved for the backward pass.
    with pytest.raises(InputError, match=r"'a0' is not saved for the backward pass, .*: keep it"):
        check_plan(one_operator(), Plan.from_letters(letter))


def test_only_what_has_a_rebuild_is_recomputed() -> None:
    # Tensor 0 of a chain has no rebuild.
    check_plan(chain(2), Plan.from_letters("SR"))
    with pytest.raises(InputError, match="'a0' has no rebuild, so it is not recomputed: keep or swap it"):
        check_plan(chain(2), Plan.from_letters("RK"))


@given(st.data())
def test_legal_letters_pass(data: st.DataObject) -> None:
    problem = data.draw(problems(max_forward=4))
    check_plan(problem, Plan.from_letters(data.draw(decisions(problem))))
