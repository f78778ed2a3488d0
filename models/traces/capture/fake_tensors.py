"""Tensors without memory, made to behave as models expect of tensors while they are built: converted, copied."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def fake_tensors() -> Iterator[Any]:
    """Make every tensor that is created inside a fake one; yields the mode that they belong to."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True) as mode, _converted_in_place(), _copied_deeply():
        yield mode


def without_memory(model: Any, mode: Any) -> Any:
    """Return the model; one that was built outside, with memory, as a copy without, which leaves it as it is."""
    import torch
    from torch import nn
    from torch._subclasses.fake_tensor import FakeTensor

    memo: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        if isinstance(tensor, FakeTensor):
            continue
        with torch.no_grad():
            fake = mode.from_tensor(tensor.detach())
        memo[id(tensor)] = nn.Parameter(fake, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else fake
    return copy.deepcopy(model, memo) if memo else model


@contextlib.contextmanager
def _converted_in_place() -> Iterator[None]:
    """Let ``model.to(dtype)`` give fake parameters new data; PyTorch would swap the parameters, which fake ones refuse."""
    import torch
    from torch import nn

    def apply(module: Any, function: Any, recurse: bool = True) -> Any:
        for child in module.children() if recurse else ():
            child._apply(function)
        with torch.no_grad():
            for parameter in module._parameters.values():
                if parameter is not None:
                    parameter.data = function(parameter)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = function(buffer)
        return module

    modules: Any = nn.Module
    kept = modules._apply
    modules._apply = apply
    try:
        yield
    finally:
        modules._apply = kept


@contextlib.contextmanager
def _copied_deeply() -> Iterator[None]:
    """Let ``copy.deepcopy(layer)`` copy fake tensors; PyTorch would copy the mode that they belong to as well."""
    import torch
    from torch import nn
    from torch._subclasses.fake_tensor import FakeTensor

    def deepcopy(tensor: Any, memo: dict[int, Any]) -> Any:
        if id(tensor) not in memo:
            with torch.no_grad():
                copied = tensor.detach().clone()
            if isinstance(tensor, nn.Parameter):
                copied = nn.Parameter(copied, requires_grad=tensor.requires_grad)
            memo[id(tensor)] = copied
        return memo[id(tensor)]

    fakes: Any = FakeTensor
    fakes.__deepcopy__ = deepcopy
    try:
        yield
    finally:
        del fakes.__deepcopy__
