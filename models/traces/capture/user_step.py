"""The function that a user names as ``MODULE:FUNCTION``: how it is found, called, and what it has to return.

Whatever goes wrong in it is said in one line, with the user's own exception and the place in the user's file.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from slackswap.hardware.input_error import InputError

if TYPE_CHECKING:
    from types import ModuleType

# What the user's function returns: a model, its inputs, and a loss of its output or None.
UserStep: TypeAlias = tuple[Any, Any, Any]

_FORM = "give MODULE:FUNCTION, as in `train:step` or `train.py:step`"
_RETURNS = (
    "returns (model, inputs, loss): an nn.Module, the tensors it is called with, and a function from its output to a scalar,"
    " or None where the model returns the loss"
)
_HERE = str(Path(__file__).parents[1])


class Target(NamedTuple):
    """What a user named: the function, and the text as it was given, for messages."""

    function: Callable[[], object]
    name: str


def find_target(text: str) -> Target:
    """Import the module, or the file, and look up the function.

    Raises
    ------
    InputError
        There is no such module, file or function, or importing it fails.
    """
    module_name, _, function_name = text.rpartition(":")
    if not module_name or not function_name:
        raise InputError(_FORM, source=text)
    with user_code(text, "importing it"):
        module = _load(module_name, text)
    function = getattr(module, function_name, None)
    if function is None:
        raise InputError(f"the module has no '{function_name}'", source=text)
    if not callable(function):
        raise InputError(f"'{function_name}' is no function", source=text)
    return Target(function, text)


def call_target(target: Target) -> UserStep:
    """Call the function and check what it returns.

    Raises
    ------
    InputError
        It raises an exception, or returns something else than a model, its inputs and a loss.
    """
    from torch import nn

    with user_code(target.name, "calling it"):
        returned = target.function()
    if not isinstance(returned, tuple | list) or len(returned) != 3:
        raise InputError(f"{_RETURNS}, not {_described(returned)}", source=target.name)
    model, inputs, loss = returned
    if not isinstance(model, nn.Module):
        raise InputError(f"{_RETURNS}; its model is {_described(model)}", source=target.name)
    _check_inputs(inputs, target.name)
    if loss is not None and not callable(loss):
        raise InputError(f"{_RETURNS}; its loss is {_described(loss)}", source=target.name)
    return model, inputs, loss


def _load(name: str, text: str) -> ModuleType:
    if not name.endswith(".py"):
        _make_importable(Path.cwd())
        return _module(name, text)
    path = Path(name)
    if not path.is_file():
        raise InputError("there is no such file", source=name)
    # Dataclasses and pickles look their module up by name, which must not hide another module.
    spec = importlib.util.spec_from_file_location(f"captured_file_{path.stem}", path.resolve())
    if spec is None or spec.loader is None:
        raise InputError("is no Python file", source=name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    _make_importable(path.resolve().parent)
    spec.loader.exec_module(module)
    return module


def _module(name: str, text: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise InputError(f"there is no module '{error.name}' here; {_FORM}", source=text) from None
        raise
    except (TypeError, ValueError) as error:  # a name that no module can have
        if traceback.extract_tb(error.__traceback__)[-1].filename.startswith(str(Path(importlib.__file__).parent)):
            raise InputError(f"'{name}' is no module name; {_FORM}", source=text) from None
        raise


def _make_importable(folder: Path) -> None:
    """Let a module import its neighbours, as Python does for a script; its functions too, when they are called."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    importlib.invalidate_caches()


def _check_inputs(inputs: Any, name: str) -> None:
    import torch

    stack = [inputs]
    n_tensors = 0
    while stack:
        top = stack.pop()
        if isinstance(top, torch.Tensor):
            n_tensors += 1
        elif isinstance(top, dict):
            stack.extend(top.values())
        elif isinstance(top, tuple | list):
            stack.extend(top)
        elif not isinstance(top, bool | int | float | str | None):
            raise InputError(f"{_RETURNS}; among its inputs is {_described(top)}", source=name)
    if not n_tensors:
        raise InputError(f"{_RETURNS}; its inputs hold no tensor", source=name)
    if isinstance(inputs, dict) and not all(isinstance(key, str) for key in inputs):
        raise InputError("a dict of inputs names the model's arguments: its keys are texts", source=name)


def _described(value: object) -> str:
    kind = type(value)
    shown = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"{shown} of {len(value)}" if isinstance(value, tuple | list) else shown


@contextlib.contextmanager
def user_code(name: str, doing: str) -> Iterator[None]:
    """Turn what the user's code raises into one line; what it prints goes to stderr, where results do not stand.

    Raises
    ------
    InputError
        The code inside raised an exception, or wanted to exit.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"{doing} raised {_said(error)}{_place(error)}{_hint(error)}", source=name) from None


def _said(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _place(error: BaseException) -> str:
    """Name the deepest line of the user's own code: not of a library's, and not of ours."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({Path(error.filename).name}:{error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _is_library(frame.filename)]
    return f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""


def _is_library(filename: str) -> bool:
    standard = str(Path(contextlib.__file__).parent)
    installed = any(part in ("site-packages", "dist-packages") for part in Path(filename).parts)
    return installed or filename.startswith(("<", standard, _HERE))


def _hint(error: BaseException) -> str:
    """Say what to do about what a fake tensor, or a machine without a GPU, cannot do."""
    if type(error).__name__ in ("DataDependentOutputException", "DynamicOutputShapeException"):
        return "; it depends on values, which a fake tensor has not: capture on a real device"
    if any(said in str(error) for said in ("not linked with support for cuda", "not compiled with CUDA")):
        return "; build the model on the CPU, and leave the device to --device"
    return ""
