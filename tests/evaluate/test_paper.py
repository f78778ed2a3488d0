"""The paper's numbers stand in ``paper.toml`` as the paper prints them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from shared_data import shared_file

from slackswap.evaluate.paper import Statement, paper
from slackswap.evaluate.reproduce import ITEMS
from slackswap.hardware import catalog
from slackswap.models.workloads import WORKLOADS
from slackswap.planners import BUILT_IN


def stated(statement_id: str) -> tuple[float, ...]:
    (statement,) = (statement for statement in paper().statements if statement.id == statement_id)
    return statement.bounds


def targets() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(shared_file("paper/targets.json").read_text())
    return document


def rows(table: dict[str, Any]) -> Iterator[tuple[str, list[float | None]]]:
    return ((name, values) for name, values in table.items() if name != "columns")


KEYS = {
    **{name: key for key in WORKLOADS for name in [paper().name(key)]},
    **{name: key for key in (planner.name for planner in BUILT_IN) for name in [paper().name(key)]},
    **{name: key for key in catalog() for name in [paper().name(key)]},
}


# A statement


@pytest.mark.parametrize(
    ("value", "bounds", "decimals"),
    [
        ("1105", (1105.0,), 0),
        ("0.000", (0.0,), 3),
        ("1.10-1.11", (1.10, 1.11), 2),
        ("96-100", (96.0, 100.0), 0),
        ("1.9-87", (1.9, 87.0), 1),
        ("does not fit", (), 0),
        ("under 0.1", (), 0),
        ("none", (), 0),
    ],
)
def test_a_value_is_a_number_a_range_or_words(value: str, bounds: tuple[float, ...], decimals: int) -> None:
    statement = Statement(id="table2.x", section="4.3", what="x", value=value)
    assert statement.bounds == bounds
    assert statement.decimals == decimals
    assert statement.item == "table2"


def test_every_statement_can_be_found_and_says_where_it_stands() -> None:
    statements = paper().statements
    assert len({statement.id for statement in statements}) == len(statements) > 190
    for statement in statements:
        assert statement.item in ITEMS
        assert re.fullmatch(r"(abstract|[\d.]+)?(, )?((Table|Figure) \d[ab]?)?", statement.section), statement
        assert statement.section
        assert bool(statement.bounds) <= bool(statement.unit), statement
        assert list(statement.bounds) == sorted(statement.bounds), statement


def test_the_sweeps_name_what_exists() -> None:
    sweeps = paper().sweeps
    assert set(sweeps.workloads) == set(WORKLOADS)
    assert set(sweeps.generations) <= set(catalog())
    assert set(sweeps.swap_centric) < set(sweeps.planners)
    assert sweeps.planners[0] == "slackswap"
    assert sweeps.budgets_of("gpt2-xl")[-1] == "10%"
    assert sweeps.budgets_of("vgg-16")[-1] == "60%"


# Against the paper


def test_every_number_stands_in_the_paper() -> None:
    text = shared_file("paper/slackswap.txt").read_text().replace(",", "")
    for statement in paper().statements:
        for number in re.findall(r"[\d.]+", statement.value):
            thousands = f"{1000 * float(number):.0f}"
            shown = rf"(?<![\d.]){re.escape(number)}(?!\.?\d)|(?<!\d){thousands}(?!\d)"  # beta: 4700 is 4.7 K
            assert re.search(shown, text), statement


def test_tables_are_the_papers() -> None:
    document = targets()
    table1_columns = ("saved", "step", "intensity", "hideable")
    for name, values in rows(document["table1"]):
        assert [stated(f"table1.{KEYS[name]}.{column}") for column in table1_columns] == [(v,) for v in values]
    table2_columns = ("step", "recompute", "forward-stall", "backward-stall", "d2h")
    for name, by_planner in rows(document["table2_40pct"]):
        for planner, values in by_planner.items():  # type: ignore[attr-defined]  # a table of tables
            row = f"table2.{KEYS[name]}.{KEYS[planner]}"
            assert [stated(f"{row}.{column}") for column in table2_columns] == [(v,) for v in values]
    table3_columns = [column.replace("_", "-") for column in document["table3"]["columns"][:-1]]
    for name, by_budget in rows(document["table3"]):
        for budget, values in by_budget.items():  # type: ignore[attr-defined]  # a table of tables
            row = f"table3.{KEYS[name]}.{float(budget):.0%}"
            entries = [stated(f"{row}.{column}") for column in (*table3_columns, "planning")]
            assert entries == [() if v is None else (v,) for v in values]


def test_figures_1_to_3_are_the_papers() -> None:
    document = targets()
    for gpu, balance in document["figure1_machine_balance_flop_per_link_byte"].items():
        assert stated(f"fig1.{KEYS[gpu]}.gemm-balance") == (balance / 1000,)
    for label, cost in document["figure2_rebuild_ps_per_byte_gpt2xl_a100"].items():
        name, megabytes = re.fullmatch(r"(.*) \((\d+) MB\)", label.replace("Q,K,V", "Q, K, V")).groups()  # type: ignore[union-attr]
        assert stated(f"fig2.{name}.cost") == (cost,)
        assert stated(f"fig2.{name}.size") == (float(megabytes),)
    for link, cost in document["figure2_exposed_copy_ps_per_byte"].items():
        assert stated(f"fig2.{link}.copy") == (cost,)
    for decision, gigabytes in document["figure3_gpt2xl_30pct"].items():
        assert stated(f"fig3.{decision.removesuffix('_gb')}") == (gigabytes,)


def test_figure_4_is_the_papers() -> None:
    figure = targets()["figure4_statements"]
    for planner, percent in figure["gpt2xl_50pct"].items():
        assert stated(f"fig4.{KEYS[planner]}.gpt2-xl.50%") == (percent,)
    for key, statement_id in (
        ("checkpoint_at_15pct", "fig4.checkpoint.15%"),
        ("slackswap_at_10pct", "fig4.slackswap.10%"),
        ("slackswap_at_30pct", "fig4.slackswap.30%"),
        ("slackswap_over_best_baseline_at_50pct", "fig4.lead.50%"),
        ("slackswap_over_best_baseline_at_30pct", "fig4.lead.30%"),
        ("vgg16_down_to_65pct", "fig4.vgg-16.slackswap"),
    ):
        assert list(stated(statement_id)) == figure[key]
    stops = (figure["vgg16_vdnn_and_checkpoint_stop_fitting_at"],)
    assert stated("fig4.vgg-16.vdnn-stops") == stated("fig4.vgg-16.checkpoint-stops") == stops
    assert stated("fig4.swapadvisor.d2h") == (figure["swapadvisor_gpt2xl_50pct_d2h_gb"],)
    assert stated("fig4.forward") == (figure["gpt2xl_forward_ms"],)
    ideal_down_to = figure["slackswap_and_swapadvisor_ideal_down_to"]
    for workload in paper().sweeps.workloads:
        percent = ideal_down_to.get(paper().name(workload), ideal_down_to["default"])
        assert stated(f"fig4.{workload}.{percent}%.slackswap") == (100.0,)


def test_figures_5_and_6_and_the_text_are_the_papers() -> None:
    document = targets()
    for name, milliseconds in document["figure5_gpt2xl_50pct_ms"].items():
        assert stated(f"fig5.{KEYS.get(name, name)}") == (milliseconds,)
    links, lengths = document["figure6a_gpt2xl_30pct_link_sweep"], document["figure6b_llama_30pct_seq_sweep"]
    for kind in ("swapped", "recomputed"):
        ends = [stated(f"fig6.{kind}.{gb_per_s}") for gb_per_s in (12, 200)]
        assert ends == [(gigabytes,) for gigabytes in links[f"slackswap_{kind}_gb_at_12_and_200"]]
    for kind in ("hideable", "slackswap"):
        ends = [stated(f"fig6.{kind}.{tokens}") for tokens in (2048, 32768)]
        assert ends == [(percent,) for percent in lengths[f"{kind}_pct_at_2K_and_32K"]]
    assert list(stated("fig6.checkpoint")) == lengths["checkpoint_pct"]
    for name, by_gpu in document["gpu_generation_lead_over_best_baseline_30pct"].items():
        for gpu, lead in by_gpu.items():
            assert stated(f"generations.{KEYS[name]}.{KEYS[gpu]}") == (lead,)
    for name, percent in document["titanx_vgg16_overhead_pct"].items():
        assert stated(f"titanx.{name.lower().replace('_', '-')}") == (percent,)
    planning = document["planning"]
    assert stated("fig4.planning") == (planning["slackswap_max_ms"],)
    assert list(stated("table3.ga-plans")) == planning["genetic_search_plans_in_45s"]
    assert stated("table3.ga-gain") == (planning["genetic_search_gain_over_slackswap_max_pct"],)
