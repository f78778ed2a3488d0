"""Options that several commands share, each written once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])

HARDWARE = click.option("--hardware", metavar="NAME|FILE", help="GPU and link: a catalog name or a TOML file.")
SEED = click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of randomized planners."
)


def positive_seconds(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    """Refuse a time limit of no time, or of no end."""
    if value is not None and not (math.isfinite(value) and value > 0):
        raise click.BadParameter(f"{value} is not a number of seconds above 0.")
    return value


def time_limit_of(default_s: float | None) -> Callable[[_Command], _Command]:
    """Return the option for a time limit; without a default each planner has its own."""
    return click.option(
        "--time-limit",
        type=float,
        default=default_s,
        show_default=default_s is not None,
        callback=positive_seconds,
        metavar="S",
        help="Seconds for each plan of a searching planner.",
    )


PLANNERS = click.option("--planner", default="all", show_default=True, metavar="NAME,...", help="Comma-separated.")
JSON = click.option(
    "--json", "json_path", metavar="FILE|-", help="Write the rows as JSON lines; - is stdout, without tables."
)
CSV = click.option("--csv", "csv_path", metavar="FILE|-", help="Write the rows as CSV; - is stdout, without tables.")
TIMES = click.option(
    "--times",
    type=click.Choice(["recorded", "roofline"]),
    default="recorded",
    show_default=True,
    help="Operator times of an execution trace that has none: from the roofline of --hardware.",
)
BOUND = click.option(
    "--bound/--no-bound", default=True, help="Whether to certify a lower bound for each budget, for the gaps."
)
