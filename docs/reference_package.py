"""Shows the API reference the four floors, and nothing else that lies in the checkout.

A hook of MkDocs. The floors are importable by their installed name through a link to the whole checkout, which Griffe would
walk through, environments and all: a minute in place of seconds. Here they stand in a package of their own.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from mkdocs.plugins import event_priority

ROOT = Path(__file__).parents[1]
FLOORS = ("hardware", "models", "planners", "evaluate")
_folder = tempfile.TemporaryDirectory(prefix="slackswap-reference-")


@event_priority(100)  # before mkdocstrings reads its configuration
def on_config(config: Any) -> Any:
    """Put the package first on the path where modules are looked up."""
    package = Path(_folder.name, "slackswap")
    package.mkdir(exist_ok=True)
    (package / "__init__.py").touch()
    for floor in FLOORS:
        if not (package / floor).exists():
            (package / floor).symlink_to(ROOT / floor, target_is_directory=True)
    config.plugins["mkdocstrings"].config.handlers["python"]["paths"] = [_folder.name]
    return config
