"""Names that drivers and profilers print, and the catalog's machine for each; what is not in the catalog is nobody's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackswap.hardware.catalog import Hardware, catalog
from slackswap.hardware.gpu_names import find_gpu


@pytest.mark.parametrize(
    ("name", "machine"),
    [
        ("Tesla V100-SXM2-32GB", "v100"),
        ("Tesla V100-SXM2-16GB", "v100"),  # as fast, half the memory
        ("Tesla V100-DGXS-32GB", "v100"),
        ("NVIDIA A100-SXM4-80GB", "a100-pcie4"),
        ("A100-SXM4-40GB", "a100-40"),
        ("NVIDIA A100-PCIE-40GB", "a100-40"),
        ("NVIDIA A100-PG509-200", "a100-40"),
        ("NVIDIA A100 80GB PCIe", "a100-80"),
        ("NVIDIA GeForce GTX TITAN X", "titan-x"),
        ("GeForce GTX TITAN X", "titan-x"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("  nvidia h200 ", "h200"),
    ],
)
def test_names_of_the_catalogs_gpus(name: str, machine: str) -> None:
    found = find_gpu(name)
    assert found is not None
    assert found.name == machine


@pytest.mark.parametrize("machine", catalog().values(), ids=list(catalog()))
def test_the_catalog_knows_its_own_names(machine: Hardware) -> None:
    assert find_gpu(machine.gpu.name) is machine


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA GeForce RTX 2080 Ti",
        "AMD Instinct MI300X",
        "AMD Radeon Graphics",
        # variants with other peaks or bandwidths
        "Tesla V100-PCIE-32GB",
        "Tesla V100S-PCIE-32GB",
        "NVIDIA H100 NVL",
        "NVIDIA H200 NVL",
        "NVIDIA GH200 144G HBM3e",
        "NVIDIA TITAN X (Pascal)",
        "NVIDIA TITAN Xp",
        "NVIDIA A100X",
        "NVIDIA A100-SXM-64GB",
        # a slice of a GPU
        "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
        "GRID A100-10C",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        # which variant?
        "A100",
        "NVIDIA H100",
        "Tesla V100",
        # not a GPU's name
        "",
        "NVIDIA",
        "not an H200",
        "NVIDIA " * 100_000 + "H200",
    ],
)
def test_other_names_are_nobodys(name: str) -> None:
    assert find_gpu(name) is None


@given(st.text(alphabet="vVaAhH12 0-()gGbBsxm4pcie", max_size=40))
def test_any_text_is_a_machine_of_the_catalog_or_none(name: str) -> None:
    found = find_gpu(name)
    assert found is None or any(digits in name for digits in ("100", "200"))
