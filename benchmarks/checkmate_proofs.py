"""What `checkmate` proves and how fast, beside published results: ``checkmate_proofs.py GRAPH.json... [--modes auto,race]``.

Each profiled graph is planned at every budget that it has a published result for, plus those of ``--budgets`` (GiB, with what
is fixed). Totals and bounds are in units of 10 us, as published. Without a graph: unit chains, and the paper's workloads.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from slackswap.hardware import load_hardware
from slackswap.hardware.link import Link
from slackswap.models import Problem, peak_bytes
from slackswap.models.event_model import simulate
from slackswap.models.problem import Operator, Rebuild, Tensor
from slackswap.models.traces.profiled_graph import activation_budget_bytes, import_profiled_graph
from slackswap.models.workloads import WORKLOADS
from slackswap.planners import Outcome, run_planner
from slackswap.planners.checkmate.planner import MODES, Checkmate

UNIT_S = 1e-5
LINK = Link(d2h_bytes_per_s=1e9, h2d_bytes_per_s=1e9)  # nothing is copied
HEADER = ("problem", "budget", "mode", "status", "total", "bound", "gap", "seconds", "solver", "published")
CHAINS = {8: (8, 6, 5, 4), 16: (12, 9, 7)}


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graphs", nargs="*", type=Path)
    parser.add_argument("--modes", default="auto", help=f"some of {', '.join(MODES)}")
    parser.add_argument("--budgets", default="", help="further budgets in GiB")
    parser.add_argument("--seconds", type=float, default=300.0, help="time limit of each")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    print("|", " | ".join(HEADER), "|")
    print("|" + "---|" * len(HEADER))
    cases = graph_cases(options.graphs, options.budgets) if options.graphs else own_cases()
    for problem, budget, budget_bytes, published, unit_s in cases:
        for mode in options.modes.split(","):
            planner = Checkmate(mode=mode)
            outcome = run_planner(planner, problem, budget_bytes, seed=options.seed, time_limit_s=options.seconds)
            cells = [problem.name, budget, mode, *result(problem, budget_bytes, outcome, unit_s), published]
            print("|", " | ".join(cells), "|", flush=True)


Case = tuple[Problem, str, int, str, float]


def graph_cases(paths: Sequence[Path], further: str) -> Iterator[Case]:
    """Yield each graph at each budget: problem, budget as text and in bytes, what was published, unit of time."""
    for path in paths:
        problem = import_profiled_graph(path, link=LINK)
        published = problem.metadata["published"]
        for gib in dict.fromkeys([*published, *further.split(",")]):
            if not gib:
                continue
            known = published.get(gib)
            text = f"{known['best']} ({known['bound']}) in {known['seconds']:g} s" if known else ""
            yield problem, f"{gib} GiB", activation_budget_bytes(problem, float(gib) * 2**30), text, UNIT_S


def own_cases() -> Iterator[Case]:
    """Yield unit chains at a few budgets, and the paper's workloads at shares of their peaks."""
    for n, budgets in CHAINS.items():
        for budget in budgets:
            yield unit_chain(n), f"{budget} bytes", budget, "", 1.0
    for workload in WORKLOADS.values():
        problem = workload.build(load_hardware("a100-pcie4"))
        for share in (0.9, 0.7, 0.5, 0.3, 0.2, 0.1):
            yield problem, f"{share:.0%}", int(share * peak_bytes(problem)), f"ideal {problem.ideal_s:.6g} s", 1.0


def unit_chain(n: int) -> Problem:
    """n forward nodes, a loss, n backward nodes, which read their forward node too; all costs and sizes are 1."""
    inputs = [[i - 1] if i else [] for i in range(n + 1)] + [[n - 1 - k, n + k] for k in range(n)]
    operators = [Operator(f"v{i}", "forward" if i <= n else "backward", 1.0) for i in range(2 * n + 1)]
    tensors = [
        Tensor(f"t{i}", 1, i, tuple(k for k, row in enumerate(inputs) if i in row), None, Rebuild(1.0, tuple(row)))
        for i, row in enumerate(inputs)
    ]
    return Problem.from_records(f"unit chain of {n}", operators, tensors, LINK)


def result(problem: Problem, budget_bytes: int, outcome: Outcome, unit_s: float) -> list[str]:
    """Status, total, bound, gap, seconds and solver as text; the total is the event model's."""
    seconds = f"{outcome.seconds:.2f}"
    if outcome.plan is None:
        why = outcome.infeasibility.reason if outcome.infeasibility else outcome.reason
        return [outcome.status.value, "", why, "", seconds, outcome.solver]
    score = simulate(problem, outcome.plan, budget_bytes)
    assert score.fits
    bound_s = outcome.claimed_bound_s or problem.ideal_s
    total, bound = (f"{seconds_ / unit_s:.8g}" for seconds_ in (score.step_s, bound_s))
    return [outcome.status.value, total, bound, f"{max(0.0, score.step_s / bound_s - 1):.4%}", seconds, outcome.solver]


if __name__ == "__main__":
    main(sys.argv[1:])
