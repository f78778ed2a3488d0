"""Logs the calls of a step on fake tensors: their storages and shapes, which an execution trace of fake tensors lacks.

A fake tensor has no address, so the execution trace gives all of them one storage. The log knows them by their storage
objects. Each logged call leaves an annotation with its number in the execution trace, inside of the call that it is.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from slackswap.models.traces.pytorch.shaped_calls import ShapedTensor

MARKER = re.compile(r"slackswap call (\d+)$")
# Questions about tensors and the profiler's own calls: no work, and asked at any time.
_ASIDE = ("prim::", "profiler::")
_DTYPES = {"torch.float32": "fp32", "torch.float64": "fp64", "torch.float16": "fp16", "torch.bfloat16": "bf16"}


@dataclass(frozen=True, slots=True)
class LoggedCall:
    """One call that reached a kernel: arguments in the order of its schema, then those by keyword.

    `overwrites` where autograd's engine, if it is the one that adds, would overwrite the first tensor, were it no fake
    one.
    """

    name: str
    arguments: tuple[Any, ...]
    results: tuple[Any, ...]
    overwrites: bool = False


@dataclass(slots=True)
class CallLog:
    """Calls in order, and the bytes of each storage by the number that the log gave it."""

    calls: list[LoggedCall | None] = field(default_factory=list)
    storage_bytes: dict[int, int] = field(default_factory=dict)
    _number_of: dict[int, int] = field(default_factory=dict)
    # Held, so that no new storage gets the address of an old one; not the tensors, whose use count autograd looks at.
    _held: list[Any] = field(default_factory=list)
    _counts_if_unshared: tuple[int, int] | None = None

    def describe(self, value: Any) -> Any:
        """Return a value with its tensors described; lists searched."""
        import torch

        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, tuple | list):
            return [self.describe(item) for item in value]
        return value if isinstance(value, bool | int | float | str | None) else str(value)

    def _tensor(self, tensor: Any) -> ShapedTensor:
        storage = tensor.untyped_storage()
        address = storage._cdata
        number = self._number_of.get(address)
        if number is None:
            number = self._number_of[address] = len(self._number_of) + 1
            self._held.append(storage)
        size_bytes = self.storage_bytes[number] = int(storage.nbytes())
        shown_bytes = tensor.numel() * tensor.element_size()
        return ShapedTensor(
            number, tuple(tensor.shape), min(shown_bytes, size_bytes), _DTYPES.get(str(tensor.dtype), "")
        )

    @contextlib.contextmanager
    def logging(self) -> Iterator[None]:
        """Log every call that reaches a kernel while inside."""
        from torch.utils._python_dispatch import TorchDispatchMode

        def dispatch(_mode: Any, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return self._logged(func, args, kwargs or {})

        base: Any = TorchDispatchMode
        mode = type("_LoggingMode", (base,), {"__torch_dispatch__": dispatch})
        with mode(), _annotations_aside():
            self._learn_counts()
            yield

    def _logged(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = func._schema.name
        if name.startswith(_ASIDE):
            return func(*args, **kwargs)
        number = len(self.calls)
        self.calls.append(None)
        overwrites = name == "aten::add" and self._may_be_overwritten(args[0])
        begin, end = _annotation_calls()
        marker = begin(f"slackswap call {number}")
        try:
            result = func(*args, **kwargs)
        finally:
            end(marker)
        arguments = tuple(self.describe(value) for value in (*args, *kwargs.values()))
        results = result if isinstance(result, tuple | list) else (result,)
        described = tuple(self.describe(value) for value in results)
        self.calls[number] = LoggedCall(name, arguments, described, overwrites)
        return result

    def _may_be_overwritten(self, tensor: Any) -> bool:
        """Whether nothing but autograd's engine holds a gradient: the engine then adds to it without new memory.

        For fake tensors, as for every subclass, it takes new memory (torch/csrc/autograd/input_buffer.cpp).
        """
        import torch

        if torch._C._current_graph_task_id() < 0 or not isinstance(tensor, torch.Tensor):
            return False
        counts = _use_counts(tensor)
        if self._counts_if_unshared is None:
            self._counts_if_unshared = counts
        alone = all(count <= least for count, least in zip(counts, self._counts_if_unshared, strict=True))
        return alone and _is_dense(tensor.shape, tensor.stride())

    def _learn_counts(self) -> None:
        """Let the engine add two gradients that nothing else holds, to learn how often that is held on the way here."""
        import torch

        with torch.enable_grad():
            x: Any = torch.zeros(2, requires_grad=True).exp()
            (x.sin() + x.cos()).sum().backward()


def _is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a tensor's elements fill its memory without gaps or overlaps, in whatever order of dimensions."""
    expected = 1
    for stride, length in sorted(zip(strides, shape, strict=True)):
        if length != 1 and stride != expected:
            return False
        expected *= length
    return True


def _use_counts(tensor: Any) -> tuple[int, int]:
    """Return how often a tensor and its storage are held."""
    import torch

    return int(tensor._use_count()), int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


def _annotation_calls() -> tuple[Any, Any]:
    """Return the calls that begin and end an annotation without the dispatcher."""
    import torch

    autograd: Any = torch.autograd
    return autograd._record_function_with_args_enter, autograd._record_function_with_args_exit


@contextlib.contextmanager
def _annotations_aside() -> Iterator[None]:
    """Keep `record_function` from going through the dispatcher, whose own calls would tear the recorded call tree."""
    from torch.profiler import record_function

    begin, end = _annotation_calls()
    kept: Any = record_function
    enter, leave = kept.__enter__, kept.__exit__

    def enter_aside(annotation: Any) -> Any:
        annotation.record = begin(annotation.name)
        return annotation

    def leave_aside(annotation: Any, *_: Any) -> None:
        end(annotation.record)

    kept.__enter__, kept.__exit__ = enter_aside, leave_aside
    try:
        yield
    finally:
        kept.__enter__, kept.__exit__ = enter, leave
