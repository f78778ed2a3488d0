"""Kinds of operators by name: the built-in table, tables of users, and names that were chosen to mislead."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from instances import two_layers

from slackswap.hardware.input_error import InputError
from slackswap.models.problem import KINDS
from slackswap.models.traces import operator_kind as module
from slackswap.models.traces.operator_kind import (
    is_collective,
    is_random,
    operator_kind,
    read_kind_table,
    shown_name,
    with_kinds,
)

TABLE = """
[[kind]]
kind = "gemm"
patterns = ["^my_kernel"]

[[kind]]
kind = "norm"
patterns = ["my_", "relu"]
"""


def table_file(folder: Path, content: str = TABLE) -> Path:
    path = folder / "kinds.toml"
    path.write_text(content)
    return path


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::_convolution", "convolution"),
        ("CudnnConvolutionBackward", "convolution"),
        ("aten::convert_element_type", "other"),
        ("aten::native_group_norm", "norm"),
        ("aten::norm", "norm"),
        ("aten::_scaled_dot_product_flash_attention", "attention"),
        ("aten::dot", "gemm"),
        ("aten::baddbmm", "gemm"),
        ("MmBackward0", "gemm"),
        ("aten::comm", "other"),
        ("aten::lstm", "gemm"),
        ("aten::nll_loss_forward", "loss"),
        ("NllLossBackward0", "loss"),
        ("aten::relu_", "elementwise"),
        ("ReluBackward1", "elementwise"),
        ("aten::expand", "other"),
        ("aten::add.Tensor", "elementwise"),
        ("AddBackward0", "elementwise"),
        ("aten::addmm", "gemm"),
        ("aten::clone", "copy"),
        ("ToCopyBackward0", "copy"),
        ("aten::topk", "other"),
        ("aten::bernoulli_", "dropout"),
        ("EmbeddingBackward0", "embedding"),
        ("aten::gather", "embedding"),
        ("aten::all_gather_into_tensor", "other"),
        ("", "other"),
    ],
)
def test_the_table_goes_by_what_a_name_means(name: str, kind: str) -> None:
    assert operator_kind(name) == kind


def test_every_row_of_the_built_in_table_is_of_a_kind_of_the_format() -> None:
    rows = tomllib.loads(Path(module.__file__).with_name("operator_kinds.toml").read_text(encoding="utf-8"))["kind"]
    assert {row["kind"] for row in rows} <= set(KINDS)
    assert len(rows) == len({row["kind"] for row in rows})


def test_prefixes_say_who_called_and_are_not_shown() -> None:
    assert shown_name("aten::relu") == "relu"
    assert shown_name("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad") == "AccumulateGrad"
    assert shown_name("my::relu") == "my::relu"


def test_a_table_of_ones_own_goes_before_the_built_in_one(tmp_path: Path) -> None:
    table = read_kind_table(table_file(tmp_path))
    assert operator_kind("my_kernel_conv", table) == "gemm"  # the first of two rows that fit
    assert operator_kind("my_conv", table) == "norm"
    assert operator_kind("aten::relu", table) == "norm"
    assert operator_kind("aten::conv2d", table) == "convolution"
    assert read_kind_table(table_file(tmp_path, "﻿" + TABLE)) == table  # as Windows' editors write it


def test_the_kinds_of_a_problem_are_changed_where_a_row_fits(tmp_path: Path) -> None:
    problem = two_layers()
    names = ("layers.1/my_kernel.0", "relu/f1.1", "aten::relu.2", "b0.3")
    named = replace(problem, operator_names=names)
    changed = with_kinds(named, read_kind_table(table_file(tmp_path)))
    # The region before the slash is no part of the name.
    assert [KINDS[kind] for kind in changed.kind] == ["gemm", "gemm", "norm", "gemm"]
    assert [KINDS[kind] for kind in with_kinds(named, ()).kind] == ["gemm"] * 4
    assert [KINDS[kind] for kind in named.kind] == ["gemm"] * 4
    assert changed.tensors() == problem.tensors()


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        ("kind = 3", "holds [[kind]] entries"),
        ("# no rows", "holds [[kind]] entries"),
        ('[kind]\nkind = "gemm"', "holds [[kind]] entries"),
        (TABLE + "\n[more]\n", "holds [[kind]] entries"),
        ("[[kind]]", "kind[0]: has `kind` and `patterns`"),
        ('[[kind]]\nkind = "gemm"\npatterns = []\nx = 1', "kind[0]: has `kind` and `patterns`"),
        ('[[kind]]\nkind = "softmax"\npatterns = []', "kind[0].kind: is one of"),
        ('[[kind]]\nkind = ["gemm"]\npatterns = []', "kind[0].kind: is one of"),
        ('[[kind]]\nkind = "gemm"\npatterns = "x"', "kind[0].patterns: is a list of regular expressions"),
        ('[[kind]]\nkind = "gemm"\npatterns = [1]', "kind[0].patterns: is a list of regular expressions"),
        ('[[kind]]\nkind = "gemm"\npatterns = ["a", "(b"]', "kind[0].patterns[1]: is no regular expression"),
        ('[[kind]]\nkind = "gemm"\npatterns = ["a{99999999999}"]', "kind[0].patterns[0]: is no regular expression"),
        ("[[kind", "is not TOML"),
        ("x = " + "[" * 5000, "is not TOML"),
    ],
)
def test_what_is_no_table_is_refused_with_its_place(tmp_path: Path, content: str, rule: str) -> None:
    path = table_file(tmp_path, content)
    with pytest.raises(InputError) as caught:
        read_kind_table(path)
    said = str(caught.value)
    assert said.startswith(f"{path}: ")
    assert rule in said
    assert len(said.splitlines()) == 1


def test_a_table_that_is_no_text_or_not_there_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "kinds.toml"
    with pytest.raises(InputError, match="cannot be read"):
        read_kind_table(path)
    path.write_bytes(b"\xff\xfe[[kind]]")
    with pytest.raises(InputError, match="is not TOML"):
        read_kind_table(path)


def test_random_and_collective_calls_are_known_by_name() -> None:
    assert all(
        map(is_random, ("aten::native_dropout", "aten::bernoulli_", "aten::rand", "aten::normal_", "aten::multinomial"))
    )
    assert not any(map(is_random, ("aten::layer_norm", "aten::expand", "aten::batch_norm")))
    assert all(map(is_collective, ("nccl:all_reduce", "c10d::allreduce_", "record_param_comms", "gloo:broadcast")))
    assert not any(map(is_collective, ("aten::all", "aten::reduce_sum")))
