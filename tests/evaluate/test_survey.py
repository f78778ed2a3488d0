"""`slackswap survey`: one page for a folder of traces."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from handwritten_trace import two_linears, write_pair
from shared_data import shared_file

from slackswap.evaluate.survey import import_everything
from slackswap.hardware import load_hardware
from slackswap.hardware.input_error import InputError
from slackswap.models.event_model import peak_bytes
from slackswap.models.link_budget import link_budget

Run = Callable[..., CompletedProcess[str]]
PAGE = Path(__file__).parents[2] / "docs" / "traces.md"
GRAPH = "\n".join(
    [
        *(
            f"node{i} -- Linear(1, 1) -- forward_compute_time=2.0, backward_compute_time=3.0, activation_size=1000000.0,"
            " parameter_size=0.0"
            for i in range(1, 7)
        ),
        *(f"\tnode{i} -- node{i + 1}" for i in range(1, 6)),
    ]
)


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """A folder with a pair, a graph in a folder of its own, a second execution trace, and a file that is no trace."""
    folder = tmp_path / "traces"
    (folder / "graphs").mkdir(parents=True)
    write_pair(two_linears()).write(folder)
    (folder / "graphs" / "chain|6.txt").write_text(GRAPH)
    (folder / "graphs" / "notes.txt").write_text("step 7")
    other = tmp_path / "other"
    other.mkdir()
    pair = write_pair(two_linears())
    pair.execution_trace["pid"] = 78
    execution_trace, _ = pair.write(other)
    shutil.copy(execution_trace, folder / "another.et.json")
    return folder


def test_pairs_are_found_and_the_rest_says_why_not(traces: Path) -> None:
    imported, refused = import_everything([traces], load_hardware("v100"))
    assert [item.files for item in imported] == [("step.et.json", "step.kineto.json"), ("graphs/chain|6.txt",)]
    assert [item.file for item in refused] == ["another.et.json", "graphs/notes.txt"]
    assert refused[0].reason.startswith("is an execution trace, which has no times")
    assert refused[1].reason.startswith("is text, and no trace that is known")
    assert imported[1].problem.link.d2h_bytes_per_s == 12e9


def test_files_are_named_alone_too(traces: Path) -> None:
    imported, refused = import_everything([traces / "graphs" / "chain|6.txt"], load_hardware("v100"))
    assert [item.files for item in imported] == [("chain|6.txt",)]
    assert not refused
    with pytest.raises(InputError, match="is no file and no folder"):
        import_everything([traces / "nothing"], load_hardware("v100"))


def test_the_page_has_every_planner_at_every_budget(run: Run, traces: Path) -> None:
    ran = run("survey", str(traces), "--planner", "keep,slackswap", "--budget", "100%,60%", "-o", "page.md")
    assert (ran.returncode, ran.stdout) == (0, "")
    assert "page written to page.md: 2 problems, 2 files refused" in ran.stderr
    page = Path("page.md").read_text()
    # Six layers of 2 + 3 ms save five outputs of 1 MB; the last one is not read again.
    (facts,) = [line for line in page.splitlines() if line.startswith("| chain")]
    assert facts.split(" | ")[1:7] == ["PipeDream graph", "6 + 6", "5", "12.000", "18.000", "0.0050"]
    table = page[page.index("## chain\\|6") : page.index("## What was refused")].splitlines()
    rows = {line.split(" | ")[0]: line.split(" | ")[1:] for line in table if line.startswith("| ")}
    assert rows["| planner"] == ["100%", "60% |"]
    assert rows["| keep"] == ["**100.00**", "- |"]
    assert rows["| *bound*"][0] == "100.00"
    assert 0 < float(rows["| slackswap"][1].strip("*| ")) <= float(rows["| *bound*"][1].rstrip(" |"))
    assert "| `graphs/notes.txt` | is text, and no trace that is known" in page


def test_without_a_file_the_page_goes_to_stdout(run: Run, traces: Path) -> None:
    ran = run("survey", str(traces / "graphs" / "chain|6.txt"), "--planner", "keep", "--budget", "1.0")
    assert ran.returncode == 0
    assert ran.stdout.startswith("# Planners on recorded traces")


def test_the_page_of_the_documentation_shows_what_is_imported() -> None:
    """A, P and f of docs/traces.md: what an importer derives must not move without the page."""
    traces = shared_file("traces/PROVENANCE.md").parent
    hardware = load_hardware("a100-pcie4")
    imported, refused = import_everything([traces / name for name in ("pipedream", "chakra", "g10")], hardware)
    page = PAGE.read_text()
    for item in imported:
        problem = item.problem
        hidden = f"{link_budget(problem).hideable_fraction:.1%}"
        (row,) = [line for line in page.splitlines() if line.startswith(f"| {problem.name} ")]
        assert row.endswith(f"{problem.saved_bytes / 1e9:.4f} | {peak_bytes(problem) / 1e9:.4f} | {hidden} |")
    for file in (item.file for item in refused):
        assert f"{file}`" in page


def test_budgets_that_nothing_fits_in_say_what_would_do(run: Run, traces: Path) -> None:
    # Each layer of 1 MB reads and writes: the backward ones hold a megabyte of each gradient and of the output.
    ran = run("survey", str(traces / "graphs" / "chain|6.txt"), "--planner", "keep,slackswap", "--budget", "10%,5%")
    assert "No plan at any of these budgets: keep, slackswap." in ran.stdout
    assert "Nothing fits in 10%, 5%; the smallest budget known to do is " in ran.stdout
