"""The engine for a sweep that one machine is too small for: a Dask cluster, of this machine or of many.

The scheduler, on one machine, and the workers, on each of them, are started by hand or by the batch system::

    dask scheduler --host 10.0.0.1 --port 8786 --no-dashboard
    OMP_NUM_THREADS=1 dask worker tcp://10.0.0.1:8786 --nworkers 16 --nthreads 1 --no-dashboard
    slackswap sweep grid.toml -o results.csv --engine dask://tcp://10.0.0.1:8786

All of them have the same slackswap installed, with the extra ``cluster``; workers may come and go during a sweep, and need
no file of it. A worker runs one job at a time, on one core, since a job's planning time is one of its results: more threads
than one do not help. Whoever can reach a scheduler can run code on its workers: let it listen in a network that you trust, or use
Dask's TLS (``dask://tls://...``). Without an address, ``--engine dask`` starts scheduler and workers on this machine, for
as long as the sweep runs, on 127.0.0.1 alone (which whoever has an account on this machine can reach) and without a dashboard.

Dask runs again what a dead worker had at work, and gives up on a task whose workers died several times. It cannot tell
which of the tasks that a worker was given killed it: what it gives up on runs once more, alone, after all the others.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import queue
import re
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Generic

import click

from slackswap.evaluate.results import printable
from slackswap.evaluate.sweep_engines import Failure, Spec, Task, Value, one_line, run_task
from slackswap.evaluate.sweep_problems import PackedProblem
from slackswap.evaluate.sweep_store import code_digest
from slackswap.hardware.input_error import InputError
from slackswap.models.event_model.batch import usable_cores
from slackswap.planners.warm_up import warm_up

CONNECT_S, FIRST_WORKER_S = 10.0, 60.0
# Tasks in the hands of the cluster for each of its threads: enough that none waits for this process, and no more, since all
# that a dying worker holds come under suspicion, and all that are given out are lost to an interruption.
_TASKS_PER_THREAD, _FEWEST_TASKS = 3, 4
_POLL_S, _COUNT_AGAIN_S = 1.0, 2.0
_SOURCE = "--engine"
_ADDRESS = re.compile(r"(?:(?:tcp|tls|wss?)://)?(?:[^\s:/\[\]]+|\[[0-9a-fA-F:]+\]):\d{1,5}", re.ASCII)
_one_at_a_time = threading.Lock()
_GIVEN_UP = object()
_LOST = "the Dask scheduler was lost, or took the jobs back: what is finished is kept, run the same command to go on"


@dataclass(frozen=True)
class Dask:
    """Runs tasks on the workers of a Dask scheduler.

    Parameters
    ----------
    address : of a scheduler that runs, such as ``tcp://10.0.0.1:8786``, or None for a cluster on this machine
    jobs : workers of the cluster on this machine; None takes one for each core
    """

    address: str | None = None
    jobs: int | None = None

    def __post_init__(self) -> None:
        try:
            import dask.distributed  # noqa: F401 - whether it is there
        except ImportError:
            rule = 'needs the cluster extra: pip install "slackswap[cluster]"'
            raise InputError(rule, source=_SOURCE) from None
        if self.address is not None and not _ADDRESS.fullmatch(self.address):
            rule = f"'{printable(self.address)}' is no address of a Dask scheduler: write dask://tcp://host:8786"
            raise InputError(rule, source=_SOURCE)

    def run(
        self, function: Callable[[Spec], Value], tasks: Sequence[Task[Spec]]
    ) -> Generator[tuple[Task[Spec], Value | Failure], None, None]:
        """Yield tasks as they end.

        Raises
        ------
        InputError
            No scheduler answers, it has no workers, it is lost on the way, or workers run other code than this process.
        """
        if not tasks:
            return
        with _client(self.address, self.jobs) as client:
            run = _Run(client, function)
            try:
                yield from run.ended(tasks, alone=False)
                yield from run.ended(run.suspects, alone=True)
            except OSError:
                raise InputError(_LOST, source=_SOURCE) from None


@contextmanager
def _client(address: str | None, jobs: int | None) -> Iterator[Any]:
    """Connect to a scheduler, and wait for its first worker."""
    from dask.distributed import Client, LocalCluster

    with ExitStack() as stack:
        stack.enter_context(_without_log())
        if address is None:
            warm_up()  # compiles once; the workers then load what is compiled
            where: Any = LocalCluster(
                n_workers=jobs or usable_cores(),
                threads_per_worker=1,
                host="127.0.0.1",
                dashboard_address=None,
                # Its status pages have a port all the same: any free one, else the default, which may be taken.
                scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
                memory_limit=None,
                silence_logs=logging.CRITICAL,
            )
            stack.callback(where.close, timeout=CONNECT_S)
        else:
            where = address if "://" in address else f"tcp://{address}"
        try:
            client = Client(where, timeout=CONNECT_S, set_as_default=False)
        except OSError as error:
            reason = one_line(str(error)) or type(error).__name__
            raise InputError(f"no Dask scheduler answers at {address}: {reason}", source=_SOURCE) from None
        stack.callback(client.close, timeout=CONNECT_S)
        try:
            client.wait_for_workers(1, timeout=FIRST_WORKER_S)
        except TimeoutError:
            rule = (
                f"the Dask scheduler has no worker after {FIRST_WORKER_S:.0f} s: start some,"
                f" `dask worker {where} --nthreads 1`"
            )
            raise InputError(rule, source=_SOURCE) from None
        if address is None:
            client.register_plugin(_deaf_to_interrupts())
        yield client


@contextmanager
def _without_log() -> Iterator[None]:
    """Keep Dask's own log off stderr: what matters is said in one line."""
    handlers = logging.getLogger("distributed").handlers
    levels = [handler.level for handler in handlers]
    for handler in handlers:
        handler.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for handler, level in zip(handlers, levels, strict=True):
            handler.setLevel(level)


def _deaf_to_interrupts() -> Any:
    """Return a plugin for workers of this terminal, which interrupts every process of the group: only the first answers."""
    from dask.distributed import WorkerPlugin

    class DeafToInterrupts(WorkerPlugin):  # type: ignore[misc]  # Dask's types are not read
        name = "slackswap-deaf-to-interrupts"

        def setup(self, worker: object) -> None:
            del worker
            with suppress(ValueError):  # a worker in a thread of this process
                signal.signal(signal.SIGINT, signal.SIG_IGN)

    return DeafToInterrupts()


@dataclass
class _Run(Generic[Spec, Value]):
    """The tasks that are in the hands of the cluster, by key."""

    client: Any
    function: Callable[[Spec], Value]
    given: dict[str, tuple[Task[Spec], Any]] = field(default_factory=dict)
    problems: dict[str, Any] = field(default_factory=dict)
    suspects: list[Task[Spec]] = field(default_factory=list)
    _done: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)
    _counted_s: float = -_COUNT_AGAIN_S
    _threads: int = 1

    def ended(
        self, tasks: Sequence[Task[Spec]], *, alone: bool
    ) -> Generator[tuple[Task[Spec], Value | Failure], None, None]:
        """Yield tasks as they end; those that Dask gives up on become `suspects`, or failures where they ran `alone`."""
        waiting = deque(tasks)
        wanted = Counter(task.carried.sha256 for task in tasks if task.carried is not None)
        while waiting or self.given:
            while waiting and len(self.given) < (1 if alone else self._room()):
                self._give(waiting.popleft(), "-alone" if alone else "")
            task, value = self._next()
            if task.carried is not None:
                wanted[task.carried.sha256] -= 1
                if not wanted[task.carried.sha256]:
                    del self.problems[task.carried.sha256]
            if value is not _GIVEN_UP:
                yield task, value
            elif alone:
                yield task, Failure("every worker that ran it died, also when it ran alone")
            else:
                self.suspects.append(task)

    def _room(self) -> int:
        """How many tasks the cluster has room for, as many as its workers have threads now."""
        if time.monotonic() - self._counted_s > _COUNT_AGAIN_S:
            threads = sum(self.client.nthreads().values())
            if self._threads and not threads:
                click.echo("no worker is left: waiting for one (Ctrl-C keeps what is finished)", err=True)
            self._threads, self._counted_s = threads, time.monotonic()
        return max(_FEWEST_TASKS, _TASKS_PER_THREAD * self._threads)

    def _give(self, task: Task[Spec], suffix: str) -> None:
        if self.client.status != "running":
            raise InputError(_LOST, source=_SOURCE)
        content = None if task.carried is None else self._problem(task.carried)
        future = self.client.submit(
            _run_on_worker,
            self.function,
            task.key,
            task.spec,
            None if task.carried is None else task.carried.sha256,
            content,
            code_digest(),
            # Jobs are known by the hash of what they depend on; other functions of the same job are other work.
            key=f"{getattr(self.function, '__name__', 'task')}-{task.key}{suffix}",
            pure=False,
        )
        self.given[task.key] = task, future
        future.add_done_callback(lambda ended: self.client.loop.add_callback(self._fetch, task.key, ended))

    async def _fetch(self, key: str, future: Any) -> None:
        """Fetch what came of a task, beside the others: from a worker that has just died that takes Dask half a minute."""
        value: Any
        try:
            value = await self.client.gather(future, asynchronous=True)
        except BaseException as error:  # including the cancellation by a client that is closed
            value = _Raised(error)
        self._done.put((key, future, value))

    def _problem(self, packed: PackedProblem) -> Any:
        """Return a problem as a task of its own: sent once, and made again where the worker that holds it dies."""
        if packed.sha256 not in self.problems:
            key = f"problem-{packed.sha256}"
            self.problems[packed.sha256] = self.client.submit(bytes, packed.content, key=key, pure=False)
        return self.problems[packed.sha256]

    def _next(self) -> tuple[Task[Spec], Any]:
        """Wait for the next task that ends; its value is `_GIVEN_UP` where Dask has given up on it."""
        while True:
            try:
                key, future, value = self._done.get(timeout=_POLL_S)
            except queue.Empty:
                self._room()
                continue
            if key in self.given and self.given[key][1] is future:
                task, _ = self.given.pop(key)
                future.release()  # the cluster forgets what is here now
                return task, _settled(value)


@dataclass(frozen=True)
class _Raised:
    """What waiting for a task raised; what the job itself raises comes back as a value."""

    error: BaseException


def _settled(value: Any) -> Any:
    """Return what came of a task, `_GIVEN_UP` where Dask gave up on it; refuse to go on where the cluster is at fault."""
    from dask.distributed import KilledWorker

    if not isinstance(value, _Raised):
        return value
    try:
        raise value.error
    except KilledWorker:
        return _GIVEN_UP
    except (asyncio.CancelledError, concurrent.futures.CancelledError, OSError):
        raise InputError(_LOST, source=_SOURCE) from None
    except InputError as error:
        raise InputError(error.rule, source=_SOURCE) from None
    except Exception as error:
        reason = one_line(f"{type(error).__name__}: {error}")
        rule = f"the Dask workers cannot run the jobs ({reason}): install the same slackswap on all machines"
        raise InputError(rule, source=_SOURCE) from None


def _run_on_worker(
    function: Callable[[Spec], Value], key: str, spec: Spec, sha256: str | None, content: bytes | None, code: str
) -> Value | Failure:
    """Run a task in a worker, which may have several threads: one at a time, so that times mean something."""
    carried = None if sha256 is None or content is None else PackedProblem(sha256, content)
    os.environ["OMP_NUM_THREADS"] = "1"  # what searches reads it when it begins
    with _one_at_a_time:
        if code_digest() != code:
            raise InputError("a Dask worker runs another slackswap than this process: install the same on all machines")
        warm_up()
        return run_task(function, Task(key, spec, carried))
