"""How long planners plan: the cells of the paper's Table 3, and a model of 768 layers. Run it with `make benchmarks`."""

from __future__ import annotations

import statistics

from slackswap.hardware import load_hardware
from slackswap.models import Problem, peak_bytes
from slackswap.models.workloads import WORKLOADS
from slackswap.planners import registry, run_planner

REPEATS = 9
TABLE_3_MS = {
    ("bert-large", 0.5): 67,
    ("bert-large", 0.2): 83,
    ("gpt2-xl", 0.5): 119,
    ("gpt2-xl", 0.2): 168,
    ("llama-7b", 0.5): 78,
    ("llama-7b", 0.2): 95,
}


def main() -> None:
    hardware = load_hardware("a100-pcie4")
    print("slackswap, median of", REPEATS, "(the paper's own, on its machine, in brackets):")
    for (name, share), paper_ms in TABLE_3_MS.items():
        problem = WORKLOADS[name].build(hardware)
        print(f"  {name:10} at {share:.0%}: {planning_s(problem, share) * 1e3:6.1f} ms ({paper_ms} ms)")
    deep = WORKLOADS["gpt2-xl"].build(hardware, layers=768)
    for share in (0.5, 0.2):
        seconds = planning_s(deep, share, repeats=3)
        print(f"  gpt2-xl of 768 layers, {deep.n_operators} operators, at {share:.0%}: {seconds:.2f} s")


def planning_s(problem: Problem, share: float, repeats: int = REPEATS) -> float:
    """Seconds of planning, after a first run."""
    budget_bytes = int(share * peak_bytes(problem))
    outcomes = [run_planner(registry()["slackswap"], problem, budget_bytes) for _ in range(repeats + 1)]
    return statistics.median(outcome.seconds for outcome in outcomes[1:])


if __name__ == "__main__":
    main()
