"""Figure 4 of the paper, throughput across memory budgets, and every number of section 4.2."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from slackswap.evaluate.paper import Paper
from slackswap.evaluate.reproduction_comparison import DOES_NOT_FIT, Value
from slackswap.evaluate.reproduction_item import (
    Computed,
    Item,
    Points,
    Rows,
    best_baseline,
    cases_of,
    implemented,
    lead,
    span,
)
from slackswap.evaluate.results import Row
from slackswap.evaluate.sweeps import Case, budget_sweep, problem_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OWN = "slackswap"
TIED_WITHIN = 0.0005  # 0.05% of the ideal: a line's width in the figure
VGG, VGG_DOWN_TO_PCT = "vgg-16", 65

Curves = dict[str, dict[str, list[tuple[float, float | None]]]]


def _cases(paper: Paper) -> list[Case]:
    sweeps = paper.sweeps
    return cases_of(
        case
        for workload in sweeps.workloads
        for case in budget_sweep([workload], sweeps.budgets_of(workload), sweeps.planners)
    )


def _compute(paper: Paper, rows: Rows) -> Computed:
    values = {**_entries(paper, rows), **_of_gpt2_xl(rows), **_of_transformers(paper, rows), **_of_vgg(paper, rows)}
    own = [case for case in _cases(paper) if case.planner == OWN]
    all_there = implemented(paper.sweeps.planners) == list(paper.sweeps.planners)
    values["fig4.others-on-top"] = float(sum(_is_beaten(paper, rows, case) for case in own)) if all_there else None
    values |= {"fig4.vdnn.first-offload": span(_at_first_offload(paper, rows)), **_superneurons(paper, rows)}
    values["fig4.planning"] = max(1e3 * rows.by_case[case].planning_s for case in own)
    curves = _curves(paper, rows)
    return Computed(
        values, [_points(paper, name, curve) for name, curve in curves.items()], draw=partial(_draw, paper, curves)
    )


def _entries(paper: Paper, rows: Rows) -> dict[str, Value]:
    """Throughput at the places that the text names: workload, budget, planner."""
    values: dict[str, Value] = {}
    for entry in paper.entries_of("fig4"):
        _, workload, budget, planner = entry.id.split(".")
        values[entry.id] = rows.percent(Case(workload=workload, planner=planner, budget=budget))
    return values


def _of_gpt2_xl(rows: Rows) -> dict[str, Value]:
    def at_half(planner: str) -> Case:
        return Case(workload="gpt2-xl", planner=planner, budget="50%")

    swapping, recomputing = rows.row(at_half("swapadvisor")), rows.by_case[at_half("checkpoint")]
    return {
        "fig4.forward": problem_of(at_half(OWN)).forward_s * 1e3,
        "fig4.swapadvisor.d2h": None if swapping is None else (swapping.d2h_bytes or 0) / 1e9,
        "fig4.checkpoint.rerun": 100 * (recomputing.recompute_s or 0.0) / recomputing.ideal_s,
        "fig4.swapadvisor.gpt2-xl.50%": rows.percent(at_half("swapadvisor")),
        "fig4.superneurons.gpt2-xl.50%": rows.percent(at_half("superneurons")),
        "fig4.vdnn.gpt2-xl.50%": rows.percent(at_half("vdnn")),
    }


def _of_transformers(paper: Paper, rows: Rows) -> dict[str, Value]:
    def at(budget: str, planner: str) -> list[Case]:
        return [Case(workload=name, planner=planner, budget=budget) for name in paper.sweeps.transformers]

    values = {f"fig4.slackswap.{budget}": span(map(rows.percent, at(budget, OWN))) for budget in ("50%", "30%", "10%")}
    values |= {
        f"fig4.lead.{budget}": span(lead(paper, rows, case) for case in at(budget, OWN)) for budget in ("50%", "30%")
    }
    return {**values, "fig4.checkpoint.15%": span(map(rows.percent, at("15%", "checkpoint")))}


def _of_vgg(paper: Paper, rows: Rows) -> dict[str, Value]:
    budgets = paper.sweeps.budgets_of(VGG)
    problem = problem_of(Case(workload=VGG, planner=OWN, budget="100%"))
    first_two = sum(int(problem.tensor_bytes[problem.tensor_names.index(f"conv1_{i}")]) for i in (1, 2))
    down_to = [budget for budget in budgets if int(budget.rstrip("%")) >= VGG_DOWN_TO_PCT]
    return {
        "fig4.vgg-16.first-two": 100 * first_two / problem.saved_bytes,
        "fig4.vgg-16.slackswap": span(
            rows.percent(Case(workload=VGG, planner=OWN, budget=budget)) for budget in down_to
        ),
        "fig4.vgg-16.vdnn-stops": _stops_fitting(rows, VGG, "vdnn", budgets),
        "fig4.vgg-16.checkpoint-stops": _stops_fitting(rows, VGG, "checkpoint", budgets),
    }


def _stops_fitting(rows: Rows, workload: str, planner: str, budgets: Iterable[str]) -> Value:
    """Return the highest budget, in percent of the peak, within which the planner has no plan."""
    if not implemented([planner]):
        return None
    for budget in budgets:
        if rows.percent(Case(workload=workload, planner=planner, budget=budget)) == DOES_NOT_FIT:
            return float(budget.rstrip("%"))
    return "fits at all"


def _at_first_offload(paper: Paper, rows: Rows) -> list[Value]:
    """Return vDNN's throughput at the highest budget at which it copies anything out, for each workload."""
    found: list[Value] = []
    for workload in paper.sweeps.workloads:
        copying = [case for case, row in _curve(paper, rows, workload, "vdnn") if row.d2h_bytes]
        found.append(rows.percent(copying[0]) if copying else None)
    return found


def _superneurons(paper: Paper, rows: Rows) -> dict[str, Value]:
    """Return the lowest budgets down to which SuperNeurons copies nothing out, and its throughput there."""
    lowest: list[Case] = []
    for workload in paper.sweeps.transformers:
        curve = _curve(paper, rows, workload, "superneurons")
        first_copy = next(
            (i for i, (_, row) in enumerate(curve) if row.d2h_bytes or row.throughput is None), len(curve)
        )
        lowest += [case for case, _ in curve[first_copy - 1 : first_copy]]
    return {
        "fig4.superneurons.carried-to": span(float(case.budget.rstrip("%")) for case in lowest),
        "fig4.superneurons.carried-at": span(rows.percent(case) for case in lowest),
    }


def _curve(paper: Paper, rows: Rows, workload: str, planner: str) -> list[tuple[Case, Row]]:
    """Return cases and rows of one curve, from the peak down; nothing where the planner is not there."""
    cases = budget_sweep([workload], paper.sweeps.budgets_of(workload), [planner])
    return [(case, row) for case in cases if (row := rows.row(case)) is not None]


def _is_beaten(paper: Paper, rows: Rows, case: Case) -> bool:
    best = best_baseline(paper, rows, case)
    return best is not None and best > (rows.throughput(case) or 0.0) + TIED_WITHIN


def _curves(paper: Paper, rows: Rows) -> Curves:
    return {
        workload: {
            planner: [(row.budget_fraction, row.throughput) for _, row in _curve(paper, rows, workload, planner)]
            for planner in implemented(paper.sweeps.planners)
        }
        for workload in paper.sweeps.workloads
    }


def _points(paper: Paper, workload: str, by_planner: dict[str, list[tuple[float, float | None]]]) -> Points:
    budgets = paper.sweeps.budgets_of(workload)
    rows = [
        [budget, *(None if curve[i][1] is None else 100 * (curve[i][1] or 0.0) for curve in by_planner.values())]
        for i, budget in enumerate(budgets)
    ]
    title = f"{paper.name(workload)}: % of the ideal by budget (% of the peak)"
    return Points(title, ["budget", *map(paper.name, by_planner)], rows)


def _draw(paper: Paper, curves: Curves) -> Figure:
    from slackswap.evaluate.figures import figure4

    return figure4({paper.name(workload): by_planner for workload, by_planner in curves.items()})


CAUSES = {
    "fig4.vgg-16.90%.swapadvisor": (
        "Belady's rule takes the tensor that is read last, the first convolution's output: 21% of the activations in one "
        "tensor, where the link hides 17%."
    ),
    "fig4.superneurons.carried-to": (
        "Llama-7B copies its first tensor between 71% and 72% of the peak, so the lowest budget of this grid without copies "
        "is 75%; at 70% it still keeps 96.4%."
    ),
    "fig4.vdnn.first-offload": (
        "The high end is Llama-7B, whose forward stall depends on what counts as a layer, as in Table 2."
    ),
    "fig4.slackswap.10%": (
        "Ours is faster: at 10% Pass 2 still covers the excess tensor by tensor and recomputes no block as a whole."
    ),
    "fig4.vgg-16.vdnn-stops": (
        "Here a prefetch that does not fit waits. If it had to fit, the backward pass of the first pool would need 73% of the "
        "peak with the first convolution's output fetched ahead, and vDNN would stop at 70%."
    ),
    "fig4.planning": "Both passes and the event model are compiled here; the paper's planner runs in Python.",
}
BUDGET_ITEM = Item("fig4", "Figure 4: throughput across memory budgets", _compute, _cases, CAUSES)
