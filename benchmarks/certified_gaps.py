"""Certified gap of every planner on many inputs, as a Markdown table: ``certified_gaps.py SOURCE... [--budgets B,...]``.

Without SOURCE: the paper's workloads. docs/gaps.md is made of its output.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from slackswap.evaluate.bounds import certified_bound_s
from slackswap.evaluate.budget import parse_budgets
from slackswap.evaluate.results import Result
from slackswap.evaluate.shootout import shootout
from slackswap.evaluate.sources import load_source
from slackswap.planners import find_planners

WORKLOADS = ("bert-large", "gpt2-xl", "llama-7b", "vgg-16")


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", nargs="*", default=WORKLOADS)
    parser.add_argument("--budgets", default="0.7,0.5,0.3,0.2,0.15,0.1")
    parser.add_argument("--planners", default="all")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each planner that searches")
    parser.add_argument("--bound-seconds", type=float, default=10.0)
    options = parser.parse_args(arguments)
    planners, budgets = find_planners(options.planners), parse_budgets(options.budgets)

    def bound(problem, budget_bytes):  # type: ignore[no-untyped-def]  # as `shootout` calls it
        return certified_bound_s(problem, budget_bytes, options.bound_seconds)

    print("| input | budget | bound, % of ideal |", " | ".join(planner.name for planner in planners), "|")
    print("|---|---|---|" + "---|" * len(planners))
    for source in options.sources:
        for results in shootout([load_source(source)], budgets, planners, time_limit_s=options.seconds, bound=bound):
            row = results[0].row
            bounds_s = [result.row.lower_bound_s for result in results if result.row.lower_bound_s]
            best = f"{row.ideal_s / bounds_s[0]:.3%}" if bounds_s else "none"
            cells = " | ".join(map(cell, results))
            print(f"| {row.problem.split(' on ')[0]} | {row.budget_fraction:.0%} | {best} | {cells} |", flush=True)


def cell(result: Result) -> str:
    """Gap in percent; the throughput where a schedule has none; nothing where there is no plan."""
    row = result.row
    if row.throughput is None:
        return "-"
    return f"({row.throughput:.1%})" if row.gap is None else f"{100 * row.gap:.3f}"


if __name__ == "__main__":
    main(sys.argv[1:])
