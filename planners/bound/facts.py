"""What the link-budget bound reads of a problem: link times, who rebuilds from whom, where a rebuild can stand."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from slackswap.models.problem import BoolArray, FloatArray, IntArray, Problem


@dataclass(frozen=True, eq=False)
class BoundFacts:
    """Facts of one problem, computed once.

    Tensors below `negligible_bytes` count as gone between their forward and backward use, at no cost: the bound is then a little
    weaker, and the model smaller.
    """

    problem: Problem
    negligible_bytes: int = 1

    @cached_property
    def start_s(self) -> FloatArray:
        """(n + 1,) start of each operator in the ideal step, and its end."""
        return np.concatenate(([0.0], np.cumsum(self.problem.duration_s)))

    @cached_property
    def offload_s(self) -> FloatArray:
        """(m,) time of each tensor on the D2H engine: latency, then its bytes at full bandwidth."""
        return self.problem.link.latency_s + self.problem.tensor_bytes / self.problem.link.d2h_bytes_per_s

    @cached_property
    def fetch_s(self) -> FloatArray:
        """(m,) time of each tensor on the H2D engine."""
        return self.problem.link.latency_s + self.problem.tensor_bytes / self.problem.link.h2d_bytes_per_s

    @cached_property
    def candidates(self) -> IntArray:
        """Tensors that a plan can free: saved ones, of a size that matters."""
        problem = self.problem
        return np.flatnonzero(problem.saved & (problem.tensor_bytes >= self.negligible_bytes))

    @cached_property
    def is_candidate(self) -> BoolArray:
        """(m,) whether the tensor is a candidate."""
        chosen = np.zeros(self.problem.n_tensors, np.bool_)
        chosen[self.candidates] = True
        return chosen

    @cached_property
    def can_rebuild(self) -> BoolArray:
        """(m,) whether a plan may recompute the tensor."""
        return self.problem.saved & self.problem.rebuildable

    @cached_property
    def rebuilt_from(self) -> list[list[int]]:
        """For each tensor, the recomputable tensors whose rebuild reads it."""
        users: list[list[int]] = [[] for _ in range(self.problem.n_tensors)]
        for user in np.flatnonzero(self.can_rebuild):
            for source in self.problem.rebuild_inputs_of(int(user)):
                users[int(source)].append(int(user))
        return users

    @cached_property
    def rebuild_windows(self) -> list[frozenset[int]]:
        """For each recomputable tensor, the operators right before which it may be rebuilt.

        That is its first backward reader, or, as an input of another rebuild, wherever that one may stand; never later
        than its first backward reader.
        """
        problem, n = self.problem, self.problem.n_tensors
        windows = [
            frozenset({int(problem.first_backward_reader[t])}) if self.can_rebuild[t] else frozenset() for t in range(n)
        ]
        pending = list(np.flatnonzero(self.can_rebuild)[::-1])
        while pending:
            user = int(pending.pop())
            for source in map(int, problem.rebuild_inputs_of(user)):
                if not self.can_rebuild[source]:
                    continue
                latest = int(problem.first_backward_reader[source])
                more = frozenset(i for i in windows[user] if i <= latest)
                if not more <= windows[source]:
                    windows[source] |= more
                    pending.append(source)
        return windows

    @cached_property
    def most_bytes(self) -> IntArray:
        """(n,) bytes in use while each operator runs if no candidate is freed: those of the keep-everything plan."""
        problem = self.problem
        changes = np.zeros(problem.n_operators + 1, np.int64)
        np.add.at(changes, problem.producer, problem.tensor_bytes)
        np.add.at(changes, problem.last_use + 1, -problem.tensor_bytes)
        gone = np.flatnonzero(problem.saved & ~self.is_candidate)
        np.add.at(changes, problem.last_forward_use[gone] + 1, -problem.tensor_bytes[gone])
        np.add.at(changes, problem.first_backward_reader[gone], problem.tensor_bytes[gone])
        return np.cumsum(changes)[:-1] + problem.workspace_bytes
