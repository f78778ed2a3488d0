"""Progress of long work, on stderr; silent where stderr is no terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from slackswap.evaluate.results import printable

if TYPE_CHECKING:
    from slackswap.models.problem import Problem

Item = TypeVar("Item")


@contextmanager
def shown_at_work(what: str) -> Iterator[None]:
    """Show on a terminal that something of unknown length is under way, such as reading a large trace."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(printable(what)):
        yield


def collect(items: Iterable[Item], keep: Callable[[Item], object]) -> bool:
    """Keep items as they come; an interruption keeps those that are finished. Return whether all are."""
    try:
        for item in items:
            keep(item)
    except KeyboardInterrupt:
        return False
    return True


class Progress:
    """A bar over `total` plans and bounds that names the one under way."""

    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        console = Console(stderr=True)
        columns = (
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
        )
        self._bar = Bar(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("the first run of all compiles the event model, once", total=total)
        self._announced = 0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def announce(self, problem: Problem, budget: str, what: str) -> None:
        """Show what begins; what was announced before is done."""
        self._bar.update(
            self._task, completed=self._announced, description=printable(f"{problem.name}, {budget}: {what}")
        )
        self._announced += 1
