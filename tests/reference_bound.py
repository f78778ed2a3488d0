"""Formulation A as a plain linear program, written from the specification on its own and solved by SciPy.

Per operator: stall, cumulative bytes copied out, gone and fetched; per saved tensor: swapped share, recomputed share. Bytes flow,
copies have no latency, directions do not disturb each other, nothing is whole. It shares no code with the product's bound, which
must be at least as tight.

Two things are weaker here than in the specification, where plans beat the bound. Bytes are copied out while forward readers
still need them (rule 5), and are gone only afterwards: with one variable for both, Llama-7B at 20% is bounded by 94.02% of the
ideal, and a plan reaches 94.05%. And rebuild time is credited in any window where the rebuild can stand, not in the earliest,
where fetched bytes would need memory sooner.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_matrix

from slackswap.models.problem import Problem


class _Rows:
    def __init__(self) -> None:
        self.entries: list[tuple[int, int, float]] = []
        self.most: list[float] = []
        self.equalities: list[tuple[list[tuple[int, float]], float]] = []
        self.cost: list[float] = []
        self.low: list[float] = []
        self.high: list[float] = []

    def variables(self, n: int, low: float = 0.0, high: float = np.inf, cost: float = 0.0) -> list[int]:
        first = len(self.cost)
        self.cost += [cost] * n
        self.low += [low] * n
        self.high += [high] * n
        return list(range(first, first + n))

    def at_most(self, terms: list[tuple[int, float]], most: float) -> None:
        row = len(self.most)
        self.entries += [(row, column, factor) for column, factor in terms]
        self.most.append(most)

    def equal(self, terms: list[tuple[int, float]], value: float) -> None:
        self.equalities.append((terms, value))

    def minimum(self) -> float:
        """Least cost; infinite where no values satisfy the rows."""
        n = len(self.cost)
        equal = [(row, column, factor) for row, (terms, _) in enumerate(self.equalities) for column, factor in terms]
        solved = linprog(
            self.cost,
            _matrix(self.entries, (len(self.most), n)),
            self.most,
            _matrix(equal, (len(self.equalities), n)),
            [value for _, value in self.equalities],
            bounds=list(zip(self.low, self.high, strict=True)),
            method="highs",
        )
        return np.inf if solved.status == 2 else float(solved.fun)


def _matrix(entries: list[tuple[int, int, float]], shape: tuple[int, int]) -> csr_matrix:
    rows, columns, factors = (np.array(part) for part in zip(*entries, strict=True)) if entries else ([], [], [])
    return csr_matrix((factors, (rows, columns)), shape)


def plain_bound_s(problem: Problem, budget_bytes: int) -> float:
    """Least step time of formulation A."""
    ms, mb = 1e3, 1e-6
    n, n_forward = problem.n_operators, problem.n_forward
    saved = [int(t) for t in np.flatnonzero(problem.saved)]
    size = problem.tensor_bytes * mb
    rows = _Rows()
    swap = dict(zip(saved, rows.variables(len(saved), high=1.0), strict=True))
    rebuild: dict[int, int] = {}
    before: list[list[tuple[int, float]]] = [[] for _ in range(n)]  # rebuild time right before each operator
    windows = _windows(problem, saved)
    for t in saved:
        if not problem.rebuildable[t]:
            continue
        cost = float(problem.rebuild_s[t]) * ms
        (rebuild[t],) = rows.variables(1, high=1.0, cost=cost)
        rows.at_most([(swap[t], 1.0), (rebuild[t], 1.0)], 1.0)
        placed = rows.variables(len(windows[t]))
        rows.equal([*((share, 1.0) for share in placed), (rebuild[t], -cost)], 0.0)
        for window, share in zip(sorted(windows[t]), placed, strict=True):
            before[window].append((share, 1.0))
    stall = rows.variables(n, cost=1.0)
    copied, gone, back = rows.variables(n), rows.variables(n), rows.variables(n)
    for i in range(n):
        elapsed = [(stall[i], -1.0), *((share, -1.0) for share, _ in before[i])]
        for flow, rate in (
            (copied, problem.link.d2h_bytes_per_s * mb / ms),
            (back, problem.link.h2d_bytes_per_s * mb / ms),
        ):
            earlier = [(flow[i - 1], -1.0 / rate)] if i else []
            began = i > 0 and (flow is copied or i > n_forward)
            rows.at_most(
                [(flow[i], 1.0 / rate), *earlier, *elapsed], float(problem.duration_s[i - 1]) * ms if began else 0.0
            )
            if i:
                rows.at_most([(flow[i - 1], 1.0), (flow[i], -1.0)], 0.0)
        if i < n_forward:
            rows.high[back[i]] = 0.0
        rows.at_most([(back[i], 1.0), (copied[i], -1.0)], 0.0)
        rows.at_most([(gone[i], 1.0), (copied[i], -1.0)], 0.0)
    _copied_is_produced(problem, rows, swap, copied, size)
    _memory(problem, budget_bytes * mb, rows, (swap, rebuild, gone, back), size)
    return problem.ideal_s + rows.minimum() / ms


def _copied_is_produced(
    problem: Problem, rows: _Rows, swap: dict[int, int], copied: list[int], size: np.ndarray
) -> None:
    produced = rows.variables(problem.n_operators)
    for i in range(problem.n_operators):
        earlier = [(produced[i - 1], -1.0)] if i else []
        new = [(swap[t], -float(size[t])) for t in swap if problem.producer[t] == i - 1]
        rows.equal([(produced[i], 1.0), *earlier, *new], 0.0)
        rows.at_most([(copied[i], 1.0), (produced[i], -1.0)], 0.0)


def _memory(
    problem: Problem,
    budget: float,
    rows: _Rows,
    variables: tuple[dict[int, int], dict[int, int], list[int], list[int]],
    size: np.ndarray,
) -> None:
    swap, rebuild, gone, back = variables
    n = problem.n_operators
    everything = np.zeros(n + 1)
    np.add.at(everything, problem.producer, size)
    np.add.at(everything, problem.last_use + 1, -size)
    in_use = np.cumsum(everything)[:n] + problem.workspace_bytes * 1e-6
    gap: list[list[tuple[int, float]]] = [[] for _ in range(n + 1)]  # tensors that enter (+) and leave (-) their gap
    for t in swap:
        gap[problem.last_forward_use[t] + 1].append((t, 1.0))
        gap[problem.first_backward_reader[t]].append((t, -1.0))
    absent, away = rows.variables(n), rows.variables(n)  # recomputed bytes, swapped bytes in their gap, as inventories
    for i in range(n):
        for level, share in ((absent, rebuild), (away, swap)):
            earlier = [(level[i - 1], -1.0)] if i else []
            changes = [(share[t], -sign * float(size[t])) for t, sign in gap[i] if t in share]
            rows.equal([(level[i], 1.0), *earlier, *changes], 0.0)
        # What has left and not come back is in its gap; memory is what everything takes, less that, less what is recomputed.
        rows.at_most([(gone[i], 1.0), (back[i], -1.0), (away[i], -1.0)], 0.0)
        rows.at_most([(gone[i], -1.0), (back[i], 1.0), (absent[i], -1.0)], budget - float(in_use[i]))


def _windows(problem: Problem, saved: list[int]) -> dict[int, set[int]]:
    windows = {t: {int(problem.first_backward_reader[t])} for t in saved if problem.rebuildable[t]}
    changed = True
    while changed:
        changed = False
        for user in sorted(windows, reverse=True):
            for source in map(int, problem.rebuild_inputs_of(user)):
                if source in windows:
                    more = {i for i in windows[user] if i <= problem.first_backward_reader[source]} - windows[source]
                    windows[source] |= more
                    changed |= bool(more)
    return windows
