"""Runs a training step on fake tensors, which have shapes and no memory, and times it by the roofline of a GPU."""

from __future__ import annotations

import tempfile
from pathlib import Path

from slackswap.hardware.catalog import Hardware
from slackswap.models.traces.capture.call_log import CallLog
from slackswap.models.traces.capture.captured_problem import CapturedStep, with_seed_in_backward
from slackswap.models.traces.capture.fake_nodes import merge
from slackswap.models.traces.capture.fake_tensors import fake_tensors, without_memory
from slackswap.models.traces.capture.recorded_step import Announce, early_stop_off, execution_trace_to
from slackswap.models.traces.capture.training_step import TrainingStep
from slackswap.models.traces.capture.user_step import Target, call_target, user_code
from slackswap.models.traces.pytorch.execution_trace import cut_iteration
from slackswap.models.traces.pytorch.roofline_times import roofline_operator_times

_NOTES = (
    "The step ran on fake tensors of a CPU: its calls are a CPU's, and dropout masks have the element type of what they mask"
    " (on a GPU, one byte per element).",
    "A fake kernel has no temporaries of its own: workspaces hold only what calls return to each other, and scratch memory"
    " that a real kernel returns (of an LSTM, say) has no bytes.",
)


def fake_step(target: Target, hardware: Hardware, announce: Announce) -> tuple[CapturedStep, TrainingStep]:
    """Build the model without memory, run one step to warm up and one to observe.

    Raises
    ------
    InputError
        The user's function raised an exception, for instance since it looks at the values of a tensor.
    """
    with fake_tensors() as mode, early_stop_off():
        announce("building the model without memory")
        model, inputs, loss = call_target(target)
        with user_code(target.name, "copying the model"):
            model = without_memory(model, mode)
        step = TrainingStep((model, inputs, loss), "cpu", target.name)
        announce("counting what autograd saves")
        saved = step.run_and_count()
        announce("observing a step")
        log = CallLog()
        observed = _observe(step, log)
    announce("reading the observation")
    calls = merge(observed, log)
    nodes = tuple(call.node for call in calls)
    iteration = with_seed_in_backward(cut_iteration(nodes, target.name))
    times = roofline_operator_times(calls, iteration, hardware)
    times_from = f"the roofline of the {hardware.gpu.name}"
    return CapturedStep(nodes, iteration, calls, times, times_from, saved, _NOTES), step


def _observe(step: TrainingStep, log: CallLog) -> bytes:
    """Run a step under the log and return its execution trace."""
    with tempfile.TemporaryDirectory(prefix="slackswap-") as folder:
        path = Path(folder) / "et.json"
        with log.logging(), step.numbered_blocks(), execution_trace_to(path) as observer:
            observer.start()
            try:
                step.run()
            finally:
                observer.stop()
        return path.read_bytes()
