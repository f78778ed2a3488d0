"""How long an import takes, and how much memory: traces of more and more steps, and any files that are named.

Run it with `make benchmarks`, or on files of your own: ``python benchmarks/trace_import.py FILE...``. Each import runs in a
process of its own, whose largest memory the operating system tells; that of a process which only imports the package is
printed first.
"""

from __future__ import annotations

import gzip
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slackswap.hardware import load_hardware
from slackswap.models.input_file import read_input_chunks
from slackswap.models.traces import import_traces
from slackswap.models.traces.recorded import recorded_trace_paths

ONE_STEP_US = 2_000_000
STEPS = (1, 10, 100)


def main() -> None:
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measured(sys.argv[2:])))
        return
    base_mb = run([])["memory_mb"]
    print(f"a process that imports the package: {base_mb:.0f} MB")
    for name in sys.argv[1:]:
        report(name, [name])
    if not sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            for n_steps in STEPS:
                report(f"small-gpt's Kineto trace, {n_steps} steps", [str(written(Path(folder), n_steps))])


def report(what: str, files: list[str]) -> None:
    unpacked_mb = sum(len(chunk) for file in files for chunk in read_input_chunks(file)) / 1e6
    found = run(files)
    print(f"{what}: {unpacked_mb:.1f} MB unpacked, {found['seconds']:.2f} s, {found['memory_mb']:.0f} MB at most")


def run(files: list[str]) -> dict[str, float]:
    """Import files in a new process; the second import is timed, after the scanner is compiled or read from its cache."""
    ran = subprocess.run([sys.executable, __file__, "--measure", *files], check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(ran.stdout)
    return found


def measured(files: list[str]) -> dict[str, float]:
    paths = [Path(file) for file in files]
    seconds = 0.0
    for _ in range(2 if paths else 0):
        start_s = time.perf_counter()
        import_traces(paths, link=load_hardware("v100").link)
        seconds = time.perf_counter() - start_s
    return {"seconds": seconds, "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3}


def written(folder: Path, n_steps: int) -> Path:
    """Write a trace of many steps: the recorded one again and again, later each time."""
    trace = json.loads(gzip.decompress(recorded_trace_paths()[1].read_bytes()))
    events = trace.pop("traceEvents")
    path = folder / f"{n_steps}.json.gz"
    with gzip.open(path, "wt", compresslevel=1) as file:
        file.write(json.dumps(trace)[:-1] + ', "traceEvents": [\n')
        for step in range(n_steps):
            file.write(
                ",\n".join(json.dumps(event) for event in shifted(events, step)) + ("," if step < n_steps - 1 else "")
            )
        file.write("]}")
    return path


def shifted(events: list[Any], step: int) -> Iterator[Any]:
    for event in events:
        moved = dict(event)
        if "ts" in moved:
            moved["ts"] += step * ONE_STEP_US
        if str(moved.get("name", "")).startswith("ProfilerStep#"):
            moved["name"] = f"ProfilerStep#{step}"
        yield moved


if __name__ == "__main__":
    main()
