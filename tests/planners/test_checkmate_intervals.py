"""Formulation C in CP-SAT, which runs in a process of its own."""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pulp  # noqa: F401 - brings highspy into this process, beside which OR-Tools cannot be imported
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from reference_rematerialization import cheapest_rebuild_s

from slackswap.models.event_model import simulate
from slackswap.models.legality import check
from slackswap.models.problem import Problem
from slackswap.planners import checkmate_process
from slackswap.planners.checkmate_finding import Finding
from slackswap.planners.checkmate_graph import RematerializationGraph
from slackswap.planners.checkmate_intervals import Grid
from slackswap.planners.checkmate_process import Child, findings_of
from slackswap.planners.checkmate_schedule import Steps, fits, schedule_of
from test_checkmate_milp import tight, unit_chain

SECONDS = 30.0


def searched(
    graph: RematerializationGraph, known: Steps | None = None, *, copies: int = 2, seconds: float = SECONDS
) -> Finding:
    """The last word of CP-SAT."""
    options = {"intervals": {"copies": copies}}
    return list(findings_of(["intervals"], graph, known, time.monotonic() + seconds, options))[-1]
