"""Figures 1, 2, 3 and 5 of the paper: machines, costs per byte, one plan, one step."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np

from slackswap.evaluate.paper import Paper
from slackswap.evaluate.reproduction_comparison import DOES_NOT_FIT, Value
from slackswap.evaluate.reproduction_item import Cell, Computed, Item, Points, Rows, implemented, span
from slackswap.evaluate.results import Result
from slackswap.evaluate.sweeps import Case, describe, full_result, planner_of, problem_of
from slackswap.hardware import Hardware, load_hardware
from slackswap.hardware.input_error import InputError
from slackswap.models.event_model import Score, simulate
from slackswap.models.link_budget import LinkBudget, link_budget
from slackswap.models.plan import KEEP, LETTERS, RECOMPUTE, SWAP, Plan
from slackswap.models.problem import Problem

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OWN = "slackswap"
GPT2_XL_AT_30 = Case(workload="gpt2-xl", planner=OWN, budget="30%")
# The figures' labels: the tensors of one block of GPT-2 XL, by the first part of their names.
TENSORS = {
    "mask1": "dropout mask",
    "mask2": "dropout mask",
    "gelu": "GeLU output",
    "ln1": "LayerNorm output",
    "ln2": "LayerNorm output",
    "attention": "attention output",
    "qkv": "Q, K, V",
    "fc1": "FC1 output",
    "mid": "residual (mid)",
    "input": "block input",
}
ELEMENTWISE = ("dropout mask", "GeLU output", "LayerNorm output")
# The machines whose links Figure 2 draws.
LINKS = {"PCIe 3.0": "v100", "PCIe 4.0": "a100-pcie4", "PCIe 5.0": "h100-sxm"}
Decision = Literal["keep", "swap", "recompute"]
DECISIONS: dict[int, Decision] = {KEEP: "keep", SWAP: "swap", RECOMPUTE: "recompute"}


def _figure1(paper: Paper, _: Rows) -> Computed:
    sweeps = paper.sweeps
    machines = {name: load_hardware(name) for name in sweeps.generations}
    budgets = {name: {w: _link_budget(w, name) for w in sweeps.workloads} for name in machines}
    oldest, newest = machines[sweeps.generations[0]], machines[sweeps.generations[-1]]
    values: dict[str, Value] = {
        "fig1.growth.flops": _training_peak(newest) / _training_peak(oldest),
        "fig1.growth.link": newest.link.d2h_bytes_per_s / oldest.link.d2h_bytes_per_s,
        "fig1.titan-x.intensity": min(b.intensity_flops_per_byte or 0.0 for b in budgets["titan-x"].values()),
    }
    for name, machine in machines.items():
        values[f"fig1.{name}.gemm-balance"] = _gemm_balance(machine) / 1e3
    for name in ("titan-x", "h100-sxm"):
        values[f"fig1.{name}.hideable"] = span(100 * b.hideable_fraction for b in budgets[name].values())
    values["fig1.a100-pcie4.hideable"] = span(
        100 * budgets["a100-pcie4"][w].hideable_fraction for w in sweeps.transformers
    )
    for name in ("v100", "a100-pcie4"):
        values[f"fig1.{name}.balance"] = span((b.balance_flops_per_byte or 0.0) / 1e3 for b in budgets[name].values())
    shares = {paper.name(m): {paper.name(w): b.hideable_fraction for w, b in of.items()} for m, of in budgets.items()}
    rows: list[list[Cell]] = [[machine, *(100 * share for share in of.values())] for machine, of in shares.items()]
    points = Points("Hideable activations (%)", ["GPU", *map(paper.name, sweeps.workloads)], rows)
    balances = {paper.name(name): _gemm_balance(machine) for name, machine in machines.items()}
    return Computed(values, [points], draw=partial(_draw1, shares, balances))


def _link_budget(workload: str, hardware: str) -> LinkBudget:
    return link_budget(problem_of(Case(workload=workload, planner=OWN, budget="100%", hardware=hardware)))


def _training_peak(machine: Hardware) -> float:
    return machine.gpu.peak(machine.gpu.training_dtype)


def _gemm_balance(machine: Hardware) -> float:
    return _training_peak(machine) * machine.gpu.gemm_efficiency / machine.link.d2h_bytes_per_s


def _draw1(shares: Mapping[str, Mapping[str, float]], balances: Mapping[str, float]) -> Figure:
    from slackswap.evaluate.figures import figure1

    return figure1(shares, balances)


def _figure2(_: Paper, __: Rows) -> Computed:
    problem = problem_of(GPT2_XL_AT_30)
    costs, sizes = _costs_of_a_block(problem)
    copies = {link: 1e12 / load_hardware(name).link.d2h_bytes_per_s for link, name in LINKS.items()}
    values: dict[str, Value] = {f"fig2.{label}.cost": cost for label, cost in costs.items()}
    values |= {f"fig2.{label}.size": size for label, size in sizes.items()}
    values |= {f"fig2.{link}.copy": copy for link, copy in copies.items()}
    cheap = [cost for label, cost in costs.items() if label in ELEMENTWISE]
    dear = [cost for label, cost in costs.items() if label not in ELEMENTWISE]
    values["fig2.recomputation-wins"] = (
        min(copies.values()) / max(costs.values()),
        max(copies.values()) / min(costs.values()),
    )
    values["fig2.elementwise-cheaper"] = (min(dear) / max(cheap), max(dear) / min(cheap))
    lines: list[list[Cell]] = [[label, costs[label], sizes[label]] for label in costs]
    lines += [[link, cost, None] for link, cost in copies.items()]
    labels = {f"{label} ({size:.0f} MB)": costs[label] for label, size in sizes.items()}
    points = Points("Cost to free a byte", ["tensor or link", "ps/B", "MB"], lines)
    return Computed(values, [points], draw=partial(_draw2, labels, copies))


def _costs_of_a_block(problem: Problem, block: int = 7) -> tuple[dict[str, float], dict[str, float]]:
    """Return rebuild costs in ps/B and sizes in MB of the tensors of one block that a rebuild gives back, by label."""
    costs: dict[str, float] = {}
    sizes: dict[str, float] = {}
    for t in np.flatnonzero((problem.block == block) & problem.rebuildable):
        label = _label(problem.tensor_names[t])
        costs[label] = 1e12 * float(problem.rebuild_s[t]) / int(problem.tensor_bytes[t])
        sizes[label] = int(problem.tensor_bytes[t]) / 1e6
    order = sorted(costs, key=lambda label: costs[label])
    return {label: costs[label] for label in order}, {label: sizes[label] for label in order}


def _label(tensor_name: str) -> str:
    kind = tensor_name.partition(".")[0]
    return TENSORS.get(kind, kind)


def _draw2(costs: Mapping[str, float], copies: Mapping[str, float]) -> Figure:
    from slackswap.evaluate.figures import figure2

    return figure2(costs, copies)


def _figure3(_: Paper, __: Rows) -> Computed:
    result = full_result(GPT2_XL_AT_30)
    problem, plan = result.problem, result.outcome.plan
    assert isinstance(plan, Plan)
    groups = _groups(problem, plan)
    row = result.row
    values: dict[str, Value] = {
        f"fig3.{decision}": (getattr(row, f"{decision}_bytes") or 0) / 1e9 for decision in DECISIONS.values()
    }
    for statement, kind, decision in (
        ("fig3.qkv-swapped", "qkv", SWAP),
        ("fig3.attention-recomputed", "attention", RECOMPUTE),
        ("fig3.fc1-recomputed", "fc1", RECOMPUTE),
    ):
        values[statement] = float(_count(problem, plan, kind, decision))
    lines = [[label, decision, n_bytes / 1e9, _finite(cost)] for label, decision, n_bytes, cost in groups]
    points = Points("Groups by recompute cost", ["saved tensors", "decision", "GB", "ps/B"], lines)
    return Computed(values, [points], draw=partial(_draw3, groups))


def _count(problem: Problem, plan: Plan, kind: str, decision: int) -> int:
    return sum(
        name.startswith(f"{kind}.") and letter == LETTERS[decision]
        for name, letter in zip(problem.tensor_names, plan.letters, strict=True)
    )


def _finite(cost: float) -> float | str:
    return cost if np.isfinite(cost) else "no rebuild"


def _groups(problem: Problem, plan: Plan) -> list[tuple[str, Decision, float, float]]:
    """Return saved tensors by label and decision, by rising recompute cost: label, decision, bytes, ps per byte."""
    sums: dict[tuple[str, int], tuple[int, float]] = {}
    for t in np.flatnonzero(problem.saved):
        key = _label(problem.tensor_names[t]), int(plan.decisions[t])
        n_bytes, seconds = sums.get(key, (0, 0.0))
        sums[key] = n_bytes + int(problem.tensor_bytes[t]), seconds + float(problem.rebuild_s[t])
    groups = [
        (label, DECISIONS[decision], float(n_bytes), 1e12 * seconds / n_bytes)
        for (label, decision), (n_bytes, seconds) in sums.items()
    ]
    return sorted(groups, key=lambda group: group[3])


def _draw3(groups: list[tuple[str, Decision, float, float]]) -> Figure:
    from slackswap.evaluate.figures import figure3

    return figure3(groups)


def _figure5(paper: Paper, _: Rows) -> Computed:
    values: dict[str, Value] = {}
    runs: list[tuple[str, Score, float]] = []
    remarks: list[str] = []
    for statement in paper.of_item("fig5"):
        planner = statement.id.removeprefix("fig5.")
        case = Case(workload="gpt2-xl", planner=planner, budget="50%")
        if planner == "ideal":
            values[statement.id] = problem_of(case).ideal_s * 1e3
        elif not implemented([planner]):
            values[statement.id] = None
        else:
            result = full_result(case)
            values[statement.id] = DOES_NOT_FIT if result.row.step_s is None else result.row.step_s * 1e3
            score, forward_end_s = _timeline(case, result)
            runs.append((planner, score, forward_end_s))
            remarks.append(f"{paper.name(planner)}: {_copies(score, forward_end_s)}")
    return Computed(values, remarks=remarks, draw=partial(_draw5, runs))


def _timeline(case: Case, result: Result) -> tuple[Score, float]:
    """Return the score of the plan again, with its timeline, and when its forward pass ended."""
    problem, plan = result.problem, result.outcome.plan
    if plan is None:
        raise InputError(f"{describe(case)}: no plan fits, so there is no step to show", source="fig5")
    score = simulate(problem, plan, result.row.budget_bytes, policy=planner_of(case).policy, timeline=True)
    assert score.timeline is not None
    last_forward = score.timeline.step_names.index(problem.operator_names[problem.n_forward - 1])
    return score, float(score.timeline.end_s[last_forward])


def _copies(score: Score, forward_end_s: float) -> str:
    """Say how long both copy engines are at work."""
    lanes = score.timeline
    assert lanes is not None
    out = lanes.copy_is_d2h
    start_s, end_s = lanes.copy_start_s[out], np.minimum(lanes.copy_end_s[out], forward_end_s)
    busy = float(np.clip(end_s - start_s, 0.0, None).sum()) / forward_end_s
    copied_in_s = lanes.copy_end_s[~out]
    backward_s = score.step_s - forward_end_s
    until = (float(copied_in_s.max()) - forward_end_s) / backward_s if copied_in_s.size else 0.0
    return (
        f"copies out during {busy:.0%} of the forward pass; the last copy in ends {until:.0%} into the backward pass."
    )


def _draw5(runs: list[tuple[str, Score, float]]) -> Figure:
    from slackswap.evaluate.figures import figure5

    return figure5(runs)


CAUSES_3 = {
    "fig3.fc1-recomputed": "The plans differ by one FC1 output: 0.1 GB, or 0.5% of the activations.",
}
FIGURE_ITEMS = (
    Item("fig1", "Figure 1: how much of the activations the link hides", _figure1),
    Item("fig2", "Figure 2: cost to free a byte of a GPT-2 XL layer", _figure2),
    Item("fig3", "Figure 3: SlackSwap's plan for GPT-2 XL at 30% of the peak", _figure3, causes=CAUSES_3),
)
STEP_ITEM = Item("fig5", "Figure 5: one GPT-2 XL step at 50% of the peak", _figure5)
