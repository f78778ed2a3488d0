"""A workload: a model family with the parameters of one preset, any of which a caller may change."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from slackswap.hardware.gpu import DTYPE_BYTES, Gpu
from slackswap.hardware.input_error import InputError

if TYPE_CHECKING:
    from slackswap.hardware.catalog import Hardware
    from slackswap.models.problem import Problem

# A dimension beyond these is a slip of the keyboard, and a million layers would build for minutes.
MAX_DIMENSION = 1 << 31
MAX_LAYERS = 10_000


@dataclass(frozen=True)
class Parameters:
    """What every family takes; a family's own class adds its dimensions.

    Attributes
    ----------
    batch : int
        Samples per iteration.
    dtype : str or None
        A key of `DTYPE_BYTES`; None takes the first of bf16, fp16, tf32, fp32 that the GPU has.

    Raises
    ------
    InputError
        A dimension is not a whole number in range, or the dtype unknown; the place names the parameter.
    """

    batch: int
    dtype: str | None = None

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            may_be_left = item.default is None and value is None
            if item.name != "dtype" and not may_be_left:
                limit = MAX_LAYERS if item.name == "layers" else MAX_DIMENSION
                object.__setattr__(self, item.name, _dimension(value, item.name, limit))
        if self.dtype not in (None, *DTYPE_BYTES):
            raise InputError(f"is one of {', '.join(DTYPE_BYTES)}, not {self.dtype!r}", place="dtype")

    def dtype_on(self, gpu: Gpu) -> str:
        """Return the dtype that is trained in on `gpu`; refuse one that it lacks."""
        dtype = self.dtype or gpu.training_dtype
        gpu.peak(dtype)
        return dtype


P = TypeVar("P", bound=Parameters)


@dataclass(frozen=True)
class Workload(Generic[P]):
    """A named preset of a model family.

    Attributes
    ----------
    name : str
    description : str
        One line.
    defaults : Parameters
        The preset; `build` takes each of its fields as a keyword.
    family : callable
        Takes a problem name, parameters and hardware; returns the problem.
    """

    name: str
    description: str
    defaults: P
    family: Callable[[str, P, Hardware], Problem]

    def build(self, hardware: Hardware, **parameters: Any) -> Problem:
        """Return one training iteration of the preset, with `parameters` changed, on `hardware`.

        Raises
        ------
        InputError
            A parameter is unknown or out of range, or the GPU lacks the dtype; the message names preset and parameter.
        """
        try:
            return self.family(self._problem_name(hardware, parameters), self._with(parameters), hardware)
        except InputError as error:
            raise error.within(self.name) from None

    def _with(self, parameters: Mapping[str, Any]) -> P:
        known = [item.name for item in fields(self.defaults)]
        for name in parameters:
            if name not in known:
                raise InputError(f"is not a parameter: use {', '.join(known)}", place=name)
        return replace(self.defaults, **parameters)

    def _problem_name(self, hardware: Hardware, parameters: Mapping[str, Any]) -> str:
        preset = asdict(self.defaults)
        changes = [f"{key}={value}" for key, value in parameters.items() if value != preset.get(key)]
        return " ".join([self.name, *changes, "on", hardware.name])


def _dimension(value: object, place: str, limit: int) -> int:
    try:
        number = 0 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]  # refused just below
    except TypeError:
        number = 0
    if not 1 <= number <= limit:
        raise InputError(f"is a whole number from 1 to {limit}, not {value!r}", place=place)
    return number
