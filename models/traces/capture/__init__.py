"""Captures one training step of a user's PyTorch model as a problem: measured on a device, or without one.

On ``cpu`` and ``cuda`` the step runs under the profiler. As ``fake`` it runs on tensors without memory, and its times are
the roofline of whichever GPU is named.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from slackswap.hardware.catalog import Hardware
from slackswap.hardware.input_error import InputError

if TYPE_CHECKING:
    from slackswap.models.problem import Problem

Device = Literal["cpu", "cuda", "fake"]


def capture(
    target: str,
    *,
    device: Device,
    hardware: Hardware,
    n_steps: int = 5,
    n_warmup: int = 2,
    announce: Callable[[str], None] = lambda _: None,
) -> Problem:
    """Run the training step of a function that the user names, and return it as a problem.

    Parameters
    ----------
    target : ``MODULE:FUNCTION`` or ``FILE.py:FUNCTION``
        Called without arguments, it returns a model, its inputs (a tensor, or a tuple or dict of them), and a loss of the
        model's output, or None where the model returns the loss itself or an output with ``loss``.
    device : where the step runs
    hardware : its link is the problem's; for ``fake``, its GPU gives the times
    n_steps, n_warmup : steps to measure, and steps before them; ``fake`` needs none
    announce : is told what happens, a line at a time

    Raises
    ------
    InputError
        PyTorch or the device is missing, or the user's function raises an exception or returns something else.
    """
    check_torch()
    from slackswap.models.traces.capture.captured_problem import Circumstances, captured_problem
    from slackswap.models.traces.capture.fake_step import fake_step
    from slackswap.models.traces.capture.recorded_step import check_device, device_name, quiet_torch, record_step
    from slackswap.models.traces.capture.training_step import TrainingStep
    from slackswap.models.traces.capture.user_step import call_target, find_target

    quiet_torch()
    import torch

    check_device(device)
    found = find_target(target)
    if device == "fake":
        captured, step = fake_step(found, hardware, announce)
    else:
        step = TrainingStep(call_target(found), device, target)
        captured = record_step(
            step, device=device, source=target, n_steps=n_steps, n_warmup=n_warmup, announce=announce
        )
    circumstances = Circumstances(
        target=target,
        device=device,
        gpu=hardware.gpu.name if device == "fake" else device_name(device),
        torch_version=str(torch.__version__),
        batch=step.batch,
        is_training=step.is_training,
        hardware=hardware,
    )
    return captured_problem(captured, circumstances, target)


def check_torch() -> None:
    """Refuse to go on without PyTorch, naming the extra.

    Raises
    ------
    InputError
        It is not installed.
    """
    if importlib.util.find_spec("torch") is None:
        raise InputError('needs PyTorch, which is not installed: pip install "slackswap[torch]"', source="capture")
