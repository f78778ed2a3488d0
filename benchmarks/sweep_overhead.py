"""What running jobs in parallel costs beside the jobs: searches of about 50 ms each. Run it with `make benchmarks`.

The overhead is the time of all processes together over the time that their jobs took by their own clocks, less one. Both are
taken in the same run, so that a loaded machine slows down both.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from slackswap.evaluate.results import Row
from slackswap.evaluate.sweep_engines import Engine, Failure, Task, find_engine
from slackswap.evaluate.sweep_problems import pack
from slackswap.evaluate.sweep_store import SweepStore
from slackswap.evaluate.sweeps import Case, case_key, run_case
from slackswap.hardware import load_hardware
from slackswap.models.event_model.batch import usable_cores
from slackswap.models.workloads import WORKLOADS

JOB_S = 0.05


def timed(case: Case) -> tuple[float, Row]:
    """Run a job; return its seconds, by the clock of its own process, and its row."""
    began_s = time.perf_counter()
    row = run_case(case).row
    return time.perf_counter() - began_s, row


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--jobs", type=int, default=400, help="jobs of each run")
    arguments.add_argument("--processes", type=int, default=usable_cores())
    arguments.add_argument("--engines", default="local", help="comma-separated: local, dask")
    chosen = arguments.parse_args()
    packed = pack(WORKLOADS["llama-7b"].build(load_hardware("a100-pcie4"), layers=8))
    cases = [
        Case(
            workload="llama-7b",
            planner="ga-random",
            budget="40%",
            seed=seed,
            time_limit_s=JOB_S,
            carried=packed.sha256,
        )
        for seed in range(chosen.jobs)
    ]
    tasks = [Task(case_key(case), case, packed) for case in cases]
    for name in chosen.engines.split(","):
        engine = find_engine(name, chosen.processes)
        for run in ("first run, processes started", "second run"):
            report(f"{name}, {run}", engine, tasks, chosen.processes)


def report(what: str, engine: Engine, tasks: Sequence[Task[Case]], processes: int) -> None:
    own_s = 0.0
    with tempfile.TemporaryDirectory() as folder, SweepStore(Path(folder) / "store.jsonl") as kept:
        began_s = first_s = time.perf_counter()
        for n, (task, value) in enumerate(engine.run(timed, tasks)):
            assert not isinstance(value, Failure), value.reason
            if n == 0:
                first_s = time.perf_counter() - value[0]
            own_s += value[0]
            kept.add(task.key.encode(), value[1])
        ended_s = time.perf_counter()
    whole, steady = (processes * (ended_s - start_s) / own_s - 1 for start_s in (began_s, first_s))
    print(
        f"{what}: {len(tasks)} jobs of {own_s / len(tasks) * 1e3:.1f} ms on {processes} processes in"
        f" {ended_s - began_s:.2f} s, overhead {whole:.1%}; {steady:.1%} from the first job's start on"
    )


if __name__ == "__main__":
    main()
