"""The documentation does what it shows: its blocks run, its commands exist, its links and quoted numbers hold, its site builds.

In a page of ``docs/``, a ``text`` block right after a ``python`` block is what the block prints. On the line before a block,
``<!-- executed -->`` runs the commands of a ``sh`` block, and ``<!-- not executed: REASON -->`` exempts a ``python`` block.
README's Python and the options of its commands are tested in `test_readme`.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import os
import re
import shlex
import subprocess
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import click
import msgspec
import pytest

from slackswap.evaluate.budget import parse_budgets
from slackswap.evaluate.command_line import cli, main
from slackswap.evaluate.gap import GapRow
from slackswap.evaluate.results import Row
from slackswap.hardware import Gpu, Link, load_hardware
from slackswap.models import Operator, Rebuild, Tensor
from slackswap.models.problem import KINDS
from slackswap.planners import find_planners, registry

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
PROSE = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES)
FLOORS = ("hardware", "models", "planners")  # the fourth exports nothing: its modules are documented one by one
NEEDS_TORCH = "needs PyTorch"
SITE_TIME_LIMIT_S = 60  # it takes 4 s; a loaded machine is no reason to fail


def pages_with(text: str) -> pytest.MarkDecorator:
    """Return the parametrization over the pages that hold a text."""
    pages = [page for page in PAGES if text in page.read_text()]
    return pytest.mark.parametrize("page", pages, ids=[page.relative_to(DOCS).as_posix() for page in pages])


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, the line that it begins at, the remark on the line before, its output."""

    language: str
    text: str
    line: int
    remark: str = ""
    output: str | None = None


_FENCED = re.compile(
    r"^(?:<!-- (?P<remark>[^\n]*) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)


def blocks_of(content: str) -> list[Block]:
    found = list(_FENCED.finditer(content))
    blocks = []
    for match, after in itertools.zip_longest(found, found[1:]):
        follows = after is not None and content[match.end() : after.start()].strip() == ""
        output = after["text"] if after is not None and follows and after["language"] == "text" else None
        line = content.count("\n", 0, match.start("text")) + 1
        blocks.append(Block(match["language"], match["text"], line, match["remark"] or "", output))
    return blocks


def commands_of(block: Block) -> list[list[str]]:
    """Return the arguments of each `slackswap` command of a shell block, comments and continued lines aside."""
    lines = block.text.replace("\\\n", " ").splitlines()
    split = [shlex.split(line, comments=True) for line in lines]
    return [arguments[1:] for arguments in split if arguments[:1] == ["slackswap"]]


def test_how_a_page_is_read() -> None:
    content = (
        "# A page\n\n```python\nprint(1)\n```\n\n```text\n1\n```\n\nWords.\n\n```text\na picture\n```\n\n"
        "<!-- executed -->\n```sh\npip install x\nslackswap plan a \\\n  --budget 1  # why\n```\n"
    )
    python, shown, picture, shell = blocks_of(content)
    assert (python.text, python.line, python.output) == ("print(1)\n", 4, "1\n")
    assert (shown.language, picture.output, shell.remark) == ("text", None, "executed")
    assert commands_of(shell) == [["plan", "a", "--budget", "1"]]


# Code


@pages_with("```python")
def test_code_runs_and_prints_what_is_shown(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_page(page, tmp_path, monkeypatch, with_torch=False)


@pytest.mark.torch
@pages_with(NEEDS_TORCH)
def test_code_that_needs_torch_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    run_page(page, tmp_path, monkeypatch, with_torch=True)


def run_page(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, *, with_torch: bool) -> None:
    monkeypatch.chdir(folder)
    # A module of its own: dataclasses look theirs up.
    module = types.ModuleType("a_page_of_the_documentation")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block in blocks_of(page.read_text()):
        if block.language == "python" and (not block.remark or (with_torch and block.remark.endswith(NEEDS_TORCH))):
            printed = run_python(block, module, page)
            assert block.output is None or printed == block.output, f"{page}:{block.line}"
        if block.language == "sh" and block.remark == "executed":
            for arguments in commands_of(block):
                run_command(arguments, monkeypatch)


def run_python(block: Block, module: types.ModuleType, page: Path) -> str:
    printed = io.StringIO()
    code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
    with contextlib.redirect_stdout(printed):
        exec(code, vars(module))  # the pages are ours
    return printed.getvalue()


def run_command(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["slackswap", *arguments])
    with contextlib.redirect_stdout(io.StringIO()), pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code, arguments


@pages_with("```")
def test_what_is_not_executed_has_its_reason(page: Path) -> None:
    for block in blocks_of(page.read_text()):
        known = {"python": r"(not executed: .{8,})?", "sh": r"(executed)?"}.get(block.language, "")
        assert re.fullmatch(known, block.remark), f"{page}:{block.line}: {block.remark}"


# Commands


@pages_with("```sh")
def test_commands_are_ones_that_the_command_line_takes(page: Path) -> None:
    for block in blocks_of(page.read_text()):
        if block.language == "sh":
            for arguments in commands_of(block):
                check_command(arguments)


def check_command(arguments: list[str]) -> None:
    """Parse a command without running it, and look up the names in it."""
    name, *rest = arguments
    command = cli.commands[name]
    values = command.make_context(name, rest, parent=click.Context(cli)).params
    if isinstance(values.get("planner"), str):
        find_planners(values["planner"])
    if isinstance(values.get("budget"), str):
        parse_budgets(values["budget"])
    hardware = values.get("hardware")
    if isinstance(hardware, str) and not hardware.endswith(".toml"):
        load_hardware(hardware)


@pytest.mark.parametrize(
    "wrong",
    [
        "plan gpt2-xl",  # no budget
        "plan gpt2-xl --budget 50% --speed 3",
        "shootout --planner slacksnap",
        "shootout --hardware a1000",
        "list planets",
    ],
)
def test_wrong_commands_are_seen(wrong: str) -> None:
    with pytest.raises((click.ClickException, ValueError)):
        check_command(wrong.split())


# Links and navigation


def links_of(page: Path) -> Iterator[str]:
    """Yield the target of every link that stays in the project, without its anchor: `mkdocs build --strict` follows those."""
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if not re.match(r"[a-z]+:|#", target):
            yield target.split("#")[0]


def test_relative_links_resolve() -> None:
    links = [(page, target) for page in PROSE for target in links_of(page)]
    assert len(links) >= 20
    assert [f"{page.name}: {target}" for page, target in links if not (page.parent / target).is_file()] == []


def test_files_that_are_named_exist() -> None:
    pattern = r"`((?:hardware|models|planners|evaluate|docs|notebooks|benchmarks|tests)/[\w/.]+)`"
    named = [(page, path) for page in PROSE for path in re.findall(pattern, page.read_text())]
    assert len(named) >= 20
    assert [f"{page.name}: {path}" for page, path in named if not (ROOT / path).exists()] == []


def test_every_page_is_in_the_navigation_once() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2].partition("\n\n")[0]
    pages = re.findall(r"([\w/-]+\.md)$", navigation, re.MULTILINE)
    assert sorted(pages) == [page.relative_to(DOCS).as_posix() for page in PAGES]


# What is said


def code_of(page: str) -> set[str]:
    """Return the words in code spans of a page, and those of its directives for the API reference."""
    content = (DOCS / page).read_text()
    spans = re.findall(r"`([^`\n]+)`", content)
    directives = re.findall(r"members: \[([^\]]*)\]", content) + re.findall(r"^::: (\S+)$", content, re.MULTILINE)
    return set(re.findall(r"\w+", " ".join([*spans, *directives])))


@pytest.mark.parametrize("floor", FLOORS)
def test_every_public_name_is_in_the_reference(floor: str) -> None:
    public = set(importlib.import_module(f"slackswap.{floor}").__all__)
    documented = code_of(f"api/{floor}.md")
    assert public - documented == set()


def test_every_key_of_the_formats_is_described() -> None:
    records: tuple[type[msgspec.Struct], ...] = (Operator, Tensor, Rebuild, Row, GapRow)
    keys = {key for record in records for key in record.__struct_fields__}
    keys |= set(Gpu.__dataclass_fields__) | set(Link.__dataclass_fields__) | set(KINDS)
    assert keys - code_of("file-formats.md") == set()


def test_every_key_of_a_grid_is_described() -> None:
    from slackswap.evaluate.sweep_grid import KEYS
    from slackswap.evaluate.sweep_results import PLACE

    assert {*KEYS, *PLACE} - code_of("sweeps.md") == set()


def test_every_planner_is_in_the_guide() -> None:
    guide = set(re.findall(r"`([a-z-]+)`", (DOCS / "which-planner.md").read_text()))
    assert set(registry()) - guide <= {"keep"}  # it plans nothing


def tables_of(page: str) -> Iterator[list[dict[str, str]]]:
    """Yield the tables of a page, a dict per row."""
    for text in re.findall(r"(?:^\|.*\|\n)+", (DOCS / page).read_text(), re.MULTILINE):
        heading, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
        yield [dict(zip(heading, row, strict=True)) for row in rows]


def test_quoted_gaps_are_those_of_the_gaps_page() -> None:
    measured: dict[tuple[str, str], dict[str, str]] = {}
    for table in tables_of("gaps.md"):
        measured |= {(row["input"], row["budget"]): row for row in table if "budget" in row}
    quoted = [row for table in tables_of("which-planner.md") for row in table if {"input", "budget"} <= row.keys()]
    assert len(quoted) >= 8
    for row in quoted:
        source = measured[row["input"], row["budget"]]
        assert row == {key: source[key] for key in row}, "docs/gaps.md has changed: quote it anew"


# The site


@pytest.mark.skipif(
    find_spec("mkdocs") is None or find_spec("mkdocstrings") is None, reason="mkdocs is not installed here"
)
def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    # -P: the folders beside this one are no packages. Not --quiet: it silences warnings, and then lets them pass.
    command = [sys.executable, "-P", "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SITE_TIME_LIMIT_S, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    reference = (tmp_path / "site/api/models.html").read_text()
    assert 'id="slackswap.models.event_model.simulate.simulate"' in reference
    # A remark of the docstring is a description, not a type.
    assert re.search(r"whole number of bytes, or infinity\s*</p>", reference)
