"""Runtime policies of the reference event model: what each adds to the rules ("Runtime policies")."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from reference_lowering import Step
from simpy.events import Process

if TYPE_CHECKING:
    from reference_event_model import Iteration


class Policy:
    """What a runtime policy may add to the rules; the default adds nothing."""

    def __init__(self, iteration: Iteration) -> None:
        self.iteration = iteration

    def holds_compute(self) -> bool:
        """Whether the step that compute stands at must wait, whatever rule 1 says."""
        return False

    def may_fetch(self, tensor: int) -> bool:  # noqa: ARG002 - the default policy treats all tensors alike
        """Whether a queued tensor takes part in the H2D queue now."""
        return True

    def stops_waiting(self) -> bool:
        """Nothing is in flight or can be admitted: whether the policy stops holding compute, before rule 9 acts."""
        return False

    def step_started(self, place: int) -> None:
        """Take note that the step at `place` has started."""

    def step_ended(self, place: int) -> None:
        """Take note that the step at `place` has ended; copies that end at the same instant have not yet."""


class Barriers(Policy):
    """vDNN's per-layer synchronization ("Runtime policies")."""

    def __init__(self, iteration: Iteration) -> None:
        super().__init__(iteration)
        self.layer = layers(iteration.steps, iteration.n_forward)
        self.overlapping: list[Process | None] = []  # copies in flight when the previous layer ended
        self.fetches_first = True  # until the layer starts, or nothing of it can be fetched any more
        self.fetched_layer: int | None = None  # whose tensors may be fetched while the current layer runs

    def _first_of_layer(self, place: int) -> bool:
        return place == 0 or self.layer[place] != self.layer[place - 1]

    def holds_compute(self) -> bool:
        run = self.iteration
        if not self._first_of_layer(run.place):
            return False
        if any(engine.busy and engine.job in self.overlapping for engine in (run.d2h, run.h2d)):
            return True
        return run.backward_begun() and self.fetches_first and self._lacks_inputs(self.layer[run.place])

    def _lacks_inputs(self, layer: int) -> bool:
        run = self.iteration
        absent = [*run.prefetch_queue(), *([] if run.h2d.subject is None else [run.h2d.subject])]
        return any(self.layer[run.deadline[t]] == layer for t in absent)

    def may_fetch(self, tensor: int) -> bool:
        run = self.iteration
        layer = self.layer[run.deadline[tensor]]
        begun = run.compute.busy or not self._first_of_layer(run.place)
        return layer == self.layer[run.place] or (begun and layer == self.fetched_layer)

    def stops_waiting(self) -> bool:
        stops = self.holds_compute()
        self.fetches_first = False
        return stops

    def step_started(self, place: int) -> None:
        if not self._first_of_layer(place):
            return
        self.fetches_first = True
        queued = [self.layer[self.iteration.deadline[t]] for t in self.iteration.prefetch_queue()]
        self.fetched_layer = min((layer for layer in queued if layer > self.layer[place]), default=None)

    def step_ended(self, place: int) -> None:
        if place + 1 < len(self.layer) and self._first_of_layer(place + 1):
            self.overlapping = [engine.job for engine in (self.iteration.d2h, self.iteration.h2d) if engine.busy]


def layers(steps: tuple[Step, ...], n_forward: int) -> list[int]:
    """Number the layers: runs of steps of one pass with the same layer; a rebuild is a layer of its own and splits."""
    numbers = [0]
    for place, (before, step) in enumerate(itertools.pairwise(steps), start=1):
        same = step.layer is not None and step.layer == before.layer and place != n_forward
        numbers.append(numbers[-1] + (not same))
    return numbers
