"""How kernels are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba

Function = TypeVar("Function", bound=Callable[..., Any])

# Kernels allocate nothing. Without numba's reference counting the compiler refuses what would, and small functions can
# share dozens of arrays at no cost: counting references at each call made the engine a hundred times slower.
_NO_ALLOCATION: dict[str, Any] = {"_nrt": False}
_INLINED: dict[str, Any] = {"forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def compiled_entry(function: Function) -> Function:
    """Compile on the first call from Python, with a cache on disk where one can be written."""
    try:
        compiled: Function = numba.njit(cache=True, **_NO_ALLOCATION)(function)
    except RuntimeError:  # no folder for the cache is writable: compile anew in each process
        compiled = numba.njit(**_NO_ALLOCATION)(function)
    return compiled


def compiled_part(function: Function) -> Function:
    """Compile for calls from compiled code only, into its callers."""
    compiled: Function = numba.njit(**_NO_ALLOCATION, **_INLINED)(function)
    return compiled
