"""How kernels are compiled: on their first call, so that importing a planner does not import numba."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import update_wrapper
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])

# Kernels allocate nothing. Without numba's reference counting the compiler refuses what would, and small functions can
# share dozens of arrays at no cost: counting references at each call made the engine a hundred times slower.
_NO_ALLOCATION: dict[str, Any] = {"_nrt": False}
_ENTRY: dict[str, Any] = {**_NO_ALLOCATION, "nogil": True}  # threads, each with its own buffers, run side by side
_INLINED: dict[str, Any] = {"forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}

_parts: dict[FunctionType, Any] = {}  # None until compiled


def compiled_part(function: Function) -> Function:
    """Mark a function for calls from compiled code only; it is compiled into its callers."""
    _parts[cast("FunctionType", function)] = None
    return function


def compiled_entry(function: Function) -> Function:
    """Make a function that Python calls a compiled one, with a cache on disk where one can be written."""
    return cast("Function", _Entry(cast("FunctionType", function)))


class _Entry:
    """Compiles its function on the first call, and before that the parts that it may call."""

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

    reached = _reachable_parts(function)
    for part in reached:
        _parts[part] = _parts[part] or numba.njit(**_NO_ALLOCATION, **_INLINED)(part)
    for caller in (function, *reached):
        _use_compiled_parts(caller.__globals__)
    # numba's cache watches the file of the entry alone; with the sources of its parts in the name, an edit of any counts.
    function.__qualname__ = f"{function.__name__}_{_sources_sha256(reached)[:16]}"
    try:
        return cast("Callable[..., Any]", numba.njit(cache=True, **_ENTRY)(function))
    except RuntimeError:  # no folder for the cache is writable: compile anew in each process
        return cast("Callable[..., Any]", numba.njit(**_ENTRY)(function))


def _reachable_parts(function: FunctionType) -> list[FunctionType]:
    """Parts that a function calls, directly or through others."""
    reached: dict[FunctionType, None] = {}
    callers = [function]
    while callers:
        caller = callers.pop()
        for name in caller.__code__.co_names:
            named = caller.__globals__.get(name)
            part = getattr(named, "py_func", named)  # itself, or compiled for another entry before
            if isinstance(part, FunctionType) and part in _parts and part not in reached:
                reached[part] = None
                callers.append(part)
    return list(reached)


def _use_compiled_parts(namespace: dict[str, Any]) -> None:
    """Replace parts by their compiled form where a module names them: compiled code finds its callees there."""
    for name, value in namespace.items():
        if isinstance(value, FunctionType) and _parts.get(value) is not None:
            namespace[name] = _parts[value]


def _sources_sha256(parts: list[FunctionType]) -> str:
    files = sorted({part.__code__.co_filename for part in parts})
    return hashlib.sha256(b"".join(Path(file).read_bytes() for file in files)).hexdigest()
