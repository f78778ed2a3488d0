"""The table of a sweep: one row per job, in the order of the grid: where the job stands in the grid, then its result.

A job that failed has the status ``error``, its reason in the last column, and nothing between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from slackswap.evaluate import results
from slackswap.evaluate.results import Row, to_csv
from slackswap.evaluate.sweep_engines import Failure
from slackswap.evaluate.sweeps import Case, case_key

ERROR = "error"
PLACE = (
    *("job", "source", "parameters", "hardware", "link_bytes_per_s", "budget"),
    *("time_limit_s", "evaluation_limit", "repetition"),
)
COLUMNS = (*PLACE, *results.COLUMNS, "reason")
_SweepRow = msgspec.defstruct("_SweepRow", [(column, Any, None) for column in COLUMNS])


def sweep_csv(cases: Iterable[Case], ended: Mapping[str, Row | Failure]) -> str:
    """Return the table as CSV with a header.

    Parameters
    ----------
    cases : of the grid
    ended : rows and failures by the key of their case; a case that is not among them has no row
    """
    keys = ((case_key(case), case) for case in cases)
    return to_csv((_row(key, case, ended[key]) for key, case in keys if key in ended), COLUMNS)


def _row(key: str, case: Case, ended: Row | Failure) -> msgspec.Struct:
    place = {
        "job": key,
        "source": case.workload,
        "parameters": " ".join(f"{name}={value}" for name, value in case.parameters),
        "hardware": case.hardware or None,
        "link_bytes_per_s": case.link_bytes_per_s,
        "budget": case.budget,
        "time_limit_s": case.time_limit_s,
        "evaluation_limit": case.evaluation_limit,
        "repetition": case.repetition,
    }
    if isinstance(ended, Failure):
        result = {"planner": case.planner, "seed": case.seed, "status": ERROR, "reason": ended.reason}
    else:
        result = msgspec.structs.asdict(ended)
    row: msgspec.Struct = _SweepRow(**place, **result)
    return row
