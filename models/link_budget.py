"""How much of the saved activations the host link can hide (paper, section 2.2, Eq. 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from slackswap.models.problem import Problem


@dataclass(frozen=True, slots=True)
class LinkBudget:
    r"""The link budget of one problem.

    Eq. 1, f = min(1, W T_F / A) = min(1, I / beta), in units:
    I = F / A is FLOP / B; beta = (F / T_F) / W is (FLOP / s) / (B / s) = FLOP / B; their ratio is W T_F / A =
    (B / s) s / B, a share.

    Attributes
    ----------
    saved_bytes : int
        Saved activations A.
    forward_s : float
        Forward time T_F.
    d2h_bytes_per_s : float
        Link bandwidth W of the direction that binds.
    forward_flops : float or None
        F of the forward pass; None where the problem does not say.
    """

    saved_bytes: int
    forward_s: float
    d2h_bytes_per_s: float
    forward_flops: float | None = None

    @property
    def hideable_bytes(self) -> float:
        """W T_F: what the link copies out during the forward pass."""
        return self.d2h_bytes_per_s * self.forward_s

    @property
    def hideable_fraction(self) -> float:
        """The share f of the saved activations; 1 where nothing is saved."""
        return min(1.0, self.hideable_bytes / self.saved_bytes) if self.saved_bytes else 1.0

    @property
    def intensity_flops_per_byte(self) -> float | None:
        """The workload's I = F / A; None where FLOPs are unknown or nothing is saved."""
        return self.forward_flops / self.saved_bytes if self.forward_flops is not None and self.saved_bytes else None

    @property
    def balance_flops_per_byte(self) -> float | None:
        """The machine's beta = F / T_F / W on this workload; None where FLOPs are unknown or T_F is 0."""
        if self.forward_flops is None or not self.hideable_bytes:
            return None
        return self.forward_flops / self.hideable_bytes


def link_budget(problem: Problem) -> LinkBudget:
    """Return the link budget of `problem`.

    F is read from ``metadata["forward_flops"]``. Metadata is free: anything there but a finite number above 0 counts as
    unknown.
    """
    return LinkBudget(
        saved_bytes=problem.saved_bytes,
        forward_s=problem.forward_s,
        d2h_bytes_per_s=problem.link.d2h_bytes_per_s,
        forward_flops=_flops(problem.metadata.get("forward_flops")),
    )


def _flops(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        flops = float(value)
    except OverflowError:
        return None
    return flops if math.isfinite(flops) and flops > 0 else None
