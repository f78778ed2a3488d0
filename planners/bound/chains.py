"""Chains of rebuilds across an operator: what a rebuild has read stays on the device until its own backward use."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from slackswap.planners.bound.facts import BoundFacts

MAX_CHAIN = 64  # tensors told apart at one operator; without the rest the bound is weaker, not wrong


@dataclass(frozen=True, slots=True)
class Users:
    """Recomputable tensors whose rebuild reads a source.

    Attributes
    ----------
    present : those whose first backward reader has started, so that they have been rebuilt if they are recomputed
    perhaps : those that may have been rebuilt early, as an input of another rebuild
    """

    present: list[int] = field(default_factory=list)
    perhaps: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Chains:
    """For each operator, the sources in their gap there and their users; `members` are told apart in the model."""

    at: dict[int, dict[int, Users]]
    members: frozenset[int]


def find_chains(facts: BoundFacts, operators: Iterable[int]) -> Chains:
    """Return the chains that cross the starts of the given operators."""
    at: dict[int, dict[int, Users]] = {}
    members: set[int] = set()
    for operator in operators:
        if operator >= facts.problem.n_forward:
            found = _chains_at(facts, operator)
            if found:
                at[operator] = found
                members |= found.keys()
                members |= {user for users in found.values() for user in (*users.present, *users.perhaps)}
    return Chains(at, frozenset(members))


def _chains_at(facts: BoundFacts, operator: int) -> dict[int, Users]:
    problem = facts.problem
    crossing: dict[int, Users] = {}

    def in_gap(t: int) -> bool:
        return bool(facts.is_candidate[t] and problem.last_forward_use[t] < operator < problem.first_backward_reader[t])

    rebuilt = [
        int(t) for t in facts.candidates if facts.can_rebuild[t] and problem.first_backward_reader[t] <= operator
    ]
    # What was rebuilt long ago has sources that have been used since.
    frontier = [(t, True) for t in rebuilt]
    while frontier and len(crossing) < MAX_CHAIN:
        user, present = frontier.pop()
        for source in filter(in_gap, map(int, problem.rebuild_inputs_of(user))):
            users = crossing.setdefault(source, Users())
            known = users.present if present else users.perhaps
            if user in known:
                continue
            known.append(user)
            if facts.can_rebuild[source]:
                frontier.append((source, False))
    return crossing
