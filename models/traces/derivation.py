"""What an importer could derive from a trace, and what it could not: the declaration that every imported problem carries.

Stands in ``metadata["derivation"]`` as plain JSON, so that it survives the problem file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from slackswap.models.problem import Problem

FactName = Literal["order", "times", "sizes", "producers", "readers", "first backward use", "rebuild costs"]
# In the order in which reports show them: operators first, then tensors.
FACTS: tuple[FactName, ...] = (
    "order",
    "times",
    "sizes",
    "producers",
    "readers",
    "first backward use",
    "rebuild costs",
)
KEY = "derivation"


@dataclass(frozen=True, slots=True)
class Fact:
    """How one fact came about.

    Attributes
    ----------
    exact, by_rule, unknown : how many operators (order, times) or saved tensors (the others) have it recorded, have it from
        a rule of ours, do not have it
    how : one sentence: where it is recorded, or which rule it follows
    """

    exact: int
    by_rule: int
    unknown: int
    how: str


@dataclass(frozen=True, slots=True)
class Dropped:
    """What the trace holds and the problem does not: how many calls or kernels, and their seconds if they are known."""

    what: str
    count: int
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Derivation:
    """The declaration of one imported problem.

    Attributes
    ----------
    kind : the kind of trace, as users call it: ``Kineto trace``, ``DTR log``
    facts : every name of `FACTS`
    dropped : communication, copies, optimizer, orphan kernels and the like
    warnings : sentences on what makes the numbers doubtful
    """

    kind: str
    facts: Mapping[FactName, Fact]
    dropped: Sequence[Dropped] = ()
    warnings: Sequence[str] = field(default=())

    def as_metadata(self) -> dict[str, Any]:
        """Return plain JSON values: the entry ``derivation`` of a problem's metadata."""
        return {
            "kind": self.kind,
            "facts": {
                name: {
                    "exact": self.facts[name].exact,
                    "by_rule": self.facts[name].by_rule,
                    "unknown": self.facts[name].unknown,
                    "how": self.facts[name].how,
                }
                for name in FACTS
            },
            "dropped": [{"what": item.what, "count": item.count, "seconds": item.seconds} for item in self.dropped],
            "warnings": list(self.warnings),
        }


def exact(count: int, how: str) -> Fact:
    """Return a fact that the trace records for all of `count`."""
    return Fact(count, 0, 0, how)


def by_rule(count: int, how: str) -> Fact:
    """Return a fact that follows from a rule for all of `count`."""
    return Fact(0, count, 0, how)


def rebuild_costs(problem: Problem, how: str) -> Fact:
    """Return the fact on rebuild costs, which always follow from a rule; what nothing rebuilds counts as unknown."""
    known = int((problem.saved & problem.rebuildable).sum())
    return Fact(0, known, int(problem.saved.sum()) - known, how)
