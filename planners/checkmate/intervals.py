"""Formulation C: retention intervals (MOCCASIN, Bartan et al. 2023), in CP-SAT.

Each tensor has at most C stays on the device instead of a decision for every stage. Evaluations stand on a grid: in stage q,
before operator q, there is a place for a rebuild of each tensor that exists by then, in tensor order, and then one for the
operator. A stay begins at a place of its tensor and ends after a place that reads it. With as many stays as rebuilds this is
formulation B; with two (the default), a tensor is rebuilt at most once.

OR-Tools and highspy each bring a HiGHS of their own, and the second of them to be imported into a process fails. So this
module runs in a process of its own (`process`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import metadata
from typing import TYPE_CHECKING, Any

from slackswap.planners.checkmate.finding import Finding, Report
from slackswap.planners.checkmate.graph import RematerializationGraph
from slackswap.planners.checkmate.schedule import Life, Steps, fits, lives, pruned, without_waste

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

WORKERS = 8  # CP-SAT's strategies complement each other; fewer workers prove less, even on two cores
_PEAK_SHARE = 0.5  # of the time, for a first schedule that fits, where none is known


@dataclass(frozen=True, eq=False)
class _Stay:
    """One stay of a tensor: CP-SAT's variables; the first one begins at its producer and is always there."""

    tensor: int
    number: int
    first: Any
    last: Any  # exclusive
    there: Any

    @property
    def is_first(self) -> bool:
        return self.number == 0


@dataclass(frozen=True, eq=False)
class Grid:
    """The places at which evaluations may stand.

    Attributes
    ----------
    operator : (n,) place of each operator
    rebuild : place of the rebuild of tensor t in stage q, by (q, t)
    """

    operator: tuple[int, ...]
    rebuild: dict[tuple[int, int], int]

    @classmethod
    def of(cls, graph: RematerializationGraph, worth: Sequence[bool]) -> Grid:
        """Place operators, and rebuilds of tensors that are `worth` it where they can still serve a reader."""
        until = graph.useful_until(worth)
        operator, rebuild, place = [], {}, 0
        tensors = [t for t in range(graph.n_tensors) if worth[t]]
        for q in range(graph.n_operators):
            for t in tensors:
                if graph.producers[t] < q <= until[t]:
                    rebuild[q, t] = place
                    place += 1
            operator.append(place)
            place += 1
        return cls(tuple(operator), rebuild)

    def places_of(self, tensor: int) -> list[int]:
        """Places at which a tensor may be evaluated again."""
        return [place for (_, t), place in self.rebuild.items() if t == tensor]


@dataclass(eq=False)
class IntervalModel:
    """Variables and constraints of formulation C.

    Parameters
    ----------
    copies : most stays of a tensor; more for what a known schedule evaluates more often
    known : steps that fit, to begin with, or None
    """

    graph: RematerializationGraph
    copies: int = 2
    known: Steps | None = None
    model: cp_model.CpModel = field(init=False)
    grid: Grid = field(init=False)
    stays: dict[int, list[_Stay]] = field(init=False, default_factory=dict)
    _sizes: list[tuple[_Stay, Any]] = field(init=False, default_factory=list)
    _serves: list[tuple[Any, _Stay, int | _Stay]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        from ortools.sat.python import cp_model

        graph = self.graph
        self._cp_model = cp_model
        self.model = cp_model.CpModel()
        self._worth = graph.worth_rebuilding(None if self.known is None else graph.rebuild_cost(self.known))
        self.grid = Grid.of(graph, self._worth)
        self._readers: dict[int, list[int]] = {t: [] for t in range(graph.n_tensors)}
        for (_, t), place in self.grid.rebuild.items():
            for source in graph.inputs[t]:
                self._readers[source].append(place)
        for operator, row in enumerate(graph.reads):
            for t in row:
                self._readers[t].append(self.grid.operator[operator])
        self._known_lives: dict[int, list[Life]] = {}
        for life in lives(graph, self.known or []):
            self._known_lives.setdefault(life.tensor, []).append(life)
        for t in range(graph.n_tensors):
            if graph.sizes[t]:
                self.stays[t] = self._add_stays(t)
        self._add_reads()
        self.cost = self._cp_model.LinearExpr.weighted_sum(
            [stay.there for stay in self._rebuilds()], [graph.costs[stay.tensor] for stay in self._rebuilds()]
        )
        if self.known is not None:
            self.model.add(self.cost <= graph.rebuild_cost(self.known))

    def _rebuilds(self) -> list[_Stay]:
        return [stay for row in self.stays.values() for stay in row if not stay.is_first]

    def _add_stays(self, t: int) -> list[_Stay]:
        model, graph = self.model, self.graph
        begin = self.grid.operator[graph.producers[t]]
        # Whole ranges: the holes between the places that read it cost CP-SAT minutes, and nothing gains from a later end.
        ends = self._cp_model.Domain(begin + 1, max([begin, *self._readers[t]]) + 1)
        stays = [_Stay(t, 0, begin, model.new_int_var_from_domain(ends, f"last_{t}_0"), 1)]
        places = self.grid.places_of(t) if self._worth[t] else []
        if not places:
            return stays
        copies = max(self.copies, len(self._known_lives.get(t, ())))
        for k in range(1, copies):
            first = model.new_int_var_from_domain(self._domain(places), f"first_{t}_{k}")
            last = model.new_int_var_from_domain(ends, f"last_{t}_{k}")
            there = model.new_bool_var(f"there_{t}_{k}")
            before = stays[-1]
            # Stays of one tensor look alike: the earlier ones are taken first.
            model.add(before.last <= first).only_enforce_if(there)
            if not before.is_first:
                model.add_implication(there, before.there)
            stays.append(_Stay(t, k, first, last, there))
        return stays

    def _domain(self, places: Sequence[int]) -> cp_model.Domain:
        return self._cp_model.Domain.from_values(sorted(set(places)))

    def _add_reads(self) -> None:
        """At each evaluation, some stay of everything it reads has begun before and ends after."""
        graph = self.graph
        for operator, row in enumerate(graph.reads):
            for t in row:
                self._add_read(t, self.grid.operator[operator])
        for stay in self._rebuilds():
            for source in graph.inputs[stay.tensor]:
                self._add_read(source, stay)

    def _add_read(self, t: int, reader: int | _Stay) -> None:
        """`reader` is the place of an operator, or the stay that a rebuild begins."""
        model = self.model
        place, reader_is_there = (reader, None) if isinstance(reader, int) else (reader.first, reader.there)
        if len(self.stays[t]) == 1:
            row = model.add(self.stays[t][0].last >= place + 1)
            if reader_is_there is not None:
                row.only_enforce_if(reader_is_there)
            return
        serves = []
        for stay in self.stays[t]:
            literal = model.new_bool_var("")
            serves.append(literal)
            self._serves.append((literal, stay, reader))
            model.add(stay.last >= place + 1).only_enforce_if(literal)
            if not stay.is_first:
                model.add(stay.first + 1 <= place).only_enforce_if(literal)
                model.add_implication(literal, stay.there)
        model.add_bool_or(serves if reader_is_there is None else [*serves, reader_is_there.negated()])

    def add_memory(self, capacity: Any) -> None:
        """All stays, and the temporaries of operators and rebuilds, fit into `capacity` at every place."""
        model, graph = self.model, self.graph
        intervals, demands = [], []
        for t, row in self.stays.items():
            for stay in row:
                there = True if stay.is_first else stay.there
                size = model.new_int_var(1, self.grid.operator[-1] + 1, "")
                interval = model.new_optional_interval_var(stay.first, size, stay.last, there, "")
                self._sizes.append((stay, size))
                intervals.append(interval)
                demands.append(graph.sizes[t])
                if not stay.is_first and graph.rebuild_workspaces[t]:
                    intervals.append(model.new_optional_fixed_size_interval_var(stay.first, 1, there, ""))
                    demands.append(graph.rebuild_workspaces[t])
        for operator, place in enumerate(self.grid.operator):
            if graph.workspace_of(operator):
                intervals.append(model.new_fixed_size_interval_var(place, 1, ""))
                demands.append(graph.workspace_of(operator))
        model.add_cumulative(intervals, demands, capacity)

    def add_hints(self) -> None:
        """Begin with the known steps or, where none are known, with what keeps everything; after the memory is added."""
        span = {stay: self._known_span(stay) for row in self.stays.values() for stay in row}
        for stay, (first, last, there) in span.items():
            self.model.add_hint(stay.last, last)
            if not stay.is_first:
                self.model.add_hint(stay.first, first)
                self.model.add_hint(stay.there, there)
        for stay, size in self._sizes:
            self.model.add_hint(size, max(1, span[stay][1] - span[stay][0]))
        for literal, stay, reader in self._serves:
            place, reads = (reader, True) if isinstance(reader, int) else span[reader][::2]
            first, last, there = span[stay]
            self.model.add_hint(literal, reads and there and first < place < last)

    @cached_property
    def _known_places(self) -> list[int]:
        return self._places_of_steps()

    def _known_span(self, stay: _Stay) -> tuple[int, int, bool]:
        """First and last place of a stay in the known steps, and whether it is there."""
        known = self._known_lives.get(stay.tensor, [])
        if stay.number < len(known):
            life = known[stay.number]
            return self._known_places[life.first], self._known_places[life.last] + 1, True
        if stay.is_first:  # nothing is known: it stays until its last reader
            readers = [self.grid.operator[i] for i in self.graph.readers[stay.tensor]]
            return stay.first, max([stay.first, *readers]) + 1, True
        first = self.grid.places_of(stay.tensor)[0]
        return first, first + 1, False

    def _places_of_steps(self) -> list[int]:
        places, stage = [], 0
        for step in self.known or []:
            if step < self.graph.n_operators:
                places.append(self.grid.operator[step])
                stage = step + 1
            else:
                places.append(self.grid.rebuild.get((stage, step - self.graph.n_operators), 0))
        return places

    def steps(self, value: Any) -> Steps:
        """Return the steps of a solution; `value` gives that of a variable."""
        rebuilt = [stay for stay in self._rebuilds() if value(stay.there)]
        events = [(value(stay.first), self.graph.n_operators + stay.tensor) for stay in rebuilt]
        events += [(place, operator) for operator, place in enumerate(self.grid.operator)]
        return pruned(self.graph, [step for _, step in sorted(events)])


@dataclass(eq=False)
class Intervals:
    """Two phases: a schedule that fits, by the lowest peak, unless one is known; then the cheapest one.

    Parameters
    ----------
    ends_s : when time is up, on the clock of `time.monotonic`
    """

    graph: RematerializationGraph
    report: Report
    ends_s: float
    known: Steps | None = None
    copies: int = 2
    workers: int = WORKERS
    bound: int = 0

    def run(self) -> None:
        """Search; `report` hears of every better schedule and of the end."""
        try:
            from ortools.sat.python import cp_model
        except ImportError:
            self.report(Finding("CP-SAT", unavailable=True))
            return
        self._version = metadata.version("ortools")
        if self.known is None and not self._find_first(cp_model):
            return
        model = IntervalModel(self.graph, self.copies, self.known)
        model.add_memory(self.graph.budget)
        model.add_hints()
        model.model.minimize(model.cost)
        solver = self._solver(cp_model, 1.0)
        status = solver.solve(model.model, self._callback(cp_model, model))
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            self._learn(model.steps(solver.value))
        known_bound = 0.0 if status == cp_model.UNKNOWN else solver.best_objective_bound
        self._tell(max(0, math.ceil(known_bound - 1e-6)))

    def _find_first(self, cp_model: Any) -> bool:
        """Minimise the peak above the budget, from what keeps everything."""
        model = IntervalModel(self.graph, self.copies)
        peak = model.model.new_int_var(self.graph.budget, int(self.graph.kept_profile.max()), "peak")
        model.add_memory(peak)
        model.add_hints()
        model.model.add_hint(peak, int(self.graph.kept_profile.max()))
        model.model.minimize(peak)
        solver = self._solver(cp_model, _PEAK_SHARE)
        status = solver.solve(model.model, self._callback(cp_model, model))
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            self._learn(model.steps(solver.value))
        if self.known is not None:
            self._tell(0)
            return True
        self._tell(0, infeasible=status == cp_model.OPTIMAL)
        return False

    def _solver(self, cp_model: Any, share: float) -> Any:
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = self.workers
        solver.parameters.max_presolve_iterations = 1  # more of them take minutes on hundreds of nodes
        solver.parameters.max_time_in_seconds = max(0.0, share * (self.ends_s - time.monotonic()))
        return solver

    def _callback(self, cp_model: Any, model: IntervalModel) -> Any:
        learn, tell = self._learn, self._tell

        class Better(cp_model.CpSolverSolutionCallback):  # type: ignore[misc]
            def on_solution_callback(self) -> None:
                if learn(model.steps(self.value)):
                    tell(0)

        return Better()

    def _learn(self, steps: Steps) -> bool:
        """Keep steps that fit and are better; return whether these are."""
        if not fits(self.graph, steps):
            return False
        steps = without_waste(self.graph, steps)
        better = self.known is None or self.graph.rebuild_cost(steps) < self.graph.rebuild_cost(self.known)
        if better:
            self.known = steps
        return better

    def _tell(self, bound: int, *, infeasible: bool = False) -> None:
        finding = Finding(
            "CP-SAT",
            self._version,
            steps=self.known,
            bound_in_formulation=bound,
            infeasible=infeasible,
            in_own_space=False,
        )
        self.report(finding)
