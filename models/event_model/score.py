"""What the event model reports: totals of one iteration, and its timeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from slackswap.hardware.input_error import InputError
from slackswap.models.problem import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    from slackswap.models.event_model.explanation import Explanation
    from slackswap.models.plan import Plan
    from slackswap.models.problem import Problem
    from slackswap.models.schedule import Schedule


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """The three lanes and the memory of one iteration; times in seconds from its start.

    Attributes
    ----------
    step_names : names of the s steps, operators and rebuilds, that ran (all of them if the plan fits)
    start_s, end_s : (s,) arrays
    input_wait_s, memory_wait_s, barrier_wait_s : (s,) arrays
        How long compute waited before each step because an input was missing, only because memory was, or only because
        the runtime policy held it.
    awaited : (s,) array
        Tensor whose absence held the step up last; -1 where none did.
    copy_is_d2h, copy_tensor, copy_start_s, copy_end_s : (c,) arrays
        Copies in order of their start; the end is infinite where the iteration ended first.
    memory_s, memory_bytes : (q,) arrays
        `used` after every change.
    """

    step_names: tuple[str, ...]
    start_s: FloatArray
    end_s: FloatArray
    input_wait_s: FloatArray
    memory_wait_s: FloatArray
    barrier_wait_s: FloatArray
    awaited: IntArray
    copy_is_d2h: BoolArray
    copy_tensor: IntArray
    copy_start_s: FloatArray
    copy_end_s: FloatArray
    memory_s: FloatArray
    memory_bytes: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """What was simulated; `budget_bytes` as the engine counts, at most 2^62."""

    problem: Problem
    plan: Plan | Schedule
    budget_bytes: int
    policy: str


@dataclass(frozen=True, slots=True, eq=False)
class RunTimeline(Timeline):
    """A timeline that knows what it shows: the numbers of its steps and tensors are those of the run."""

    run: Run


@dataclass(frozen=True, slots=True, eq=False)
class Score:
    """Totals of one simulated iteration (report of the event model).

    Where the plan does not fit, `fits` is false, `failed_step` and `missing_bytes` say where and by how much, and times
    and bytes are those up to that moment.
    """

    fits: bool
    step_s: float
    ideal_s: float
    recompute_s: float
    forward_stall_s: float
    backward_stall_s: float
    d2h_bytes: int
    h2d_bytes: int
    peak_bytes: int
    keep_bytes: int
    swap_bytes: int
    recompute_bytes: int
    failed_step: str | None = None
    missing_bytes: int = 0
    timeline: Timeline | None = None

    @property
    def throughput(self) -> float | None:
        """Ideal step over this step, in (0, 1]; None where the plan does not fit."""
        if not self.fits:
            return None
        return self.ideal_s / self.step_s if self.step_s > 0 else 1.0

    def multiple_of_ideal(self, seconds: float) -> float:
        """`seconds` as a multiple of the ideal step, as in the paper's Table 2."""
        return seconds / self.ideal_s if self.ideal_s > 0 else 0.0

    def explain(self) -> Explanation:
        """Say what limits the plan: stalls by cause, rebuilds, the link, the slack of each reload, memory at the peak.

        Raises
        ------
        InputError
            The score carries no timeline of `simulate`.
        """
        from slackswap.models.event_model.explanation import explain  # reads the schedule, which imports this floor

        return explain(self, self.run_timeline)

    @property
    def run_timeline(self) -> RunTimeline:
        """The timeline, with what was simulated.

        Raises
        ------
        InputError
            The score carries no timeline of `simulate`.
        """
        if not isinstance(self.timeline, RunTimeline):
            raise InputError("has no timeline: simulate with timeline=True", source="score")
        return self.timeline


@dataclass(frozen=True, slots=True, eq=False)
class ScoreTable:
    """Scores of many plans of one problem, one array entry per plan; `step_s` is infinite where a plan does not fit."""

    fits: BoolArray
    step_s: FloatArray
    recompute_s: FloatArray
    forward_stall_s: FloatArray
    backward_stall_s: FloatArray
    d2h_bytes: IntArray
    h2d_bytes: IntArray
    peak_bytes: IntArray
    missing_bytes: IntArray

    def best(self) -> int | None:
        """Index of the fastest plan that fits, the first of equals; None where none does."""
        return int(np.argmin(self.step_s)) if self.fits.any() else None
