"""One training step of a user's model: gradients dropped, batch copied to the device, forward pass, loss, backward pass."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from slackswap.hardware.input_error import InputError
from slackswap.models.traces.capture.user_step import UserStep, user_code

BATCH_COPY = "copy of the batch"
# The dot before a number that another number follows.
_NUMBER_INSIDE = re.compile(r"\.(?=\d+\.)")


@dataclass(frozen=True, slots=True)
class SavedByAutograd:
    """What autograd itself said that it keeps in one forward pass: storages that are no parameter and no buffer."""

    storages: int
    bytes: int


class TrainingStep:
    """Runs the step again and again.

    The batch is copied inside of the step, as a training loop does, so that it has a producer. There is no optimizer.

    Parameters
    ----------
    step : model, inputs and loss; the model is moved to the device
    device : ``cpu`` or ``cuda``
    name : what the user calls it, for messages
    """

    def __init__(self, step: UserStep, device: str, name: str) -> None:
        self._model, self._inputs, self._loss = step
        self._device = device
        self._name = name
        with user_code(name, f"moving the model to {device}"):
            self._model.to(device)

    @property
    def batch(self) -> str:
        """The shapes of the inputs, as one text."""
        return _shapes(self._inputs)

    @property
    def is_training(self) -> bool:
        """Whether the model is in training mode, with dropout and batch statistics."""
        return bool(self._model.training)

    def run(self) -> None:
        """Run one step; the gradients stay until the next one.

        Raises
        ------
        InputError
            The model, the loss or the backward pass raised an exception, or the loss is no scalar to train on.
        """
        with user_code(self._name, "the training step"):
            self._forward().backward()

    def run_and_count(self) -> SavedByAutograd:
        """Run one step and count what autograd saves: the check on what is derived from the recording."""
        import torch

        state = [*self._model.parameters(), *self._model.buffers()]
        addresses = {tensor.untyped_storage()._cdata for tensor in state}
        kept: dict[int, Any] = {}

        def pack(tensor: Any) -> Any:
            storage = tensor.untyped_storage()
            kept[storage._cdata] = storage
            return tensor

        with user_code(self._name, "the training step"):
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                loss = self._forward()
            sizes = [storage.nbytes() for address, storage in kept.items() if address not in addresses]
            kept.clear()
            loss.backward()
        return SavedByAutograd(len(sizes), sum(sizes))

    def _forward(self) -> Any:
        from torch.profiler import record_function

        self._model.zero_grad(set_to_none=True)
        with record_function(BATCH_COPY):
            batch = _copied(self._inputs, self._device)
        if isinstance(batch, dict):
            output = self._model(**batch)
        elif isinstance(batch, tuple | list):
            output = self._model(*batch)
        else:
            output = self._model(batch)
        return self._checked(_loss_of(output) if self._loss is None else self._loss(output))

    def _checked(self, loss: Any) -> Any:
        import torch

        if not isinstance(loss, torch.Tensor):
            what = "the model's output" if self._loss is None else "what the loss returns"
            raise InputError(
                f"{what} is no loss but {type(loss).__name__}: a scalar tensor, or an output with `loss`",
                source=self._name,
            )
        if loss.numel() != 1:
            raise InputError(f"the loss is a scalar, not a tensor of shape {tuple(loss.shape)}", source=self._name)
        if not loss.requires_grad:
            raise InputError("the loss requires no gradient: no parameter is trained by it", source=self._name)
        return loss

    @contextlib.contextmanager
    def numbered_blocks(self) -> Iterator[None]:
        """Annotate the model's repeated parts, as in ``blocks.3``, while inside: the importer numbers blocks by that.

        An exception that leaves a part closes its annotation too (checkpointing stops a recomputation that way).
        """
        from torch.profiler import record_function

        handles = []

        def annotate(module: Any, path: str) -> None:
            entered: list[Any] = []

            def enter(*_: Any) -> None:
                entered.append(record_function(path))
                entered[-1].__enter__()

            def leave(*_: Any) -> None:
                if entered:
                    entered.pop().__exit__(None, None, None)

            handles.append(module.register_forward_pre_hook(enter, prepend=True))
            handles.append(module.register_forward_hook(leave, always_call=True))

        for path, module in _repeated_parts(self._model):
            annotate(module, path)
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def _repeated_parts(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the numbered children of lists that stand there more than once, with their path; none inside of another.

    A stage, a list of such parts, is none itself, however often there are stages.
    """
    from torch import nn

    stack = [("", model)]
    while stack:
        path, module = stack.pop()
        blocks = _blocks_of(module)
        for name, child in module.named_children():
            place = f"{path}.{name}" if path else name
            is_stage = isinstance(child, nn.Sequential | nn.ModuleList) and _blocks_of(child)
            if name not in blocks or is_stage:
                stack.append((place, child))
                continue
            yield _annotation(place, model), child


def _annotation(path: str, model: Any) -> str:
    """Name a part as the importer finds its number: ``blocks.3``, and ``stages_2.3`` for a list in a list."""
    named = f"{type(model).__name__}.{path}" if path[0].isdigit() else path
    return _NUMBER_INSIDE.sub("_", named)


def _blocks_of(module: Any) -> set[str]:
    """Return the names of a list's parts of the same class; what has no parts of its own is a layer, no block of them."""
    children = dict(module.named_children())
    kinds = Counter(type(child) for child in children.values())
    return {
        name
        for name, child in children.items()
        if name.isdigit() and kinds[type(child)] > 1 and next(child.children(), None) is not None
    }


def _copied(value: Any, device: str) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return value.clone() if value.device.type == device else value.to(device)
    if isinstance(value, dict):
        return {key: _copied(item, device) for key, item in value.items()}
    if isinstance(value, tuple | list):
        items = [_copied(item, device) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value


def _loss_of(output: Any) -> Any:
    if isinstance(output, dict) and "loss" in output:
        return output["loss"]
    return getattr(output, "loss", output)


def _shapes(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_shapes(item)}" for key, item in value.items())
    if isinstance(value, tuple | list):
        return ", ".join(_shapes(item) for item in value)
    if hasattr(value, "shape"):
        return " x ".join(map(str, value.shape)) + f" {str(value.dtype).removeprefix('torch.')}"
    return repr(value)
