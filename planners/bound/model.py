"""The link-budget bound as a linear model (formulation A), seen at chosen operators.

A plan that runs is described at the starts of some operators, the *points*: which tensors have left the device by then, which
are coming back, how long each copy engine has worked, how much later than in the ideal step the operator starts. Every row
below holds for every plan that the event model can run, so the least cost is a lower bound. Tensors that look alike at all
points (same bytes, same rebuild, same order relative to the points) are counted, not told apart: a class has whole numbers of
them swapped and recomputed. That keeps a model of 500 tensors at a few hundred columns, and makes its whole-number form as
easy as its relaxation.

Rows, for points k, with T_k = start in the ideal step + X_k:

- X_k = X_{k-1} + stall_k + rebuilds that stand before k. A rebuild stands in one of its windows (`bound_facts`).
- D2H work F_k: F_k - F_{k-1} <= T_k - T_{k-1} (one engine); F_k <= work of swapped tensors produced before k;
  F_k >= work of those gone by k. A tensor is gone when its whole copy has ended and its last forward reader has started.
- H2D work E_k likewise, from the end of the forward pass (rule 6); at least the work of swapped tensors due by k, at most that of
  tensors whose buffer has been taken. A rebuild makes its swapped inputs due.
- Both engines at once are slower (rule 4): over a time T, D2H bytes + kappa H2D bytes <= T at full bandwidth, with
  kappa = (1 - duplex) / duplex.
- Memory at k: what the keep-everything plan uses, less what is gone and not coming back, less what is recomputed and between its
  forward and backward use, is at most the budget. What a rebuild reads is there from the rebuild on (`bound_chains`).

Stalls and rebuilds are what the model minimizes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from slackswap.models.plan import RECOMPUTE, SWAP, DecisionArray
from slackswap.models.problem import IntArray
from slackswap.planners.bound.chains import Chains, find_chains
from slackswap.planners.bound.facts import BoundFacts

if TYPE_CHECKING:
    import pulp

Terms = list[tuple["pulp.LpVariable", float]]

TIME_UNITS = 1000.0  # the ideal step is 1000 units of time, the keep-everything peak 10,000 units of memory
BYTE_UNITS = 10_000.0
ROUNDING = 1e-7  # share that the solver's tolerances may be off by
SLACK = ROUNDING * BYTE_UNITS  # in memory rows: a plan that fits to the byte must not fail for rounding


@dataclass(eq=False)
class TensorClass:
    """Tensors that look alike at every point, and the model's counts of them.

    Attributes
    ----------
    tensors : indices, in order of production
    produced, free, due : index of the first point after production, after the last forward use, at or after the first backward
        use; the number of points where there is none
    windows : indices of the first point at or after each window of the rebuild
    """

    tensors: IntArray
    produced: int
    free: int
    due: int
    windows: tuple[int, ...]
    swapped: pulp.LpVariable | None = None
    recomputed: pulp.LpVariable | None = None
    gone: dict[int, pulp.LpVariable] = field(default_factory=dict)
    coming: dict[int, pulp.LpVariable] = field(default_factory=dict)
    placed: dict[int, pulp.LpVariable] = field(default_factory=dict)

    @property
    def first(self) -> int:
        """A tensor that stands for all."""
        return int(self.tensors[0])


class _Alike(NamedTuple):
    n_bytes: int
    rebuild_s: float
    place: tuple[int, int, int, tuple[int, ...]]
    alone: int


class BoundModel:
    """Variables and time of the model at the given points; `link_budget_model` adds the other rows.

    Parameters are those of `link_budget_model`.
    """

    def __init__(
        self,
        facts: BoundFacts,
        budget_bytes: int,
        points: Sequence[int],
        reserved_bytes: Mapping[int, int],
        below_s: float,
    ) -> None:
        import pulp

        self._new_constraint = pulp.LpConstraint
        self._affine = pulp.LpAffineExpression
        self.model = pulp.LpProblem("link_budget", pulp.LpMinimize)
        self.facts = facts
        problem = facts.problem
        self.points = sorted(set(points))
        self.budget_bytes = budget_bytes
        self.reserved_bytes = reserved_bytes
        self.second = TIME_UNITS / problem.ideal_s if problem.ideal_s > 0 else 1.0
        most = int(facts.most_bytes.max())
        self.byte = BYTE_UNITS / most if most > 0 else 1.0
        self.most_cost = (below_s - problem.ideal_s) * self.second * (1.0 + ROUNDING) + ROUNDING
        self._counter = 0
        self.tight = [k for k, i in enumerate(self.points) if facts.most_bytes[i] > self.budget_at(i)]
        self.chains: Chains = find_chains(facts, [self.points[k] for k in self.tight])
        self.looks_ahead = len(self.points) == problem.n_operators
        self.classes = self._find_classes()
        self.class_of = {int(t): c for c in self.classes for t in c.tensors}
        self.delay: list[pulp.LpVariable] = []  # X_k
        self.stall: list[pulp.LpVariable] = []
        self.admissions: list[pulp.LpVariable] = []  # whether anything is admitted in a window (`bound_admission`)
        cost: Terms = []
        self._declare_classes(cost)
        self._early_rebuilds()
        self._declare_delays(cost)
        self.model.setObjective(self._affine(cost))
        if math.isfinite(self.most_cost):
            self.row(cost, high=self.most_cost)

    def budget_at(self, operator: int) -> int:
        """Bytes that may be in use at an operator."""
        return max(0, self.budget_bytes - self.reserved_bytes.get(operator, 0))

    # What is read of it

    def step_s(self, objective: float) -> float:
        """Step time for a bound on the objective, with the solver's tolerances taken off."""
        ideal_s = self.facts.problem.ideal_s
        return ideal_s + max(0.0, objective - ROUNDING * TIME_UNITS) / self.second * (1.0 - ROUNDING)

    def counts(self, tensor_class: TensorClass) -> tuple[float, float]:
        """How many of a class the solution swaps and recomputes."""
        swapped, recomputed = tensor_class.swapped, tensor_class.recomputed
        return (
            0.0 if swapped is None else max(0.0, float(swapped.varValue or 0.0)),
            0.0 if recomputed is None else max(0.0, float(recomputed.varValue or 0.0)),
        )

    def fractions(self) -> tuple[np.ndarray, np.ndarray]:
        """(m,) swapped and recomputed share of each tensor, the same for all of a class."""
        swap, recompute = (np.zeros(self.facts.problem.n_tensors) for _ in range(2))
        for one in self.classes:
            swapped, recomputed = self.counts(one)
            swap[one.tensors] = swapped / one.tensors.size
            recompute[one.tensors] = recomputed / one.tensors.size
        return swap, recompute

    def start(self, decisions: DecisionArray) -> list[tuple[pulp.LpVariable, float]]:
        """Return how many of each class a plan swaps and recomputes, for a solver to start from."""
        counts: list[tuple[pulp.LpVariable, float]] = []
        for one in self.classes:
            for variable, decision in ((one.swapped, SWAP), (one.recomputed, RECOMPUTE)):
                if variable is not None:
                    counts.append((variable, float((decisions[one.tensors] == decision).sum())))
        return counts

    # Classes

    def _find_classes(self) -> list[TensorClass]:
        problem, points, facts = self.facts.problem, np.array(self.points), self.facts
        produced = np.searchsorted(points, problem.producer, side="right")
        free = np.searchsorted(points, problem.last_forward_use, side="right")
        due = np.searchsorted(points, problem.first_backward_reader, side="left")
        groups: dict[_Alike, list[int]] = defaultdict(list)
        for t in map(int, facts.candidates):
            windows = tuple(sorted({int(np.searchsorted(points, i)) for i in facts.rebuild_windows[t]}))
            place = (int(produced[t]), int(free[t]), int(due[t]), windows)
            alone = t if t in self.chains.members else -1
            groups[_Alike(int(problem.tensor_bytes[t]), float(problem.rebuild_s[t]), place, alone)].append(t)
        return [TensorClass(np.array(tensors), *alike.place) for alike, tensors in groups.items()]

    def variable(self, high: float | None = None, *, whole: bool = False) -> pulp.LpVariable:
        """Return a new variable from 0 to `high`."""
        self._counter += 1
        return self.model.add_variable(f"x{self._counter}", 0, high, "Integer" if whole else "Continuous")

    def row(self, terms: Terms, low: float | None = None, high: float | None = None) -> None:
        """Add low <= terms <= high; a variable may stand in several terms."""
        summed: dict[pulp.LpVariable, float] = {}
        for variable, factor in terms:  # PuLP would keep the last
            summed[variable] = summed.get(variable, 0.0) + factor
        expression = self._affine(list(summed.items()))
        if low is not None and low == high:
            self.model.addConstraint(self._new_constraint(expression, 0, rhs=low))
            return
        if high is not None:
            self.model.addConstraint(self._new_constraint(expression, -1, rhs=high))
        if low is not None:
            self.model.addConstraint(self._new_constraint(expression, 1, rhs=low))

    def _declare_classes(self, cost: Terms) -> None:
        self._rebuilds: list[Terms] = [[] for _ in range(len(self.points) + 1)]  # time before each point
        for one in self.classes:
            size = one.tensors.size
            gaps = [k for k in self.looked_at if one.free <= k < one.due]
            if not gaps:
                continue  # no row ever sees it gone
            one.swapped = self.variable(size, whole=True)
            freed: Terms = [(one.swapped, 1.0)]
            if self.facts.can_rebuild[one.first]:
                one.recomputed = self.variable(self._affordable(one), whole=True)
                freed.append((one.recomputed, 1.0))
                self._place_rebuilds(one, cost)
            self.row(freed, high=size)
            self._declare_absence(one, gaps)

    @cached_property
    def looked_at(self) -> list[int]:
        """Points at which it matters what is on the device."""
        if not self.looks_ahead:
            return self.tight
        return sorted({*self.tight, *range(self.facts.problem.n_forward, len(self.points))})

    def _affordable(self, one: TensorClass) -> int:
        """Most tensors of a class that a plan below the known step recomputes."""
        each = float(self.facts.problem.rebuild_s[one.first]) * self.second
        return (
            min(one.tensors.size, int(self.most_cost / each)) if each > 0 and self.most_cost < 1e9 else one.tensors.size
        )

    def _place_rebuilds(self, one: TensorClass, cost: Terms) -> None:
        assert one.recomputed is not None
        seconds = float(self.facts.problem.rebuild_s[one.first]) * self.second
        cost.append((one.recomputed, seconds))
        if len(one.windows) == 1:
            one.placed[one.windows[0]] = one.recomputed
        else:
            one.placed = {window: self.variable(one.tensors.size) for window in one.windows}
            self.row([*((placed, 1.0) for placed in one.placed.values()), (one.recomputed, -1.0)], 0.0, 0.0)
        for window, placed in one.placed.items():
            self._rebuilds[window].append((placed, seconds))

    def _early_rebuilds(self) -> None:
        """Before its own first backward reader a tensor is rebuilt only where a rebuild that reads it stands."""
        for one in self.classes:
            early = [window for window in one.placed if window != one.due]
            members = set(one.tensors.tolist())
            users = {user for t in members for user in self.facts.rebuilt_from[t]} if early else set()
            if not all(map(self._is_counted, users)):
                continue  # a rebuild that the model does not count may stand anywhere
            most_read: dict[int, int] = defaultdict(int)  # by class of users, named by its first tensor
            for user in users:
                read = members.intersection(self.facts.problem.rebuild_inputs_of(user).tolist())
                first = self.class_of[user].first
                most_read[first] = max(most_read[first], len(read))
            for window in early:
                placed = ((self.class_of[first].placed.get(window), most) for first, most in most_read.items())
                terms = [(rebuilt, -float(most)) for rebuilt, most in placed if rebuilt is not None]
                self.row([(one.placed[window], 1.0), *terms], high=0.0)

    @cached_property
    def uncounted_windows(self) -> frozenset[int]:
        """Points before which a rebuild may stand that the model does not count: it frees nothing at any point."""
        uncounted = (t for t in np.flatnonzero(self.facts.can_rebuild).tolist() if not self._is_counted(t))
        return frozenset(
            int(np.searchsorted(self.points, window)) for t in uncounted for window in self.facts.rebuild_windows[t]
        )

    def _is_counted(self, tensor: int) -> bool:
        return tensor in self.class_of and bool(self.class_of[tensor].placed)

    def _declare_absence(self, one: TensorClass, gaps: list[int]) -> None:
        assert one.swapped is not None
        size, before = one.tensors.size, None
        for k in gaps:
            last = k == gaps[-1]
            one.gone[k] = gone = one.swapped if last else self.variable(size, whole=True)
            if not last:
                self.row([(gone, 1.0), (one.swapped, -1.0)], high=0.0)
            if before is not None:
                self.row([(gone, 1.0), (one.gone[before], -1.0)], low=0.0)
            if self.points[k] >= self.facts.problem.n_forward:
                one.coming[k] = coming = self.variable(size, whole=True)
                self.row([(coming, 1.0), (gone, -1.0)], high=0.0)
                if before in one.coming:
                    self.row([(coming, 1.0), (one.coming[before], -1.0)], low=0.0)
            before = k

    # Time

    def _declare_delays(self, cost: Terms) -> None:
        for k in range(len(self.points)):
            delay, stall = self.variable(), self.variable()
            before: Terms = [(self.delay[k - 1], -1.0)] if k else []
            rebuilds = [(variable, -seconds) for variable, seconds in self._rebuilds[k]]
            self.row([(delay, 1.0), (stall, -1.0), *before, *rebuilds], 0.0, 0.0)
            self.delay.append(delay)
            self.stall.append(stall)
            cost.append((stall, 1.0))

    def elapsed(self, k: int) -> tuple[Terms, float]:
        """-(T_k - T_{k-1}) as terms, and its constant part with the opposite sign."""
        start_s = self.facts.start_s
        began_s = start_s[self.points[k - 1]] if k else 0.0
        before: Terms = [(self.delay[k - 1], 1.0)] if k else []
        return [(self.delay[k], -1.0), *before], float(start_s[self.points[k]] - began_s) * self.second
