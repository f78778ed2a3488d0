"""Engines: where the jobs of a sweep run. In this process, on all cores of this machine, or on the machines of a Dask cluster.

An engine gets a function and tasks, and yields each task with what the function returned, in the order in which they end. A
task holds a specification, never a solver or an open file, and at most one packed problem, so that it can run anywhere.
What the function raises is a `Failure` of that task alone. A worker that dies takes no task with it: what it had at work
runs again, and what kills its worker even when it runs alone is a failure too.
"""

from __future__ import annotations

import re
import signal
import traceback
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec

from slackswap.evaluate.results import printable
from slackswap.evaluate.sweep_problems import PackedProblem, keep
from slackswap.hardware.input_error import InputError
from slackswap.planners.warm_up import warm_up

Spec = TypeVar("Spec")
Value = TypeVar("Value")
ENGINES = "serial, local, dask or dask://tcp://host:8786"
_DASK = "dask://"
_MAX_REASON = 500


@dataclass(frozen=True, slots=True)
class Task(Generic[Spec]):
    """What an engine runs; no two tasks of a run have the same `key`.

    Attributes
    ----------
    spec : what the function is called with; small, and pickles
    carried : the problem that `spec` names by its hash, or None
    """

    key: str
    spec: Spec
    carried: PackedProblem | None = None


class Failure(msgspec.Struct, frozen=True):
    """Why a task has no value, on one line; the traceback is for who looks for the cause."""

    reason: str
    bad_input: bool = False
    traceback: str = ""


class Engine(Protocol):
    """Runs tasks."""

    def run(
        self, function: Callable[[Spec], Value], tasks: Sequence[Task[Spec]]
    ) -> Generator[tuple[Task[Spec], Value | Failure], None, None]:
        """Yield every task once, as soon as it has ended; closing the iterator stops what is under way."""
        ...


def find_engine(name: str, jobs: int | None = None) -> Engine:
    """Return the engine that is named ``serial``, ``local``, ``dask`` or ``dask://ADDRESS``.

    Parameters
    ----------
    jobs : processes of ``local`` and ``dask``; None takes one for each core
        A scheduler that already runs has the workers that were started for it, and takes no number.

    Raises
    ------
    InputError
        There is no such engine, it takes no number of jobs, or it is not installed.
    """
    if name == "local":
        return Local(jobs)
    address = name.removeprefix(_DASK) if name.startswith(_DASK) else None
    if jobs is not None and (name == "serial" or address is not None):
        raise InputError(f"'{name}' takes no number of jobs", source="--jobs")
    if name == "serial":
        return Serial()
    if name == "dask" or address:
        from slackswap.evaluate.sweep_engine_dask import Dask

        return Dask(address, jobs)
    raise InputError(f"'{printable(name)}' is not an engine: use {ENGINES}", source="--engine")


def run_task(function: Callable[[Spec], Value], task: Task[Spec]) -> Value | Failure:
    """Run one task in this process."""
    try:
        if task.carried is not None:
            keep(task.carried)
        return function(task.spec)
    except (Exception, SystemExit) as error:  # a planner may be anybody's code; Ctrl-C passes
        return failure_of(error)


def failure_of(error: BaseException) -> Failure:
    """Say on one line what an exception says."""
    bad_input = isinstance(error, InputError)
    text = " ".join(str(error).split())
    reason = text if bad_input else ": ".join(part for part in (type(error).__name__, text) if part)
    return Failure(one_line(reason), bad_input, "".join(traceback.format_exception(error)))


def one_line(text: str) -> str:
    """Return a text on one line that is not too long for a table."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= _MAX_REASON else f"{line[:_MAX_REASON]} ..."


@dataclass(frozen=True)
class Serial:
    """Runs tasks in this process, one after the other, in their order; a search may then score on all cores."""

    def run(
        self, function: Callable[[Spec], Value], tasks: Sequence[Task[Spec]]
    ) -> Generator[tuple[Task[Spec], Value | Failure], None, None]:
        """Yield tasks in their order."""
        warm_up()
        for task in tasks:
            yield task, run_task(function, task)


@dataclass(frozen=True)
class Local:
    """Runs tasks in processes of this machine, with joblib; a single process, or a single task, in this one.

    Parameters
    ----------
    jobs : processes; None takes one for each core
    """

    jobs: int | None = None

    def run(
        self, function: Callable[[Spec], Value], tasks: Sequence[Task[Spec]]
    ) -> Generator[tuple[Task[Spec], Value | Failure], None, None]:
        """Yield tasks as they end.

        When a process dies, joblib gives up on all that it was given, without saying which task was at fault: those tasks
        then run alone, one after the other, and the rest in new processes.
        """
        if self.jobs == 1 or len(tasks) < 2:
            yield from Serial().run(function, tasks)
            return
        warm_up()  # compiles once; the workers then load what is compiled
        left = {task.key: task for task in tasks}
        while left:
            given: list[str] = []
            try:
                yield from _pooled(self.jobs or -1, function, left, given)
            except BrokenExecutor:
                for suspect in [left.pop(key) for key in given if key in left]:
                    yield suspect, _alone(function, suspect)


def _pooled(
    jobs: int, function: Callable[[Spec], Value], left: dict[str, Task[Spec]], given: list[str]
) -> Generator[tuple[Task[Spec], Value | Failure], None, None]:
    """Run tasks in `jobs` processes; take those that have ended from `left`, and note in `given` which ones were begun."""
    from joblib import Parallel, delayed, parallel_config

    def calls() -> Iterator[object]:
        for task in list(left.values()):
            given.append(task.key)
            yield delayed(_run_in_worker)(function, task)

    with parallel_config(backend="loky", inner_max_num_threads=1):
        # With generators joblib hands a task to a worker as soon as one is free; batches would hold back what is finished.
        pool = Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1, max_nbytes=None)
        results = pool(calls())
        try:
            for key, value in results:
                yield left.pop(key), value
        finally:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of what is cut off, which is what an interruption is for
                results.close()


def _alone(function: Callable[[Spec], Value], task: Task[Spec]) -> Value | Failure:
    """Run a task by itself in another process."""
    try:
        # Of one process alone joblib makes this one.
        ((_, value),) = _pooled(2, function, {task.key: task}, [])
    except BrokenExecutor as error:
        codes = re.search(r"\{([^}]*)\}", str(error))
        return Failure(f"the process that ran it died{f' of {codes[1]}' if codes else ''}, also when it ran alone")
    return value


def _run_in_worker(function: Callable[[Spec], Value], task: Task[Spec]) -> tuple[str, Value | Failure]:
    # The terminal interrupts every process of the group; only the first one answers, and ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return task.key, run_task(function, task)
