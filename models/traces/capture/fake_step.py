"""Runs a training step on fake tensors, which have shapes and no memory, and times it by the roofline of a GPU."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from slackswap.hardware.catalog import Hardware
from slackswap.models.traces.capture.call_log import CallLog
from slackswap.models.traces.capture.captured_problem import CapturedStep, with_seed_in_backward
from slackswap.models.traces.capture.fake_nodes import merge
from slackswap.models.traces.capture.fake_tensors import fake_tensors
from slackswap.models.traces.capture.recorded_step import Announce, early_stop_off
from slackswap.models.traces.capture.training_step import TrainingStep
from slackswap.models.traces.capture.user_step import Target, call_target
from slackswap.models.traces.execution_trace import cut_iteration
from slackswap.models.traces.roofline_times import roofline_operator_times


def fake_step(target: Target, hardware: Hardware, announce: Announce) -> tuple[CapturedStep, TrainingStep]:
    """Build the model without memory, run one step to warm up and one to observe.

    Raises
    ------
    InputError
        The user's function raised an exception, for instance since it looks at the values of a tensor.
    """
    with fake_tensors(), early_stop_off():
        announce("building the model without memory")
        step = TrainingStep(call_target(target), "cpu", target.name)
        announce("counting what autograd saves")
        saved = step.run_and_count()
        announce("observing a step")
        log = CallLog()
        with log.logging(), step.numbered_blocks(), _observed() as observed:
            step.run()
    announce("reading the observation")
    calls = merge(observed.read(), log)
    nodes = tuple(call.node for call in calls)
    iteration = with_seed_in_backward(cut_iteration(nodes, target.name))
    times = roofline_operator_times(calls, iteration, hardware)
    times_from = f"the roofline of the {hardware.gpu.name}"
    return CapturedStep(nodes, iteration, calls, times, times_from, saved), step


class _Observed:
    """Where the execution trace is written to, and its bytes once it is whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._content = b""

    def load(self) -> None:
        self._content = self.path.read_bytes()

    def read(self) -> bytes:
        return self._content


@contextlib.contextmanager
def _observed() -> Iterator[_Observed]:
    """Record an execution trace while inside."""
    from torch.profiler import ExecutionTraceObserver

    with tempfile.TemporaryDirectory(prefix="slackswap-") as folder:
        observed = _Observed(Path(folder) / "et.json")
        observer = ExecutionTraceObserver().register_callback(str(observed.path))
        observer.start()
        try:
            yield observed
        finally:
            observer.stop()
            observer.unregister_callback()
        observed.load()
