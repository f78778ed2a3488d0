"""The host link: what the two copy engines can move."""

from __future__ import annotations

import math
from dataclasses import dataclass

from slackswap.hardware.input_error import InputError


@dataclass(frozen=True, slots=True)
class Link:
    """A CPU-GPU link with one copy engine per direction (paper, section 4.1).

    Attributes
    ----------
    d2h_bytes_per_s, h2d_bytes_per_s : float
        Bandwidth of each direction while the other is idle.
    duplex_factor : float
        Share of its bandwidth that each direction keeps while both move bytes, in (0, 1].
    latency_s : float
        Time between the start of a copy and its first byte.

    Raises
    ------
    InputError
        A value is out of range; the place names the field.
    """

    d2h_bytes_per_s: float
    h2d_bytes_per_s: float
    duplex_factor: float = 0.85
    latency_s: float = 1e-5

    def __post_init__(self) -> None:
        for key in ("d2h_bytes_per_s", "h2d_bytes_per_s"):
            value = getattr(self, key)
            if not (math.isfinite(value) and value > 0):
                raise InputError(f"a bandwidth is a finite number above 0, not {value}", place=key)
        if not 0 < self.duplex_factor <= 1:
            raise InputError(f"lies in (0, 1], not {self.duplex_factor}", place="duplex_factor")
        if not (math.isfinite(self.latency_s) and self.latency_s >= 0):
            raise InputError(
                f"a latency is a finite number of seconds, at least 0, not {self.latency_s}", place="latency_s"
            )
