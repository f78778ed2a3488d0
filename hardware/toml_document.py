"""TOML that a user wrote, parsed or refused in one line."""

from __future__ import annotations

import tomllib
from typing import Any

from slackswap.hardware.input_error import InputError


def parse_toml(content: bytes) -> dict[str, Any]:
    """Return the document.

    Raises
    ------
    InputError
        It is not UTF-8, with the line, or not TOML.
    """
    try:
        return tomllib.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError("is not UTF-8", place=f"line {line}") from None
    except (ValueError, RecursionError) as error:  # RecursionError: thousands of nested brackets
        raise InputError(f"is not TOML: {error}") from None
