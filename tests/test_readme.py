"""What README shows works as shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from slackswap.evaluate.command_line import cli

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_custom_heuristic_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})  # the example is ours
    planner, status, throughput = capsys.readouterr().out.split()
    assert (planner, status) == ("cheapest-first", "feasible")
    assert 0.5 < float(throughput) < 1.0


def test_every_option_that_readme_shows_exists() -> None:
    commands = re.findall(r"^slackswap (\w+) (.*?)(?:  #.*)?$", README, re.MULTILINE)
    assert len(commands) >= 5
    for command, arguments in commands:
        shown = CliRunner().invoke(cli, [command, "--help"])
        assert shown.exit_code == 0, command
        for option in re.findall(r"(?<!\S)--?[a-z][a-z-]*", arguments):
            assert option in shown.output, (command, option)


def test_planners_of_the_table_are_registered() -> None:
    from slackswap.planners import registry

    (row,) = re.findall(r"^\| planners \|(.*)$", README, re.MULTILINE)
    named = set(re.findall(r"`([a-z-]+)`", row))
    assert named == set(registry())


def test_the_table_shows_what_the_shootout_measures() -> None:
    from slackswap.evaluate.shootout import shootout
    from slackswap.evaluate.sources import load_source
    from slackswap.planners import find_planners

    shown = re.findall(r"^\| ([a-z-]+) \| \**([\d.]+)%\** \| ([\d.]+) \| .* \| ([\d.]+) \|$", README, re.MULTILINE)
    assert len(shown) >= 8
    planners = find_planners(",".join(name for name, *_ in shown))
    results = next(shootout([load_source("gpt2-xl")], ["50%"], planners))
    measured = [
        (
            result.row.planner,
            f"{100 * (result.row.throughput or 0):.2f}",
            f"{1e3 * (result.row.step_s or 0):.2f}",
            f"{(result.row.d2h_bytes or 0) / 1e9:.2f}",
        )
        for result in results
    ]
    assert shown == measured
