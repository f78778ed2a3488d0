"""A machine as the text of a hardware file: what `load_hardware` reads back.

Writing the file is the caller's part, since this floor writes none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields

from slackswap.hardware.catalog import Hardware
from slackswap.hardware.gpu import Gpu
from slackswap.hardware.link import Link

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def hardware_toml(hardware: Hardware) -> str:
    """Return the TOML text of a machine, of the form of ``catalog.toml``: read back, it is an equal machine."""
    name = _key(hardware.name)
    return "\n".join(
        (
            f"[{name}]",
            "sources = [",
            *(f"  {_text(source)}," for source in hardware.sources),
            "]",
            f"[{name}.gpu]",
            *_values(hardware.gpu),
            f"[{name}.link]",
            *_values(hardware.link),
            "",
        )
    )


def _values(part: Gpu | Link) -> Iterator[str]:
    for item in fields(part):
        value = getattr(part, item.name)
        if item.name == "peak_flops_per_s":
            value = "{ " + ", ".join(f"{_key(dtype)} = {peak!r}" for dtype, peak in value.items()) + " }"
        yield f"{item.name} = {value if item.name == 'peak_flops_per_s' else _scalar(value)}"


def _scalar(value: str | float) -> str:
    return _text(value) if isinstance(value, str) else repr(value)


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _text(key)


def _text(text: str) -> str:
    """Quote a text: TOML's basic strings are JSON's, but for DEL, which TOML wants escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
