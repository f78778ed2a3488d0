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

    def offloads_ahead(self) -> bool:
        """Whether a swapped tensor queues for D2H when it is produced (rule 5)."""
        return True

    def needs_room(self) -> bool:
        """Whether room is to be made now; asked after the H2D start, and again after each tensor that made some."""
        return self.iteration.nothing_under_way()

    def makes_room(self) -> bool:
        """Do one thing that may let the step start; False: there is none."""
        return self._evicts_furthest()

    def _evicts_furthest(self) -> bool:
        """9: release the prefetched tensor that is read furthest in the future, if there is one."""
        run = self.iteration
        # A first use after this step implies "not read in the backward pass yet".
        candidates = [
            t for t in run.swapped if t in run.on_device and t in run.host_copy and run.deadline[t] > run.place
        ]
        if not candidates or not run.backward_begun():
            return False
        run.evict(max(candidates, key=lambda t: (run.deadline[t], -t)))
        return True

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

    def makes_room(self) -> bool:
        holds = self.holds_compute()
        self.fetches_first = False
        return holds or self._evicts_furthest()  # before rule 9 acts, compute is no longer held

    def step_started(self, place: int) -> None:
        if not self._first_of_layer(place):
            return
        run = self.iteration
        self.fetches_first = True
        self.fetched_layer = None
        steps = [step for step, layer in zip(run.steps, self.layer, strict=True) if layer == self.layer[place]]
        if any(t in run.swapped for step in steps for t in step.reads):
            queued = [self.layer[run.deadline[t]] for t in run.prefetch_queue()]
            self.fetched_layer = min((layer for layer in queued if layer > self.layer[place]), default=None)

    def step_ended(self, place: int) -> None:
        if place + 1 < len(self.layer) and self._first_of_layer(place + 1):
            self.overlapping = [engine.job for engine in (self.iteration.d2h, self.iteration.h2d) if engine.busy]


class OnDemand(Policy):
    """SuperNeurons' tensor cache (Policy ``on-demand``)."""

    def offloads_ahead(self) -> bool:
        return False

    def may_fetch(self, tensor: int) -> bool:
        run = self.iteration
        return run.deadline[tensor] == (self._next_heavy() if run.compute.busy else run.place)

    def _next_heavy(self) -> int | None:
        """Place of the first heavy operator after the step that runs."""
        steps = self.iteration.steps
        return next((i for i in range(self.iteration.place + 1, len(steps)) if steps[i].heavy), None)

    def needs_room(self) -> bool:
        run = self.iteration
        step = run.standing_step()
        if step is None or run.d2h.busy:
            return False
        # An input that is away and could be fetched would be under way: the H2D start came before.
        return not (run.missing(step) and run.h2d.busy)

    def makes_room(self) -> bool:
        """Send the least recently used tensor away: at once if the host has a copy, else by way of D2H."""
        run = self.iteration
        # 7: what a backward step has read is not offloaded any more, and what was fetched for it does not leave again.
        candidates = [
            t
            for t in run.swapped
            if t in run.on_device and run.last_forward_use[t] < run.place and run.deadline[t] > run.place
        ]
        if not candidates:
            return False
        tensor = min(candidates, key=lambda t: (run.last_forward_use[t], t))
        if tensor in run.host_copy:
            run.evict(tensor)
        else:
            run.offload(tensor)
        return True


def layers(steps: tuple[Step, ...], n_forward: int) -> list[int]:
    """Number the layers: runs of steps of one pass with the same layer; a rebuild is a layer of its own and splits."""
    numbers = [0]
    for place, (before, step) in enumerate(itertools.pairwise(steps), start=1):
        same = step.layer is not None and step.layer == before.layer and place != n_forward
        numbers.append(numbers[-1] + (not same))
    return numbers
