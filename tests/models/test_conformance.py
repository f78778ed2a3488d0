"""The event model against the totals that its rules give, as two independent implementations found them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from shared_data import shared_file

from slackswap.models.event_model import simulate
from slackswap.models.plan import Plan
from slackswap.models.problem_file import problem_from_json

RECORDS: list[dict[str, Any]] = json.loads(shared_file("spec/conformance.json").read_text())
CASES = [(record["problem"], case) for record in RECORDS for case in record["cases"]]
TIMES = ("step_s", "recompute_s", "forward_stall_s", "backward_stall_s")
BYTES = ("d2h_bytes", "h2d_bytes", "peak_bytes")


def test_there_are_cases() -> None:
    assert len(CASES) >= 254


@pytest.mark.parametrize(
    ("document", "case"), CASES, ids=[f"{p['name']}-{c['decisions']}-{c['budget_bytes']}" for p, c in CASES]
)
def test_totals_agree(document: dict[str, Any], case: dict[str, Any]) -> None:
    problem = problem_from_json(json.dumps(document).encode())
    score = simulate(problem, Plan.from_letters(case["decisions"]), case["budget_bytes"])
    assert score.fits == case["fits"]
    if not case["fits"]:
        # The cases write "Rt9" for the step that rebuilds t9.
        names = {f"rebuild {name}": f"R{name}" for name in problem.tensor_names}
        assert names.get(score.failed_step or "", score.failed_step) == case["step"]
        assert score.missing_bytes == case["missing_bytes"]
        return
    for column in TIMES:
        assert getattr(score, column) == pytest.approx(case[column], rel=1e-9, abs=1e-12), column
    for column in BYTES:
        assert getattr(score, column) == case[column], column
