"""The engine gives the same totals compiled, interpreted, with array bounds checked, and where no cache can be written.

Run as a script, this file prints what the tests compare: floats in hexadecimal, so that equal means bit for bit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from instances import MB, MS, chain, two_layers, zero_sizes

from slackswap.hardware.link import Link
from slackswap.models.event_model import POLICIES, Score, Timeline, peak_bytes, simulate, simulate_many
from slackswap.models.event_model.buffers import buffers_of
from slackswap.models.event_model.kernel.iteration import lower_decisions
from slackswap.models.legality import check
from slackswap.models.lowering import lower
from slackswap.models.plan import KEEP, RECOMPUTE, SWAP, DecisionArray, Plan
from slackswap.models.problem import Operator, Problem, Rebuild, Tensor
from slackswap.models.schedule import Schedule

LINK = Link(d2h_bytes_per_s=1.3e9, h2d_bytes_per_s=0.9e9, duplex_factor=0.85, latency_s=1e-5)
SHARES = (0.4, 0.6, 0.8, 1.0)


def random_problem(rng: np.random.Generator) -> Problem:
    """Return 8 layers with skips, workspaces and uneven times, so that sums do not come out round."""
    n = 8
    operators = [Operator(f"f{i}", "forward", rng.uniform(1, 9) * MS, layer=i // 2) for i in range(n)]
    for i in reversed(range(n)):
        workspace_bytes = int(rng.choice([0, 0, 7 * MB, 20 * MB]))
        operators.append(Operator(f"b{i}", "backward", rng.uniform(1, 15) * MS, workspace_bytes, n + (n - 1 - i) // 2))
    tensors = []
    for i in range(n):
        readers = [i + 1] * (i + 1 < n) + sorted({2 * n - 1 - i, 2 * n - 1 - max(0, i - int(rng.integers(0, 3)))})
        rebuild = Rebuild(rng.uniform(1, 9) * MS, (i - 1,) if i else (), int(rng.choice([0, 2 * MB])))
        tensors.append(Tensor(f"a{i}", int(rng.uniform(1, 20) * MB), i, tuple(readers), rebuild=rebuild))
    return Problem.from_records("random", operators, tensors, LINK)


def random_decisions(rng: np.random.Generator, problem: Problem) -> DecisionArray:
    decisions = rng.choice([KEEP, SWAP, SWAP, RECOMPUTE], problem.n_tensors).astype(np.int8)
    decisions[(decisions == RECOMPUTE) & ~problem.rebuildable] = SWAP
    decisions[~problem.saved] = KEEP
    return decisions


def richer(rng: np.random.Generator, schedule: Schedule) -> Schedule:
    """Return the schedule with other prefetch points, some of them in the forward pass."""
    after = [int(rng.integers(0, deadline)) for deadline in schedule.prefetch_deadline.tolist()]
    return replace(schedule, prefetch_after=np.array(after, np.int64))


# chain(3): operators 0 .. 5, code 7 rebuilds a1, code 8 rebuilds a2. a1 is rebuilt twice; a0 leaves in the forward pass
# and comes back twice.
HANDWRITTEN = Schedule.from_lists(
    steps=[0, 1, 2, 7, 8, 3, 7, 4, 5],
    drops=[[], [0], [1, 2], [], [1], [2], [], [1], [0]],
    offloads=[(0, 0)],
    prefetches=[(0, 3, 1), (0, 6, 3), (0, 8, 2)],
)


# a1 is rebuilt four times in a row, and a0, which that reads, leaves and comes back each time: more prefetches than
# tensors. Under `on-demand` that once wrote beyond an array.
MANY_RELOADS = Schedule.from_lists(
    steps=[0, 1, 2, 7, 7, 7, 7, 8, 3, 7, 4, 5],
    drops=[[], [0], [1, 2], [0, 1], [0, 1], [0, 1], [0], [1], [2], [], [1], [0]],
    offloads=[(0, 0)],
    prefetches=[(0, 3, 1), (0, 4, 3), (0, 5, 4), (0, 6, 5), (0, 9, 7)],
)


def exact(value: Any) -> Any:
    if isinstance(value, Timeline):
        return {field.name: exact(getattr(value, field.name)) for field in fields(Timeline)}
    if isinstance(value, np.ndarray | tuple):
        return [exact(one) for one in (value.tolist() if isinstance(value, np.ndarray) else value)]
    return value.hex() if isinstance(value, float) else value


def report() -> list[Any]:
    """Everything that some sixty runs give: plans, schedules of the richer space, every policy, timelines, tables."""
    rng = np.random.default_rng(20240607)
    problems = [two_layers(LINK), zero_sizes(LINK), chain(12, LINK), *(random_problem(rng) for _ in range(3))]
    rows: list[Any] = []

    def play(problem: Problem, plan: Plan | Schedule, budget_bytes: int, policy: str, timeline: bool) -> None:
        score = simulate(problem, plan, budget_bytes, policy=policy, timeline=timeline)
        rows.append({field.name: exact(getattr(score, field.name)) for field in fields(Score)})

    for problem in problems:
        peak = peak_bytes(problem)
        table = np.array([random_decisions(rng, problem) for _ in SHARES])
        for policy in POLICIES:
            for share, decisions in zip(SHARES, table, strict=True):
                plan: Plan | Schedule = Plan(decisions)
                if rng.random() < 0.4:
                    plan = richer(rng, lower(problem, Plan(decisions)))
                    assert check(problem, plan) == []
                play(problem, plan, int(share * peak), policy, bool(rng.random() < 0.5))
            many = simulate_many(problem, table, 0.8 * peak, policy=policy)
            rows.append({field.name: exact(getattr(many, field.name)) for field in fields(many)})
    for policy in POLICIES:
        for budget_bytes in (2 * MB, 3 * MB, 4 * MB):
            for schedule in (HANDWRITTEN, MANY_RELOADS):
                play(chain(3, LINK), schedule, budget_bytes, policy, True)
    return rows


def notices_a_wrong_index() -> bool:
    """Whether writing beyond an array raises, as it does only where bounds are checked."""
    problem = two_layers()
    buffers = buffers_of(problem)
    too_small = buffers.schedule._replace(steps=np.zeros(1, np.int64))
    try:
        lower_decisions(buffers.problem, np.zeros(2, np.int8), too_small, buffers.scratch)
    except IndexError:
        return True
    return False


def in_another_process(**environment: str) -> dict[str, Any]:
    """Run this file as a script, under other settings of numba and with warnings as errors."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("NUMBA_")}
    tests = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-W", "error", __file__],
        env={**inherited, "PYTHONPATH": str(tests), **environment},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.fixture(scope="module")
def expected() -> Any:
    return json.loads(json.dumps(report()))


def test_the_runs_are_worth_comparing(expected: Any) -> None:
    plans = [row for row in expected if isinstance(row["fits"], bool)]
    assert len(plans) == (len(SHARES) * 6 + 2 * 3) * len(POLICIES)
    assert sum(row["fits"] for row in plans) >= 20
    assert sum(not row["fits"] for row in plans) >= 5
    assert sum(row["h2d_bytes"] > 0 for row in plans) >= 10
    assert sum(float.fromhex(row["recompute_s"]) > 0 for row in plans) >= 10
    assert sum(float.fromhex(row["backward_stall_s"]) > 0 for row in plans) >= 10
    assert sum(row["timeline"] is not None for row in plans) >= 10
    assert check(chain(3, LINK), MANY_RELOADS) == []


def test_interpreted(expected: Any) -> None:
    answer = in_another_process(NUMBA_DISABLE_JIT="1")
    assert answer["notices a wrong index"]
    assert answer["report"] == expected


def test_with_bounds_checked(expected: Any, tmp_path: Path) -> None:
    # A cache of its own: numba would otherwise take the machine code that checks nothing.
    answer = in_another_process(NUMBA_BOUNDSCHECK="1", NUMBA_CACHE_DIR=str(tmp_path))
    assert answer["notices a wrong index"]
    assert answer["report"] == expected


@pytest.mark.skipif(
    not hasattr(numba.config, "CACHE_LOCATOR_CLASSES"), reason="this numba cannot be told where to look for a cache"
)
def test_without_a_cache_folder(expected: Any, tmp_path: Path) -> None:
    # The only place that numba may look at lies below a file, where no folder can be made.
    (tmp_path / "file").touch()
    answer = in_another_process(
        NUMBA_CACHE_LOCATOR_CLASSES="UserProvidedCacheLocator", NUMBA_CACHE_DIR=str(tmp_path / "file" / "cache")
    )
    assert answer["report"] == expected


if __name__ == "__main__":
    checked = {"NUMBA_DISABLE_JIT", "NUMBA_BOUNDSCHECK"} & set(os.environ)
    notices = bool(checked) and notices_a_wrong_index()  # elsewhere it would write beyond the array
    print(json.dumps({"report": report(), "notices a wrong index": notices}))
