"""What the command line says about problems, plans and catalogs, for people."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING

import numpy as np

from slackswap.evaluate.results import Result, Row, plain, printable
from slackswap.evaluate.shootout import judge
from slackswap.evaluate.sources import named_sources
from slackswap.hardware import catalog
from slackswap.hardware.input_error import InputError
from slackswap.models.event_model import POLICIES, peak_bytes
from slackswap.models.plan_file import PlannerRecord, read_plan
from slackswap.models.problem import Problem
from slackswap.planners import Infeasibility, Outcome, Status, Supports, registry

if TYPE_CHECKING:
    from rich.table import Table

PIPE_COLUMNS = 160  # a pipe has no width; tables are not broken to fit one


def print_table(table: Table) -> None:
    """Print a table to stdout, as wide as the terminal or, in a pipe, as it needs."""
    from rich.console import Console

    class ResultConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would exit with 1; the command line knows better

    ResultConsole(width=None if sys.stdout.isatty() else PIPE_COLUMNS).print(table)


def explain_infeasibility(results: Iterable[Result]) -> Iterator[str]:
    """Say for each result without a plan which operator lacks how many bytes, which budget is known to do, and which not.

    Of a planner that is unavailable, why.
    """
    for result in results:
        if result.outcome.reason:
            yield f"{printable(result.row.planner)}: {printable(result.outcome.reason)}"
        if result.infeasibility is not None:
            yield "; ".join(_why_nothing_fits(result.row, result.infeasibility))


def _why_nothing_fits(row: Row, why: Infeasibility) -> Iterator[str]:
    yield f"{printable(row.planner)} at {row.budget_bytes:,} bytes: no plan found that fits"
    if why.operator:
        yield f"operator '{printable(why.operator)}' lacks {why.missing_bytes:,} bytes"
    if why.reason:
        yield printable(why.reason)
    own_bytes, known_bytes = why.smallest_feasible_bytes, why.smallest_known_bytes
    if own_bytes is not None and own_bytes != known_bytes:
        yield f"it is known to plan for {own_bytes:,} bytes"
    if known_bytes is not None:
        yield f"smallest feasible budget known: {known_bytes:,} bytes, {why.known_plan}"
    if why.largest_infeasible_bytes is not None:
        yield f"proved: no {why.proved_for} fits in {why.largest_infeasible_bytes:,} bytes"


def stored_planner(result: Result) -> PlannerRecord:
    """Return what a plan file says of the planner that made it."""
    return PlannerRecord(
        name=result.row.planner,
        version=metadata.version("slackswap"),
        seed=result.row.seed,
        seconds=result.row.planning_s,
    )


def score_stored_plan(problem: Problem, path: str, policy: str | None) -> Result:
    """Score a plan file under `policy`, or else under that of the planner that it names.

    Raises
    ------
    InputError
        The file is refused, or the policy is unknown.
    """
    if policy is not None and policy not in POLICIES:
        raise InputError(f"'{policy}' is not a runtime policy: use {', '.join(POLICIES)}", source="--policy")
    stored = read_plan(path, problem)
    planner = _StoredPlanner(stored.planner.name, policy or policy_of(stored.planner.name))
    outcome = Outcome(Status.FEASIBLE, stored.plan, seconds=stored.planner.seconds or 0.0, seed=stored.planner.seed)
    return judge(problem, stored.budget_bytes, peak_bytes(problem), planner, outcome)


def policy_of(planner: str) -> str:
    """Return the runtime policy that a planner's plans are made for, by its name; the default one of an unknown planner."""
    known = registry().get(planner)
    return known.policy if known else "default"


def catalog_table(what: str) -> Table:
    """Return the table of planners, workloads or hardware."""
    from rich.table import Table

    headings, rows = {"planners": _planners, "workloads": _workloads, "hardware": _hardware}[what]()
    table = Table(*headings)
    for row in rows:
        table.add_row(*(plain(cell) for cell in row))
    return table


def _planners() -> tuple[list[str], list[list[str]]]:
    rows = [
        [
            planner.name,
            planner.description,
            planner.policy,
            "yes" if planner.supports.swaps else "no",
            "yes" if planner.supports.recomputes else "no",
            "yes" if planner.supports.randomized else "no",
        ]
        for planner in registry().values()
    ]
    return ["planner", "what it does", "policy", "swaps", "recomputes", "randomized"], rows


def _workloads() -> tuple[list[str], list[list[str]]]:
    return ["workload", "what it is"], [[name, description] for name, description in named_sources().items()]


def _hardware() -> tuple[list[str], list[list[str]]]:
    rows = [
        [
            name,
            machine.gpu.name,
            ", ".join(f"{dtype} {peak / 1e12:g}" for dtype, peak in machine.gpu.peak_flops_per_s.items()),
            f"{machine.gpu.memory_bytes_per_s / 1e9:g}",
            f"{machine.link.d2h_bytes_per_s / 1e9:g}",
            "; ".join(machine.sources),
        ]
        for name, machine in catalog().items()
    ]
    return ["hardware", "GPU", "peak TFLOP/s", "memory GB/s", "link GB/s", "sources"], rows


@dataclass(frozen=True)
class _StoredPlanner:
    """Stands for the planner of a plan file, which need not be installed here."""

    name: str
    policy: str
    description: str = "made the plan of a file"
    supports: Supports = Supports()

    def plan(
        self, problem: Problem, budget_bytes: int, *, rng: np.random.Generator, time_limit_s: float | None
    ) -> Outcome:
        raise NotImplementedError  # its plan is at hand
