"""Runs a solver of `checkmate` in a process of its own, which can be stopped at any time and cannot clash with others.

Two reasons: CP-SAT and HiGHS do not share a process (`checkmate_intervals`), and whichever of two racing solvers proves
first ends the other. The child is a new interpreter, not a fork (threads) or a spawn (which runs the user's script again).
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Protocol

from slackswap.planners.checkmate.finding import Finding, Report
from slackswap.planners.checkmate.graph import RematerializationGraph
from slackswap.planners.checkmate.schedule import Steps

# A child is to stop by itself before its time is over, so that its last word arrives: this share of it before, at most so long.
_GRACE_SHARE, _GRACE_MOST_S = 0.05, 2.0
_COMMAND = "from slackswap.planners.checkmate.process import main; main()"


class Solver(Protocol):
    """What runs in the child."""

    def run(self) -> None:
        """Work until done or out of time, and report."""
        ...


def solver_of(name: str) -> Callable[..., Solver]:
    """Return the class of a solver by the name of its mode."""
    from slackswap.planners.checkmate.intervals import Intervals
    from slackswap.planners.checkmate.refinement import Refinement
    from slackswap.planners.checkmate.rounding import Rounding

    solvers: Mapping[str, Callable[..., Solver]] = {
        "milp": Refinement,
        "intervals": Intervals,
        "rounding": Rounding,
    }
    return solvers[name]


@dataclass(eq=False)
class Child:
    """A solver at work in another process; `findings` receives what it reports, and None when it has ended."""

    name: str
    findings: queue.SimpleQueue[Finding | None]
    process: subprocess.Popen[bytes]
    thread: threading.Thread = field(init=False)

    @classmethod
    def start(
        cls,
        name: str,
        graph: RematerializationGraph,
        known: Steps | None,
        ends_s: float,
        options: Mapping[str, Any],
        findings: queue.SimpleQueue[Finding | None],
    ) -> Child:
        """Start a solver; `ends_s` is on the clock of `time.monotonic`."""
        paths = os.pathsep.join(path for path in sys.path if path)
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _COMMAND],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths},
            start_new_session=True,  # Ctrl-C is the parent's to handle
        )
        child = cls(name, findings, process)
        assert process.stdin is not None
        grace_s = min(_GRACE_MOST_S, _GRACE_SHARE * (ends_s - time.monotonic()))
        with contextlib.suppress(BrokenPipeError):
            pickle.dump((name, graph, known, ends_s - grace_s, dict(options)), process.stdin)
            process.stdin.flush()
        child.thread = threading.Thread(target=child._listen, daemon=True)
        child.thread.start()
        return child

    def _listen(self) -> None:
        assert self.process.stdout is not None
        # What a killed child was writing ends in the middle.
        with contextlib.suppress(EOFError, pickle.UnpicklingError, OSError, ValueError):
            while True:
                self.findings.put(pickle.load(self.process.stdout))
        self.findings.put(None)

    def stop(self) -> None:
        """End the process, whatever it does."""
        self.process.kill()
        self.process.wait()
        self.thread.join()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def findings_of(
    names: Sequence[str],
    graph: RematerializationGraph,
    known: Steps | None,
    ends_s: float,
    options: Mapping[str, Mapping[str, Any]],
) -> Generator[Finding, None, None]:
    """Start solvers side by side and yield what they report, until all have ended or time is up.

    Whoever stops iterating ends them: that is how the first proof wins.
    """
    findings: queue.SimpleQueue[Finding | None] = queue.SimpleQueue()
    children: list[Child] = []
    try:
        for name in names:
            children.append(Child.start(name, graph, known, ends_s, options.get(name, {}), findings))
        yield from _until(findings, len(children), ends_s)
    finally:
        for child in children:
            child.stop()


def _until(findings: queue.SimpleQueue[Finding | None], running: int, ends_s: float) -> Iterator[Finding]:
    """Yield findings until so many children have ended, or time is up and nothing is left in the queue."""
    while running:
        try:
            finding = findings.get(timeout=max(0.0, ends_s - time.monotonic()))
        except queue.Empty:
            return
        if finding is None:
            running -= 1
        else:
            yield finding


def main() -> None:
    """Read what to solve from stdin, write findings to stdout; end when stdin does, since then the parent has ended."""
    # Solvers may print: the pipe is kept for findings, and what is printed goes to stderr.
    pipe = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    name, graph, known, ends_s, options = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_parent, args=(sys.stdin.buffer,), daemon=True).start()
    solver_of(name)(graph, _reporter(pipe), ends_s, known, **options).run()


def _reporter(pipe: BinaryIO) -> Report:
    def report(finding: Finding) -> None:
        pickle.dump(finding, pipe)
        pipe.flush()

    return report


def _end_with_parent(stdin: BinaryIO) -> None:
    stdin.read()
    os._exit(1)
