"""vDNN: offload the inputs of layers, synchronized layer by layer (Rhu et al., MICRO 2016)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slackswap.models.event_model import simulate
from slackswap.models.event_model.buffers import HEAVY_KINDS
from slackswap.models.plan import SWAP, Plan
from slackswap.models.problem import KINDS, Problem
from slackswap.planners.protocol import Outcome, Status, Supports, infeasible

NONE, CONV, ALL = "none", "conv", "all"


@dataclass(frozen=True)
class Vdnn:
    """Tries offload sets from small to large and takes the first that fits (the paper, section 4.1).

    Its plans run under the policy ``barriers``: each copy is waited for at the end of the layer that it overlaps, and only
    the closest preceding layer's inputs are prefetched. Where a network has no convolutions, its heavy operators, GEMMs and
    attention, stand for them: so read, the GPT-2 XL step at 50% takes 1,104 ms, and 1,105 in the paper's Figure 5.

    Parameters
    ----------
    offloads : the sets to try: ``none``, ``conv`` (inputs of heavy operators), ``all`` (inputs of every layer)
    """

    name: str
    description: str
    offloads: tuple[str, ...]
    policy: str = "barriers"
    supports: Supports = Supports(recomputes=False)

    def plan(
        self, problem: Problem, budget_bytes: int, *, rng: np.random.Generator, time_limit_s: float | None
    ) -> Outcome:
        """Return the first set that fits."""
        del rng, time_limit_s  # at most three plans, nothing to search
        plan = Plan.keep_everything(problem)
        for tried, offload in enumerate(self.offloads, start=1):
            plan = Plan(np.where(offload_set(problem, offload), SWAP, 0).astype(np.int8))
            score = simulate(problem, plan, budget_bytes, policy=self.policy)
            if score.fits:
                return Outcome(Status.FEASIBLE, plan, claimed_step_s=score.step_s, evaluations=tried)
        return infeasible(problem, plan, budget_bytes, policy=self.policy, evaluations=len(self.offloads))


def offload_set(problem: Problem, offload: str) -> npt.NDArray[np.bool_]:
    """Saved tensors that one of vDNN's policies offloads, as a mask over tensors."""
    if offload == NONE:
        return np.zeros(problem.n_tensors, np.bool_)
    if offload == ALL:
        return problem.saved
    is_heavy = np.isin(problem.kind[problem.readers], [KINDS.index(kind) for kind in HEAVY_KINDS])
    reads = is_heavy & (problem.readers < problem.n_forward)
    tensor_of = np.repeat(np.arange(problem.n_tensors), np.diff(problem.readers_start))
    of_heavy = np.zeros(problem.n_tensors, np.bool_)
    of_heavy[tensor_of[reads]] = True
    return of_heavy & problem.saved


VDNN = Vdnn(
    "vdnn",
    "vDNN's dynamic policy: offload nothing if it fits, else heavy operators' inputs, else all",
    (NONE, CONV, ALL),
)
VDNN_CONV = Vdnn(
    "vdnn-conv",
    "vDNN: offload the inputs of convolutions, GEMMs and attention, with per-layer barriers",
    (CONV,),
    supports=Supports(recomputes=False, needs_heavy_kinds=True, always_frees=True),
)
VDNN_ALL = Vdnn(
    "vdnn-all",
    "vDNN: offload the inputs of every layer, with per-layer barriers",
    (ALL,),
    supports=Supports(recomputes=False, always_frees=True),
)
