"""Many plans of one problem, lowered and simulated by one or several threads."""

from __future__ import annotations

import itertools
import math
import os
import threading
import weakref

import numpy as np

from slackswap.models.event_model.buffers import Buffers, buffers_of
from slackswap.models.event_model.kernel import columns as at
from slackswap.models.event_model.kernel.iteration import run_batch
from slackswap.models.plan import DecisionArray
from slackswap.models.problem import Problem

# The rows that a thread takes at once keep it busy for some 0.2 ms: long against a call (10 us), short against a batch.
_OPERATORS_AND_TENSORS_AT_ONCE = 10_000


class _PerThread(threading.local):
    # Helpers end with the call that started them; their buffers lie here until the next call.
    def __init__(self) -> None:
        self.of_problem: weakref.WeakKeyDictionary[Problem, list[Buffers]] = weakref.WeakKeyDictionary()


_spare = _PerThread()


class Batch:
    """Plans as rows; row i of `integers` and `floats` receives the engine's state at the end of plan i.

    Each thread has its own buffers, so the results depend neither on which thread plays a row nor on how many there are.
    """

    def __init__(self, problem: Problem, rows: DecisionArray, budget_bytes: int, policy: int) -> None:
        self.integers = np.zeros((len(rows), at.N_INTEGERS), np.int64)
        self.floats = np.zeros((len(rows), at.N_FLOATS))
        self._problem = problem
        self._rows = rows
        self._budget_bytes = budget_bytes
        self._policy = policy
        self._at_once = max(1, _OPERATORS_AND_TENSORS_AT_ONCE // (problem.n_operators + problem.n_tensors))
        # Plans take unequal time (those that do not fit end early), so a thread that is done takes the next rows.
        self._firsts = itertools.count(0, self._at_once)
        self._stopped = False
        self._failure: BaseException | None = None

    def run(self, threads: int) -> None:
        """Play every row on at most `threads` threads, of which the caller is one."""
        buffers = buffers_of(self._problem)
        n_helpers = min(threads, math.ceil(len(self._rows) / self._at_once)) - 1
        if n_helpers < 1:
            self._play(buffers, 0, len(self._rows))
            return
        self._play(buffers, 0, 0)  # compiles, if nothing has yet: that is not for two threads at once
        spare = _spare.of_problem.setdefault(self._problem, [])
        helpers: list[threading.Thread] = []
        try:
            for _ in range(n_helpers):
                helpers.append(threading.Thread(target=self._help, args=(spare,), daemon=True))
                helpers[-1].start()
            self._take(buffers)
        finally:
            self._stopped = True  # after Ctrl-C, helpers end with the rows at hand
            for helper in helpers:
                if helper.ident is not None:  # it was started
                    helper.join()
        if self._failure is not None:
            raise self._failure

    def _help(self, spare: list[Buffers]) -> None:
        try:
            buffers = spare.pop() if spare else buffers_of(self._problem)
            self._take(buffers)
            spare.append(buffers)
        except BaseException as failure:
            self._failure = failure
            self._stopped = True

    def _take(self, buffers: Buffers) -> None:
        for first in self._firsts:
            if self._stopped or first >= len(self._rows):
                return
            self._play(buffers, first, first + self._at_once)

    def _play(self, buffers: Buffers, first: int, last: int) -> None:
        run_batch(
            buffers.problem,
            self._rows[first:last],
            self._budget_bytes,
            self._policy,
            buffers.schedule,
            buffers.scratch,
            buffers.no_log,
            self.integers[first:last],
            self.floats[first:last],
        )


def usable_cores() -> int:
    """Cores that this process may use: its affinity, or fewer where ``OMP_NUM_THREADS`` says so, as parallel runners set it."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on every system
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    declared = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, int(declared)) if declared.isdecimal() and int(declared) > 0 else cores
