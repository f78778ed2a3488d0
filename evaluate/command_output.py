"""Files that commands write their results to; ``-`` is stdout."""

from __future__ import annotations

from pathlib import Path

import click

from slackswap.hardware.input_error import InputError


def check_outputs(*paths: str | None) -> None:
    """Refuse outputs that cannot be written, before the work whose results they are meant for."""
    from slackswap.models.atomic_file import check_writable

    named = [path for path in paths if path is not None]
    if len(set(named)) < len(named):
        raise InputError("two outputs would overwrite each other: name different files", source=named[0])
    for path in named:
        if path != "-":
            check_writable(path)


def write_output(path: str | None, text: str) -> None:
    """Write a result to a file, to stdout, or nowhere if there is no path."""
    from slackswap.models.atomic_file import write_atomically

    if path == "-":
        click.echo(text, nl=False)
    elif path is not None:
        write_atomically(Path(path), text.encode())
