"""The paper's numbers for SlackSwap, its ablations and Checkpoint on an A100 with PCIe 4.0 (section 4).

Throughput is in percent of the ideal step.
"""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from slackswap.evaluate.results import Result
from slackswap.evaluate.shootout import shootout
from slackswap.hardware import load_hardware
from slackswap.models.plan import Plan
from slackswap.models.problem import Problem
from slackswap.models.workloads import WORKLOADS
from slackswap.planners import registry

TRANSFORMERS = ("bert-large", "gpt2-xl", "llama-7b")


@cache
def workload(name: str) -> Problem:
    return WORKLOADS[name].build(load_hardware("a100-pcie4"))


@cache
def cell(name: str, budget: str, planner: str) -> Result:
    (result,) = next(shootout([workload(name)], [budget], [registry()[planner]]))
    return result


def percent(name: str, budget: str, planner: str) -> float | None:
    throughput = cell(name, budget, planner).row.throughput
    return None if throughput is None else 100 * throughput


# Table 3, without the genetic search: (workload, budget) -> SlackSwap, swap-first, recompute-only, barriers.
TABLE_3 = {
    ("bert-large", "50%"): (96.3, 94.7, 93.1, 59.1),
    ("bert-large", "20%"): (87.2, 85.4, 84.2, 55.5),
    ("gpt2-xl", "50%"): (97.6, 96.6, 93.5, 62.2),
    ("gpt2-xl", "20%"): (88.1, 85.7, 84.1, 56.3),
    ("llama-7b", "50%"): (99.6, 99.5, 91.5, 66.9),
    ("llama-7b", "20%"): (93.4, 85.5, 82.7, 61.7),
}
every_cell = pytest.mark.parametrize(("name", "budget"), TABLE_3, ids=[" ".join(key) for key in TABLE_3])


@every_cell
def test_table_3_slackswap(name: str, budget: str) -> None:
    reached = percent(name, budget, "slackswap")
    assert reached is not None
    assert reached >= TABLE_3[name, budget][0] - 0.5  # better is welcome


@every_cell
def test_table_3_swap_first(name: str, budget: str) -> None:
    # The paper's ablation falls 7.9 points at 20% of Llama-7B; here repair wins some of them back.
    tolerance = 3.0 if (name, budget) == ("llama-7b", "20%") else 1.0
    assert percent(name, budget, "swap-first") == pytest.approx(TABLE_3[name, budget][1], abs=tolerance)


@every_cell
def test_table_3_recompute_only(name: str, budget: str) -> None:
    assert percent(name, budget, "recompute-only") == pytest.approx(TABLE_3[name, budget][2], abs=0.5)


@every_cell
def test_table_3_barriers(name: str, budget: str) -> None:
    assert percent(name, budget, "barriers") == pytest.approx(TABLE_3[name, budget][3], abs=4.0)


@every_cell
def test_section_4_4_every_idea_is_worth_something(name: str, budget: str) -> None:
    full, *without = (
        percent(name, budget, planner) or 0.0 for planner in ("slackswap", "swap-first", "recompute-only", "barriers")
    )
    assert full > max(without)


@pytest.mark.parametrize(
    ("name", "planner", "step", "recompute", "d2h_gb"),
    [
        # Table 2, 40% of the peak: step and recomputation as multiples of the ideal step, GB copied out. No stalls.
        ("gpt2-xl", "checkpoint", 1.16, 0.163, 0.0),
        ("gpt2-xl", "slackswap", 1.05, 0.053, 3.3),
        ("llama-7b", "checkpoint", 1.18, 0.176, 0.0),
        ("llama-7b", "slackswap", 1.01, 0.008, 13.0),
    ],
)
def test_table_2(name: str, planner: str, step: float, recompute: float, d2h_gb: float) -> None:
    result = cell(name, "40%", planner)
    score = result.score
    assert score is not None
    assert score.multiple_of_ideal(score.step_s) == pytest.approx(step, abs=0.01)
    assert score.multiple_of_ideal(score.recompute_s) == pytest.approx(recompute, abs=0.002)
    assert score.multiple_of_ideal(score.forward_stall_s + score.backward_stall_s) < 0.001  # section 4.3
    assert score.d2h_bytes / 1e9 == pytest.approx(d2h_gb, abs=0.1)


def test_figure_3_amounts() -> None:
    row = cell("gpt2-xl", "30%", "slackswap").row
    amounts_gb = [(n_bytes or 0) / 1e9 for n_bytes in (row.keep_bytes, row.swap_bytes, row.recompute_bytes)]
    assert amounts_gb == pytest.approx([6.1, 3.3, 12.9], abs=0.2)


def test_section_3_3_what_the_plan_of_figure_3_does() -> None:
    # "Block inputs, mid-block residual tensors and the Q/K/V of the first nine layers fill the 3.3 GB link budget; every
    # elementwise output, 46 of 48 attention outputs and the FC1 outputs of the first 27 layers are recomputed; the remaining
    # GEMM outputs stay resident." A layer or two more or less is the profile's.
    plan = cell("gpt2-xl", "30%", "slackswap").outcome.plan
    assert isinstance(plan, Plan)
    decided: Counter[tuple[str, str]] = Counter(
        (name.split(".")[0], letter)
        for name, letter in zip(workload("gpt2-xl").tensor_names, plan.letters, strict=True)
    )
    assert decided["input", "S"] == 48
    assert decided["mid", "S"] == 48
    assert abs(decided["qkv", "S"] - 9) <= 2
    assert abs(decided["attention", "R"] - 46) <= 2
    assert abs(decided["fc1", "R"] - 27) <= 2
    for elementwise in ("ln1", "ln2", "gelu", "mask1", "mask2"):
        assert decided[elementwise, "R"] == 48
    assert decided["fc1", "S"] == 0


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_figure_4_at_the_low_end(name: str) -> None:
    # Section 4.2: "Checkpointing degrades smoothly to 80-82% at 15% of the peak and cannot go lower"; "at 10% ... SlackSwap
    # still runs at 79.7-87.3%".
    at_15 = percent(name, "15%", "checkpoint")
    assert at_15 is not None
    assert 80 <= at_15 <= 82
    assert percent(name, "10%", "checkpoint") is None
    assert (percent(name, "10%", "slackswap") or 0.0) >= 79.7


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_figure_4_slackswap_is_on_top_of_its_neighbours(name: str) -> None:
    # At 30% it keeps 89.7-97.0%; down to 90% of the peak (70% for Llama-7B) the link hides the whole deficit.
    assert (percent(name, "30%", "slackswap") or 0.0) >= 89.7 - 0.05
    ideal_down_to = "70%" if name == "llama-7b" else "90%"
    assert percent(name, ideal_down_to, "slackswap") == pytest.approx(100.0, abs=0.1)


def test_figure_4_vgg_16() -> None:
    # Section 4.2: SlackSwap stays at 95-100% down to 65% of the peak; checkpointing stops fitting at 70%.
    assert percent("vgg-16", "70%", "checkpoint") is None
    for budget in ("65%", "70%", "80%", "90%"):
        reached = percent("vgg-16", budget, "slackswap")
        assert reached is not None
        assert 95 <= reached <= 100


def test_figure_5_step() -> None:
    # One GPT-2 XL step at 50%: 409 ms against 399 ms ideal.
    row = cell("gpt2-xl", "50%", "slackswap").row
    assert row.step_s is not None
    assert row.step_s / row.ideal_s == pytest.approx(409 / 399, abs=0.005)


def test_abstract_planning_takes_less_than_0_4_s() -> None:
    # "plans in under 0.4 s", in Python; where every compiled function is warm this takes a few milliseconds.
    assert all(cell(name, budget, "slackswap").row.planning_s < 0.4 for name, budget in TABLE_3)
