"""Certified gaps of our own planner: its step over the lower bound, per cell and time limit. Run it with `make benchmarks`.

``python benchmarks/refined_gap.py 1 30`` plans with limits of 1 and 30 s. The bound gets 5 s and is not part of planning.
"""

from __future__ import annotations

import sys

from slackswap.hardware import load_hardware
from slackswap.models import Problem, peak_bytes
from slackswap.models.workloads import WORKLOADS
from slackswap.planners import run_planner
from slackswap.planners.lower_bound import lower_bound
from slackswap.planners.refined.planner import Refined
from slackswap.planners.slackswap import SLACKSWAP

CELLS = {
    "bert-large": (0.1, 0.15, 0.2, 0.3, 0.5, 0.7),
    "gpt2-xl": (0.1, 0.15, 0.2, 0.3, 0.5, 0.7),
    "llama-7b": (0.1, 0.15, 0.2, 0.3, 0.5, 0.7),
    "vgg-16": (0.7, 0.8, 0.9),
}
BOUND_S = 5.0
SEEDS = (0, 1)


def main() -> None:
    limits_s = [float(limit) for limit in sys.argv[1:]] or [1.0]
    hardware = load_hardware("a100-pcie4")
    print(f"gap over the certified bound in %, of slackswap and of {Refined().name} (seeds {SEEDS}), by time limit")
    worst = dict.fromkeys(limits_s, 0.0)
    for name, shares in CELLS.items():
        problem = WORKLOADS[name].build(hardware)
        for share in shares:
            budget_bytes = int(share * peak_bytes(problem))
            bound_s = lower_bound(problem, budget_bytes, time_limit_s=BOUND_S).step_s
            theirs = run_planner(SLACKSWAP, problem, budget_bytes).claimed_step_s
            columns = [f"{gap_percent(theirs, bound_s):8.4f}"]
            for limit_s in limits_s:
                gaps, seconds = gaps_within(problem, budget_bytes, bound_s, limit_s)
                if name != "vgg-16":  # where the bound, and not the plan, is what is far off
                    worst[limit_s] = max(worst[limit_s], *gaps)
                columns.append(f"{limit_s:g} s: {' '.join(f'{gap:7.4f}' for gap in gaps)} in {seconds:.2f} s")
            print(f"  {name:10} {share:4.0%}  {problem.ideal_s / bound_s:9.4%}  {'   '.join(columns)}", flush=True)
    for limit_s, gap in worst.items():
        print(f"worst of the transformers within {limit_s:g} s: {gap:.4f}%")


def gaps_within(problem: Problem, budget_bytes: int, bound_s: float, limit_s: float) -> tuple[list[float], float]:
    """Gap in percent for each seed, and the longest planning time."""
    outcomes = [run_planner(Refined(), problem, budget_bytes, seed=seed, time_limit_s=limit_s) for seed in SEEDS]
    return [gap_percent(one.claimed_step_s, bound_s) for one in outcomes], max(one.seconds for one in outcomes)


def gap_percent(step_s: float | None, bound_s: float) -> float:
    return float("inf") if step_s is None else 100 * (step_s / bound_s - 1)


if __name__ == "__main__":
    main()
