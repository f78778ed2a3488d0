"""Rows for the two copy engines: how much work they can have done by each point, and how much they must have done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackswap.models.problem import FloatArray
from slackswap.planners.bound.model import BoundModel, Terms

if TYPE_CHECKING:
    import pulp


def add_link_rows(model: BoundModel) -> None:
    """Add the rows of both engines."""
    offloaded = _offload_rows(model)
    _knapsack_rows(model)
    _fetch_rows(model, offloaded)
    _deadline_rows(model)


def _offload_rows(model: BoundModel) -> list[pulp.LpVariable]:
    """Return the work of the D2H engine by each point."""
    done: list[pulp.LpVariable] = []
    work = model.facts.offload_s * model.second
    produced: Terms = []  # F_k <= work of what is produced before k, as an inventory
    for k in range(len(model.points)):
        offloaded, available = model.variable(), model.variable()
        terms, ideal = model.elapsed(k)
        before: Terms = [(done[k - 1], -1.0)] if k else []
        model.row([(offloaded, 1.0), *before, *terms], high=ideal)
        if k:
            model.row([(offloaded, 1.0), *before], low=0.0)
            # What is produced from the last point on is there when that operator has ended, at the earliest.
            first_s = float(model.facts.problem.duration_s[model.points[k - 1]]) * model.second
            model.row([(offloaded, 1.0), *produced, *terms], high=ideal - first_s)
        new = [(c.swapped, -work[c.first]) for c in model.classes if c.produced == k and c.swapped is not None]
        model.row([(available, 1.0), *produced, *new], 0.0, 0.0)
        produced = [(available, -1.0)]
        model.row([(offloaded, 1.0), (available, -1.0)], high=0.0)
        gone = [(c.gone[k], -work[c.first]) for c in model.classes if k in c.gone]
        if gone:
            model.row([(offloaded, 1.0), *gone], low=0.0)
        done.append(offloaded)
    return done


def _knapsack_rows(model: BoundModel) -> None:
    """What is produced from a point on and gone by the turn of the passes has left since: the offload rows, summed up.

    Nothing new for the relaxation, but whole numbers are found much sooner in rows that hold nothing else.
    """
    start_s, duration_s = model.facts.start_s, model.facts.problem.duration_s
    work = model.facts.offload_s * model.second
    for k in model.tight:
        if model.points[k] != model.facts.problem.n_forward and not model.looks_ahead:
            continue
        for j in range(k):
            since_s = float(start_s[model.points[k]] - start_s[model.points[j]] - duration_s[model.points[j]])
            gone = [(c.gone[k], work[c.first]) for c in model.classes if k in c.gone and c.produced > j]
            if gone:
                model.row([*gone, (model.delay[k], -1.0), (model.delay[j], 1.0)], high=since_s * model.second)


def _fetch_rows(model: BoundModel, done: list[pulp.LpVariable]) -> None:
    problem = model.facts.problem
    work = model.facts.fetch_s * model.second
    fetched: pulp.LpVariable | None = None
    for k in range(len(model.points)):
        if model.points[k] < problem.n_forward:
            continue
        now = model.variable()
        terms, ideal = model.elapsed(k)
        if fetched is None:  # from the end of the forward pass, not from the start of its last operator
            began_s = model.facts.start_s[model.points[k - 1]] if k else 0.0
            ideal -= float(model.facts.start_s[problem.n_forward] - began_s) * model.second
            more: Terms = [(now, 1.0)]
        else:
            more = [(now, 1.0), (fetched, -1.0)]
            _duplex_row(model, done, k, more, terms, ideal)
            model.row(more, low=0.0)
        model.row([*more, *terms], high=ideal)
        due = [(c.swapped, -work[c.first]) for c in model.classes if c.due <= k and c.swapped is not None]
        model.row([(now, 1.0), *due, *_due_for_rebuilds(model, k, work)], low=0.0)
        if k in model.tight:
            coming = [(c.coming[k], -work[c.first]) for c in model.classes if k in c.coming]
            model.row([(now, 1.0), *due, *coming], high=0.0)
        fetched = now


def _deadline_rows(model: BoundModel) -> None:
    """What has not begun to come back at point j and is due by k crosses the link in between: the queue is in that order."""
    work = model.facts.fetch_s * model.second
    dues = sorted({c.due for c in model.classes if c.coming and c.due < len(model.points)})
    for j in model.looked_at:
        for k in dues:
            late = [c for c in model.classes if j in c.coming and c.due <= k and c.swapped is not None]
            if not late:
                continue
            terms = [(c.swapped, work[c.first]) for c in late] + [(c.coming[j], -work[c.first]) for c in late]
            since_s = float(model.facts.start_s[model.points[k]] - model.facts.start_s[model.points[j]])
            model.row([*terms, (model.delay[k], -1.0), (model.delay[j], 1.0)], high=since_s * model.second)


def _duplex_row(
    model: BoundModel, done: list[pulp.LpVariable], k: int, fetched: Terms, elapsed: Terms, ideal: float
) -> None:
    """D2H bytes + kappa H2D bytes, in seconds at full bandwidth, in the time between two points.

    The engines' work counts latencies, in which nothing slows: a share of at most 1 - least of any copy, and at an end of
    the interval one whole latency.
    """
    link = model.facts.problem.link
    duplex = link.duplex_factor
    if duplex >= 1.0 or not model.facts.candidates.size:
        return
    kappa = min(1.0, (1.0 - duplex) / duplex)
    least_d2h = 1.0 - link.latency_s / float(model.facts.offload_s[model.facts.candidates].min())
    least_h2d = 1.0 - link.latency_s / float(model.facts.fetch_s[model.facts.candidates].min())
    slack = 2 * kappa * link.latency_s * model.second
    offloaded: Terms = [(done[k], 1.0), (done[k - 1], -1.0)]
    d2h = [(variable, sign * (1.0 - kappa * (1.0 - least_d2h))) for variable, sign in offloaded]
    h2d = [(variable, sign * kappa * least_h2d) for variable, sign in fetched]
    model.row([*d2h, *h2d, *elapsed], high=ideal + slack)


def _due_for_rebuilds(model: BoundModel, k: int, work: FloatArray) -> Terms:
    """What a rebuild before point k reads has been fetched by then, if it was swapped."""
    terms: Terms = []
    for source, users in model.chains.at.get(model.points[k], {}).items():
        one = model.class_of[source]
        rebuilt = [
            user.recomputed
            for user in (model.class_of.get(u) for u in users.present)
            if user is not None and user.recomputed is not None
        ]
        if one.swapped is None or not rebuilt:
            continue
        needed = model.variable(1)
        for recomputed in rebuilt:
            model.row([(needed, 1.0), (one.swapped, -1.0), (recomputed, -1.0)], low=-1.0)
        terms.append((needed, -work[source]))
    return terms
