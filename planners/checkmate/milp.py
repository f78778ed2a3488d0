"""Formulation B (Checkmate's MILP, Jain et al. 2020) over merged stages, in PuLP; HiGHS solves it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slackswap.planners.checkmate.graph import RematerializationGraph
from slackswap.planners.checkmate.schedule import StagePlan, lives
from slackswap.planners.checkmate.stages import Stages

if TYPE_CHECKING:
    import pulp


@dataclass(eq=False)
class StagedModel:
    """The rows of formulation B for some stages (`checkmate_stages`).

    Columns, for each stage s and each tensor t that was produced before it and can still serve: ``kept[s, t]`` (S in the
    formulation), None where it is 1 in any case because nothing brings the tensor back, and ``rebuilt[s, t]`` (R). Stages in
    `detailed` have the columns Free and U too.

    Parameters
    ----------
    max_cost : cost of a schedule that is known; rebuilds that cost more have no columns
    """

    graph: RematerializationGraph
    stages: Stages
    max_cost: int | None = None
    model: pulp.LpProblem = field(init=False)
    kept: dict[tuple[int, int], pulp.LpVariable | None] = field(init=False, default_factory=dict)
    rebuilt: dict[tuple[int, int], pulp.LpVariable] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        import pulp

        self.model = pulp.LpProblem("checkmate", pulp.LpMinimize)
        self._n_rows = 0
        self._present: list[list[int]] = [[] for _ in range(len(self.stages.ends) + 1)]
        self._add_columns()
        for s, (begin, end) in enumerate(zip(self.stages.begins, self.stages.ends, strict=True)):
            self._add_retention(s)
            self._add_reads(s, begin, end)
            self._add_memory(s, end)
            if end in self.stages.detailed:
                self._add_details(s, end)

    def _add_columns(self) -> None:
        graph = self.graph
        worth = graph.worth_rebuilding(self.max_cost)
        until = graph.useful_until(worth)
        costs = []
        for s, begin in enumerate(self.stages.begins):
            for t in range(graph.n_tensors):
                if not graph.sizes[t] or not graph.producers[t] < begin <= until[t]:
                    continue
                self._present[s].append(t)
                stays = not worth[t] and begin <= graph.last_reader[t]
                self.kept[s, t] = None if stays else self._column(f"kept_{s}_{t}", whole=True)
                if worth[t]:
                    self.rebuilt[s, t] = self._column(f"rebuilt_{s}_{t}", whole=True)
                    costs.append((self.rebuilt[s, t], graph.costs[t]))
        self._set_objective(costs)

    def _set_objective(self, costs: Sequence[tuple[pulp.LpVariable, int]]) -> None:
        import pulp

        self.model.setObjective(pulp.LpAffineExpression(list(costs)))

    def _column(self, name: str, *, upper: float = 1.0, whole: bool = False) -> pulp.LpVariable:
        return self.model.add_variable(name, 0, upper, "Integer" if whole else "Continuous")

    def _row(self, terms: Iterable[tuple[pulp.LpVariable, float]], *, at_most: float) -> None:
        import pulp

        self._n_rows += 1
        name = f"r{self._n_rows}"
        row = pulp.LpConstraint(pulp.LpAffineExpression(list(terms)), pulp.LpConstraintLE, name=name, rhs=at_most)
        self.model.addConstraint(row)

    def _rebuilds(self, s: int) -> list[int]:
        return [t for t in self._present[s] if (s, t) in self.rebuilt]

    def _kept(self, s: int, t: int) -> tuple[int, list[tuple[pulp.LpVariable, int]]]:
        """``kept[s, t]`` as a constant and terms."""
        if (s, t) not in self.kept:
            return 0, []
        column = self.kept[s, t]
        return (1, []) if column is None else (0, [(column, 1)])

    def _there(self, s: int, t: int) -> tuple[int, list[tuple[pulp.LpVariable, int]]]:
        """Whether tensor t is on the device at some time of stage s: kept or rebuilt."""
        constant, terms = self._kept(s, t)
        rebuilt = [(self.rebuilt[s, t], 1)] if (s, t) in self.rebuilt else []
        return constant, terms + rebuilt

    def _add_retention(self, s: int) -> None:
        """S[s+1,i] <= S[s,i] + R[s,i], for what was produced before stage s; and nothing is rebuilt that is there."""
        for t in self._present[s]:
            constant, there = self._there(s, t)
            if len(there) == 2:
                self._row(there, at_most=1)
            if (s + 1, t) in self.kept and not constant:
                later_constant, later = self._kept(s + 1, t)
                self._row([*later, *_negative(there)], at_most=-later_constant)

    def _add_reads(self, s: int, begin: int, end: int) -> None:
        """R[s,v] <= R[s,u] + S[s,u] for the inputs u of a rebuild; operators find what they read in the same way."""
        graph = self.graph
        for t in self._rebuilds(s):
            for source in graph.inputs[t]:
                constant, there = self._there(s, source)
                if not constant:
                    self._row([(self.rebuilt[s, t], 1), *_negative(there)], at_most=0)
        read = {t for i in range(begin, end + 1) for t in graph.reads[i] if graph.producers[t] < begin}
        for t in sorted(read):
            constant, there = self._there(s, t)
            if not constant:
                self._row(_negative(there), at_most=-1)

    def _add_memory(self, s: int, end: int) -> None:
        """What stays past the last operator of the stage, what that one reads and what it allocates fit the budget."""
        graph = self.graph
        beside = {*graph.reads[end], *graph.writes[end]}
        used = graph.allocations[end] + sum(graph.sizes[t] for t in graph.reads[end])
        terms = []
        for t in (t for t in self._present[s + 1] if t not in beside):
            constant, column = self._kept(s + 1, t)
            used += constant * graph.sizes[t]
            terms += [(variable, graph.sizes[t]) for variable, _ in column]
        if used + sum(size for _, size in terms) > graph.budget:
            self._row(terms, at_most=graph.budget - used)

    def _add_details(self, s: int, operator: int) -> None:
        """U[t,k+1] = U[t,k] + m R[t,k+1] - sum of m Free[t,(i,k)]; rebuilds in tensor order, then the operator."""
        graph = self.graph
        rebuilds = self._rebuilds(s)
        freed = self._add_frees(s, operator, rebuilds)
        used, change = 0, list[tuple["pulp.LpVariable", float]]()
        for t in self._present[s]:
            constant, column = self._kept(s, t)
            used += constant * graph.sizes[t]
            change += [(variable, graph.sizes[t]) for variable, _ in column]
        for t in rebuilds:
            in_use = self._column(f"used_{s}_{t}", upper=graph.budget)
            change.append((self.rebuilt[s, t], graph.sizes[t]))
            # Equality is not needed: nothing gains from a U above what is in use.
            self._row([*change, (in_use, -1)], at_most=-used)
            if graph.rebuild_workspaces[t]:
                workspace = (self.rebuilt[s, t], graph.rebuild_workspaces[t])
                self._row([(in_use, 1), workspace], at_most=graph.budget)
            used, change = 0, [(in_use, 1), *((free, -graph.sizes[i]) for i, free in freed.get(t, ()))]
        self._row(change, at_most=graph.budget - graph.allocations[operator] - used)

    def _add_frees(
        self, s: int, operator: int, rebuilds: Sequence[int]
    ) -> dict[int, list[tuple[int, pulp.LpVariable]]]:
        """Free[t,(i,k)]: only after k is evaluated, if no later consumer is, and if i does not stay for the next stage."""
        graph = self.graph
        users: dict[int, list[int]] = {}
        for t in rebuilds:
            for source in graph.inputs[t]:
                users.setdefault(source, []).append(t)
        freed: dict[int, list[tuple[int, pulp.LpVariable]]] = {}
        for t, consumers in users.items():
            later_constant, later = self._kept(s + 1, t)
            if t in graph.reads[operator] or later_constant:
                continue
            columns: list[tuple[pulp.LpVariable, float]] = []
            for place, consumer in enumerate(consumers):
                free = self._column(f"free_{s}_{t}_{consumer}")
                columns.append((free, 1))
                freed.setdefault(consumer, []).append((t, free))
                self._row([(free, 1), (self.rebuilt[s, consumer], -1)], at_most=0)
                for other in consumers[place + 1 :]:
                    self._row([*columns, (self.rebuilt[s, other], 1)], at_most=1)
            constant, there = self._there(s, t)
            self._row([*columns, *later, *_negative(there)], at_most=constant)
        return freed

    def start(self, steps: Sequence[int]) -> list[tuple[pulp.LpVariable, float]]:
        """Return the columns' values in a known list of steps, for a warm start."""
        n = self.graph.n_operators
        place = {step: k for k, step in enumerate(steps) if step < n}
        ends = [-1, *(place[end] for end in self.stages.ends)]
        stays = dict.fromkeys(self.kept, 0.0)
        again = dict.fromkeys(self.rebuilt, 0.0)
        for life in lives(self.graph, steps):
            for s in range(len(self.stages.ends)):
                if life.first <= ends[s] < life.last:
                    stays[s, life.tensor] = 1.0
                if ends[s] < life.first < ends[s + 1] and steps[life.first] >= n:
                    again[s, life.tensor] = 1.0
        kept = [
            (column, stays[key] * (1.0 - again.get(key, 0.0)))
            for key, column in self.kept.items()
            if column is not None
        ]
        return kept + [(column, again[key]) for key, column in self.rebuilt.items()]

    def plan(self, threshold: float = 0.5) -> StagePlan:
        """Return what the solved columns say, or round to."""
        count = len(self.stages.ends)
        kept: list[set[int]] = [set() for _ in range(count)]
        rebuilt: list[set[int]] = [set() for _ in range(count)]
        for (s, t), column in self.kept.items():
            if column is None or float(column.varValue or 0.0) >= threshold:
                kept[s].add(t)
        for (s, t), again in self.rebuilt.items():
            if float(again.varValue or 0.0) >= threshold:
                rebuilt[s].add(t)
        in_order = frozenset(s for s, end in enumerate(self.stages.ends) if end in self.stages.detailed)
        return StagePlan(self.stages.ends, tuple(map(frozenset, kept)), tuple(map(frozenset, rebuilt)), in_order)


def _negative(terms: Iterable[tuple[pulp.LpVariable, int]]) -> list[tuple[pulp.LpVariable, int]]:
    return [(column, -factor) for column, factor in terms]
