"""Recorded traces that ship with the project; ``README.md`` beside this file says how they were made."""

from __future__ import annotations

from pathlib import Path

SMALL_GPT = "small-gpt"
_FOLDER = Path(__file__).parent
SMALL_GPT_FILES = ("small_gpt_cpu.et.json.gz", "small_gpt_cpu.kineto.json.gz")


def recorded_trace_paths() -> list[Path]:
    """Return the execution trace and the Kineto trace of ``small-gpt``, one training step of a small GPT on a CPU."""
    return [_FOLDER / name for name in SMALL_GPT_FILES]
