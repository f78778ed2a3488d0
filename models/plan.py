"""A plan: for every tensor one of keep, swap, recompute."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slackswap.hardware.input_error import InputError
from slackswap.models.problem import BoolArray, Problem, read_only

DecisionArray = npt.NDArray[np.int8]

KEEP, SWAP, RECOMPUTE = 0, 1, 2
LETTERS = "KSR"


@dataclass(frozen=True, eq=False)
class Plan:
    """One decision per tensor, in tensor order.

    Attributes
    ----------
    decisions : (m,) read-only int8 array of `KEEP`, `SWAP`, `RECOMPUTE`
    """

    decisions: DecisionArray

    def __post_init__(self) -> None:
        object.__setattr__(self, "decisions", decision_array(self.decisions))

    @classmethod
    def keep_everything(cls, problem: Problem) -> Plan:
        """Return the plan that frees nothing."""
        return cls(np.zeros(problem.n_tensors, np.int8))

    @classmethod
    def swap_everything(cls, problem: Problem) -> Plan:
        """Return the plan that swaps every saved tensor: it fits wherever some plan does."""
        return cls(np.where(problem.saved, SWAP, KEEP).astype(np.int8))

    @classmethod
    def from_letters(cls, letters: str) -> Plan:
        """Return the plan of a string such as ``"KSRK"``.

        Raises
        ------
        InputError
            A letter is none of K, S, R; the place names its position.
        """
        for position, letter in enumerate(letters):
            if letter not in LETTERS:
                raise InputError(f"'{letter}' is not a decision: use K, S or R", place=f"decisions[{position}]")
        return cls(np.array([LETTERS.index(letter) for letter in letters], np.int8))

    @property
    def letters(self) -> str:
        """One letter per tensor: K keep, S swap, R recompute."""
        return "".join(LETTERS[decision] for decision in self.decisions)


def decision_array(decisions: npt.ArrayLike) -> DecisionArray:
    """Return decisions as a read-only int8 array of their own: whoever made them may go on changing theirs.

    Raises
    ------
    InputError
        One of them is no whole number, or far from any decision: it would turn into another one.
    """
    given = np.asarray(decisions)
    with np.errstate(invalid="ignore"):  # NaN is refused below
        array = np.array(given, dtype=np.int8, order="C")
    if not np.array_equal(array, given):
        raise InputError("decisions are whole numbers: keep 0, swap 1, recompute 2", place="decisions")
    return read_only(array)


def check_plan(problem: Problem, plan: Plan) -> None:
    """Refuse a plan that cannot be lowered.

    Raises
    ------
    InputError
        Wrong length; swap or recompute of a tensor that is not saved; recompute of one without a rebuild.
    """
    decisions = plan.decisions
    if decisions.shape != (problem.n_tensors,):
        raise InputError(
            f"a plan for '{problem.name}' has {problem.n_tensors} decisions, this one has {decisions.size}",
            place="decisions",
        )
    for wrong, rule in broken_rules(problem, decisions):
        if wrong.any():
            t = int(np.argmax(wrong))
            raise InputError(f"tensor '{problem.tensor_names[t]}' {rule}", place=f"decisions[{t}]")


def broken_rules(problem: Problem, decisions: DecisionArray) -> list[tuple[BoolArray, str]]:
    """Return each rule for single decisions with a mask of those that break it; `decisions` has shape (..., m)."""
    return [
        (
            (decisions < KEEP) | (decisions > RECOMPUTE),
            "is decided by no known decision: use keep, swap or recompute",
        ),
        (
            (decisions != KEEP) & ~problem.saved,
            "is not saved for the backward pass, so it is neither swapped nor recomputed: keep it",
        ),
        (
            (decisions == RECOMPUTE) & ~problem.rebuildable,
            "has no rebuild, so it is not recomputed: keep or swap it",
        ),
    ]
