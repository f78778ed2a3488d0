"""Problems that travel with the jobs of a sweep: a worker on another machine has neither the trace nor the hardware file.

A problem is packed once, as its canonical JSON, and is known by the hash of it. Each process unpacks it once and then finds
it by the hash.
"""

from __future__ import annotations

import hashlib
import threading
import zlib
from collections import OrderedDict

import msgspec

from slackswap.models.problem import Problem
from slackswap.models.problem_file import problem_from_json, problem_to_json

# A grid runs problem by problem: a process works on few at a time.
MAX_KEPT = 64
_kept: OrderedDict[str, Problem] = OrderedDict()
_lock = threading.Lock()


class PackedProblem(msgspec.Struct, frozen=True):
    """The canonical JSON of a problem, metadata included, compressed; `sha256` is the hash of the JSON."""

    sha256: str
    content: bytes


def pack(problem: Problem) -> PackedProblem:
    """Pack a problem.

    Raises
    ------
    InputError
        Its metadata holds what JSON cannot.
    """
    content = problem_to_json(problem)
    return PackedProblem(hashlib.sha256(content).hexdigest(), zlib.compress(content, 1))


def keep(packed: PackedProblem) -> None:
    """Unpack a problem, unless this process has done so before."""
    with _lock:
        if packed.sha256 not in _kept:
            _kept[packed.sha256] = problem_from_json(zlib.decompress(packed.content))
        _kept.move_to_end(packed.sha256)
        while len(_kept) > MAX_KEPT:
            _kept.popitem(last=False)


def kept_problem(sha256: str) -> Problem:
    """Return a problem that was kept just before.

    Raises
    ------
    KeyError
        It was not kept.
    """
    return _kept[sha256]
