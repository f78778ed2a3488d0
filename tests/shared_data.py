"""Finds the data folder beside the checkout; tests that need it skip where it is missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SHARED = Path(os.environ.get("SLACKSWAP_SHARED", Path(__file__).parents[2] / "shared"))


def shared_file(name: str) -> Path:
    """Return a file of the shared data, or skip the calling test (at module level: the module)."""
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"the shared data has no {name} here", allow_module_level=True)
    return path
