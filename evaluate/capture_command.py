"""The command ``slackswap capture``: one training step of a user's PyTorch model, as a problem."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from slackswap.evaluate.command_options import HARDWARE
from slackswap.evaluate.command_output import check_outputs

if TYPE_CHECKING:
    from slackswap.models.traces.capture import Device


@click.command()
@click.argument("target", metavar="MODULE:FUNCTION")
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda", "fake"]),
    default="cpu",
    show_default=True,
    help="Where the step runs; fake: nowhere, without memory, and the times are the roofline of --hardware.",
)
@HARDWARE
@click.option("--steps", type=click.IntRange(min=1), default=5, show_default=True, help="Steps that are measured.")
@click.option("--warmup", type=click.IntRange(min=1), default=2, show_default=True, help="Steps before them.")
@click.option("-o", "--output", metavar="FILE", help="Write the problem here (.json or .json.gz).")
def capture(target: str, device: Device, hardware: str | None, steps: int, warmup: int, output: str | None) -> None:
    """Run one training step of your PyTorch model and show it as a problem; write the problem with -o.

    FUNCTION is called without arguments and returns (model, inputs, loss): an nn.Module; the tensors that it is called
    with (one, a tuple, or a dict by argument name); and a function from the model's output to a scalar, or None where the
    model returns the loss itself. MODULE is importable from here, or a file: `train.py:step`.

    Needs the torch extra: pip install "slackswap[torch]".
    """
    from slackswap.evaluate.problem_report import print_problem
    from slackswap.hardware import DEFAULT_HARDWARE, load_hardware
    from slackswap.models.problem_file import write_problem
    from slackswap.models.traces.capture import capture as run

    check_outputs(output)
    problem = run(
        target,
        device=device,
        hardware=load_hardware(hardware or DEFAULT_HARDWARE),
        n_steps=steps,
        n_warmup=warmup,
        announce=lambda line: click.echo(line, err=True),
    )
    print_problem(problem)
    if output is not None:
        write_problem(problem, output)
        click.echo(f"problem written to {output}", err=True)
