"""How kernels are compiled: on their first call, so that importing a planner does not import numba."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from types import FunctionType
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])

# Kernels allocate nothing. Without numba's reference counting the compiler refuses what would, and small functions can
# share dozens of arrays at no cost: counting references at each call made the engine a hundred times slower.
_NO_ALLOCATION: dict[str, Any] = {"_nrt": False}
_INLINED: dict[str, Any] = {"forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}

_parts_to_compile: list[FunctionType] = []


def compiled_part(function: Function) -> Function:
    """Mark a function for calls from compiled code of its own module only; it is compiled into its callers."""
    _parts_to_compile.append(cast("FunctionType", function))
    return function


def compiled_entry(function: Function) -> Function:
    """Make a function that Python calls a compiled one, with a cache on disk where one can be written."""
    return cast("Function", _Entry(cast("FunctionType", function)))


class _Entry:
    """Compiles its function on the first call, and the parts that this may call before."""

    def __init__(self, function: FunctionType) -> None:
        self._function = function
        self._compiled: Callable[..., Any] | None = None
        update_wrapper(self, function)

    def __call__(self, *arguments: Any) -> Any:
        if self._compiled is None:
            self._compiled = _compile(self._function)
        return self._compiled(*arguments)


def _compile(function: FunctionType) -> Callable[..., Any]:
    import numba

    while _parts_to_compile:
        part = _parts_to_compile.pop()
        part.__globals__[part.__name__] = numba.njit(**_NO_ALLOCATION, **_INLINED)(part)
    try:
        return cast("Callable[..., Any]", numba.njit(cache=True, **_NO_ALLOCATION)(function))
    except RuntimeError:  # no folder for the cache is writable: compile anew in each process
        return cast("Callable[..., Any]", numba.njit(**_NO_ALLOCATION)(function))
