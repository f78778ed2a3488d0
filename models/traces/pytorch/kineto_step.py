"""Chooses one training step of a Kineto trace and reads it; the rest of the file is looked at and forgotten.

Windows are the profiler's step markers; without them what lies between two ends of the optimizer, or between two
starts of `zero_grad`; without those the whole file. Only a window with a forward and a backward pass will do: the last
one, since earlier ones warm up.
"""

from __future__ import annotations

import itertools
import math
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from slackswap.hardware.input_error import InputError
from slackswap.models.traces.pytorch.execution_trace import STEP_MARKER
from slackswap.models.traces.pytorch.kineto import KinetoTrace, Window, read_kineto
from slackswap.models.traces.pytorch.kineto_events import CpuOperator, EventStream, PlacedEvent
from slackswap.models.traces.trace_file import TraceFile

_OPTIMIZER_STEP = "Optimizer.step#"
_ZERO_GRAD = "Optimizer.zero_grad#"


@dataclass(frozen=True, slots=True)
class Step:
    """A window of the trace, in microseconds, and what it is called."""

    name: str
    window: Window

    @property
    def number(self) -> str:
        """What stands behind `#` in the name: `7` of `ProfilerStep#7` and of `#7 of 9 between optimizer calls`."""
        return self.name.partition("#")[2].partition(" ")[0]

    @property
    def wall_us(self) -> float:
        """Time from start to end; infinite where the whole file is one step."""
        return self.window[1] - self.window[0]


@dataclass(slots=True)
class KinetoSurvey:
    """What one look at a whole Kineto trace finds out: where its steps are, and what was recorded.

    Attributes
    ----------
    markers : spans of step markers, ends of optimizer steps and starts of `zero_grad` among them, by prefix
    backward_us, numbered_us : starts of calls of the backward pass, and of forward calls that autograd numbered
    n_operators, n_work, n_with_shapes, n_memory, n_addresses : how many of each there are
    n_launches : calls of the runtime that launched something
    work_s : time of all device work
    """

    markers: dict[str, list[Step]] = field(default_factory=dict)
    backward_us: array[float] = field(default_factory=lambda: array("d"))
    numbered_us: array[float] = field(default_factory=lambda: array("d"))
    categories: Counter[str] = field(default_factory=Counter)
    n_operators: int = 0
    n_with_shapes: int = 0
    n_work: int = 0
    n_launches: int = 0
    work_s: float = 0.0
    n_memory: int = 0
    n_addresses: int = 0

    def add(self, placed: PlacedEvent) -> None:
        """Take one event into account."""
        if placed.kind == "operator":
            self._add_operator(placed.operator())
        elif placed.kind == "work":
            self.n_work += 1
            self.work_s += placed.duration_us * 1e-6
        elif placed.kind == "launch":
            self.n_launches += "launch" in (placed.event.name or "").lower()
        elif placed.kind == "memory" and (event := placed.memory()):
            self.n_memory += 1
            self.n_addresses += event.address is not None

    def _add_operator(self, operator: CpuOperator) -> None:
        self.n_operators += not operator.is_annotation
        self.n_with_shapes += bool(operator.shapes)
        if operator.is_annotation:
            for prefix in (STEP_MARKER, _OPTIMIZER_STEP, _ZERO_GRAD):
                if operator.name.startswith(prefix):
                    span = (operator.start_us, operator.end_us)
                    self.markers.setdefault(prefix, []).append(Step(operator.name, span))
        elif operator.is_backward:
            self.backward_us.append(operator.start_us)
        elif operator.sequence >= 0:
            self.numbered_us.append(operator.start_us)

    def steps(self) -> list[Step]:
        """Return every step in order of time, usable or not."""
        for prefix in (STEP_MARKER, _OPTIMIZER_STEP, _ZERO_GRAD):
            found = sorted(self.markers.get(prefix, ()), key=lambda step: step.window)
            if not found:
                continue
            if prefix == STEP_MARKER:
                return found
            ends = [step.window[1] if prefix == _OPTIMIZER_STEP else step.window[0] for step in found]
            bounds = [-math.inf, *ends] if prefix == _OPTIMIZER_STEP else [*ends, math.inf]
            return [
                Step(f"#{i} of {len(bounds) - 1} between optimizer calls", (start, end))
                for i, (start, end) in enumerate(itertools.pairwise(bounds))
            ]
        return []

    def usable_steps(self) -> list[Step]:
        """Return the steps with a forward pass that a backward pass follows; the whole file where no step is marked."""
        backward, numbered = sorted(self.backward_us), sorted(self.numbered_us)
        steps = self.steps() or [Step("the whole file", (-math.inf, math.inf))]
        return [step for step in steps if _is_trained_in(step, numbered, backward)]


def survey_kineto(file: TraceFile) -> KinetoSurvey:
    """Look at every event of a Kineto trace once.

    Raises
    ------
    InputError
        The file is torn or not JSON, or a value has the wrong type.
    """
    events, survey = EventStream(file), KinetoSurvey()
    for placed in events:
        try:
            survey.add(placed)
        except InputError as error:
            raise events.located(error, placed) from None
    return survey


def choose_step(survey: KinetoSurvey, source: str, name: str = "") -> Step:
    """Return the last usable step, or the one whose name ends in `name`.

    Raises
    ------
    InputError
        No step has both passes, or none has this name.
    """
    usable = survey.usable_steps()
    if name:
        named = [step for step in usable if name in (step.name, step.number)]
        if not named:
            shown = ", ".join(step.name for step in usable) or "none"
            raise InputError(f"has no training step of this name; usable: {shown}", place=name, source=source)
        return named[-1]
    if not usable:
        if not survey.n_operators:
            raise InputError("records no calls: it is empty; profile with activities=[CPU, CUDA]", source=source)
        if not survey.backward_us:
            raise InputError("has no backward pass: it is not a trace of training", source=source)
        raise InputError(
            f"none of its {len(survey.steps())} steps holds a forward and a backward pass: record a whole step",
            source=source,
        )
    return usable[-1]


def read_step(file: TraceFile, step: Step) -> KinetoTrace:
    """Read the calls of a step and the device work that they launched."""
    whole = math.isinf(step.window[0]) and math.isinf(step.window[1])
    return read_kineto(file, window=None if whole else step.window)


def _is_trained_in(step: Step, numbered_us: Sequence[float], backward_us: Sequence[float]) -> bool:
    start_us, end_us = step.window
    first_numbered = bisect_left(numbered_us, start_us)
    if first_numbered == len(numbered_us):
        return False
    first_backward = bisect_left(backward_us, numbered_us[first_numbered])
    return first_backward < len(backward_us) and backward_us[first_backward] <= end_us
