"""The machines that are known by name, and those that a user describes in a TOML file of the same form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from slackswap.hardware.gpu import Gpu
from slackswap.hardware.input_error import InputError
from slackswap.hardware.link import Link
from slackswap.hardware.toml_document import parse_toml

Part = TypeVar("Part", Gpu, Link)

DEFAULT_HARDWARE = "a100-pcie4"
CATALOG_FILE = Path(__file__).with_name("catalog.toml")
# A description of a few machines takes a few kilobytes; more is some other file.
MAX_FILE_BYTES = 1 << 20

_HARDWARE_KEYS = ("sources", "gpu", "link")
_GPU_KEYS = tuple(item.name for item in fields(Gpu))
_LINK_KEYS = tuple(item.name for item in fields(Link))
_LINK_REQUIRED = ("d2h_bytes_per_s", "h2d_bytes_per_s")


@dataclass(frozen=True, slots=True)
class Hardware:
    """A machine: one GPU and its host link.

    Attributes
    ----------
    name : str
        The name in the catalog or in the user's file.
    gpu : Gpu
    link : Link
    sources : tuple of str
        Where each number comes from: a datasheet, a paper, an assumption.
    """

    name: str
    gpu: Gpu
    link: Link
    sources: tuple[str, ...] = ()


@cache
def catalog() -> Mapping[str, Hardware]:
    """Return the machines that ship with the project, by name, in the order of ``catalog.toml``."""
    return MappingProxyType(_read_machines(CATALOG_FILE))


def load_hardware(name_or_path: str | Path) -> Hardware:
    """Return a machine of the catalog, or the one that a TOML file describes.

    A string is a name if the catalog has it, else a path if it ends in ``.toml`` or names a file. The file has one
    top-level table, whose key is the machine's name, with the keys of ``catalog.toml``.

    Raises
    ------
    InputError
        The name is unknown (the known ones are listed), or the file breaks a rule: the message names the file, the TOML
        key and the rule.
    """
    if isinstance(name_or_path, str):
        if name_or_path in catalog():
            return catalog()[name_or_path]
        if not _looks_like_path(name_or_path):
            raise InputError(
                f"no hardware has this name: use {', '.join(catalog())}, or a path to a TOML file", source=name_or_path
            )
    machines = _read_machines(Path(name_or_path))
    if len(machines) != 1:
        raise InputError(
            f"describes {len(machines)} machines ({', '.join(machines)}): leave one", source=str(name_or_path)
        )
    return next(iter(machines.values()))


def _looks_like_path(text: str) -> bool:
    try:
        return text.endswith(".toml") or Path(text).is_file()
    except (OSError, ValueError):  # a name that no file can have: too long, or with a NUL byte
        return False


def _read_machines(path: Path) -> dict[str, Hardware]:
    try:
        document = parse_toml(_read(path))
        if not document:
            raise InputError("describes no machine: give a table [name] with tables gpu and link")
        return {name: _hardware(name, value) for name, value in document.items()}
    except InputError as error:
        raise error.within(str(path)) from None


def _read(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file():  # a pipe would block, a device never end
            raise InputError("is not a regular file")
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot be read: {(error.strerror or str(error)).lower()}") from None
    except ValueError as error:
        raise InputError(f"is not a path: {error}") from None
    if len(content) > MAX_FILE_BYTES:
        raise InputError(f"has more than {MAX_FILE_BYTES} bytes: is this a description of hardware?")
    return content


def _hardware(name: str, value: object) -> Hardware:
    table = _table(value, name, _HARDWARE_KEYS, required=("gpu", "link"))
    return Hardware(
        name=name,
        gpu=_gpu(table["gpu"], f"{name}.gpu"),
        link=_link(table["link"], f"{name}.link"),
        sources=_texts(table.get("sources", []), f"{name}.sources"),
    )


def _gpu(value: object, place: str) -> Gpu:
    table = _table(value, place, _GPU_KEYS, required=_GPU_KEYS)
    peaks = table["peak_flops_per_s"]
    if not isinstance(peaks, dict):
        raise InputError(f"is a table of dtypes, not {_kind(peaks)}", place=f"{place}.peak_flops_per_s")
    values: dict[str, Any] = {
        key: _number(table[key], f"{place}.{key}")
        for key in _GPU_KEYS
        if key not in ("name", "peak_flops_per_s", "memory_bytes")
    }
    values["name"] = _text(table["name"], f"{place}.name")
    values["memory_bytes"] = _whole(table["memory_bytes"], f"{place}.memory_bytes")
    values["peak_flops_per_s"] = {
        dtype: _number(peak, f"{place}.peak_flops_per_s.{dtype}") for dtype, peak in peaks.items()
    }
    return _built(Gpu, values, place)


def _link(value: object, place: str) -> Link:
    table = _table(value, place, _LINK_KEYS, required=_LINK_REQUIRED)
    return _built(Link, {key: _number(number, f"{place}.{key}") for key, number in table.items()}, place)


def _built(part: type[Part], values: dict[str, Any], place: str) -> Part:
    try:
        return part(**values)
    except InputError as error:
        raise InputError(error.rule, place=f"{place}.{error.place}") from None


def _table(value: object, place: str, known: tuple[str, ...], *, required: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"is a table, not {_kind(value)}", place=place)
    for key in value:
        if key not in known:
            raise InputError(f"is not a key that is known here: use {', '.join(known)}", place=f"{place}.{key}")
    for key in required:
        if key not in value:
            raise InputError("is missing", place=f"{place}.{key}")
    return value


def _number(value: object, place: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"is a number, not {_kind(value)}", place=place)
    try:
        return float(value)
    except OverflowError:
        raise InputError("is a number that a float holds; this one has more than 308 digits", place=place) from None


def _whole(value: object, place: str) -> int:
    number = _number(value, place)
    if not number.is_integer():
        raise InputError(f"is a whole number, not {number}", place=place)
    return int(number)


def _text(value: object, place: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"is a text, not {_kind(value)}", place=place)
    return value


def _texts(value: object, place: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise InputError(f"is a list of texts, not {_kind(value)}", place=place)
    return tuple(_text(item, f"{place}[{i}]") for i, item in enumerate(value))


def _kind(value: object) -> str:
    """Name a TOML value's type as TOML does."""
    names = {bool: "a boolean", int: "an integer", float: "a float", str: "a text", list: "an array", dict: "a table"}
    return names.get(type(value), "a date or time")
