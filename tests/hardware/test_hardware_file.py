"""A machine written as TOML is the same machine when it is read back."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackswap.hardware.catalog import Hardware, catalog, load_hardware
from slackswap.hardware.gpu import Gpu
from slackswap.hardware.hardware_file import hardware_toml
from slackswap.hardware.link import Link


def read_back(hardware: Hardware) -> Hardware:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "machine.toml")
        path.write_bytes(hardware_toml(hardware).encode())
        return load_hardware(path)


@pytest.mark.parametrize("name", catalog())
def test_every_machine_of_the_catalog_comes_back(name: str) -> None:
    assert read_back(catalog()[name]) == catalog()[name]


def test_the_text_is_that_of_the_catalog() -> None:
    machine = Hardware("lab 1", Gpu('a "b"', {"fp16": 1e14}, 0.5, 0.4, 0.3, 0.2, 0.9, 1e12, 5e-6, 16), Link(1e9, 2e9))
    assert hardware_toml(machine).splitlines() == [
        '["lab 1"]',
        "sources = [",
        "]",
        '["lab 1".gpu]',
        'name = "a \\"b\\""',
        "peak_flops_per_s = { fp16 = 100000000000000.0 }",
        "gemm_efficiency = 0.5",
        "attention_forward_efficiency = 0.4",
        "attention_backward_efficiency = 0.3",
        "convolution_efficiency = 0.2",
        "memory_efficiency = 0.9",
        "memory_bytes_per_s = 1000000000000.0",
        "launch_s = 5e-06",
        "memory_bytes = 16",
        '["lab 1".link]',
        "d2h_bytes_per_s = 1000000000.0",
        "h2d_bytes_per_s = 2000000000.0",
        "duplex_factor = 0.85",
        "latency_s = 1e-05",
    ]


@settings(max_examples=60)
@given(
    name=st.text(),
    gpu_name=st.text(),
    sources=st.lists(st.text(), max_size=3),
    share=st.floats(0, 1, exclude_min=True),
    launch_s=st.floats(0, 1e300),
)
def test_any_text_and_any_number_come_back(
    name: str, gpu_name: str, sources: list[str], share: float, launch_s: float
) -> None:
    # Quotes, backslashes, newlines, NUL and DEL; numbers down to 5e-324.
    known = catalog()["h200"]
    gpu = replace(known.gpu, name=gpu_name, gemm_efficiency=share, launch_s=launch_s)
    machine = Hardware(name, gpu, replace(known.link, duplex_factor=share), tuple(sources))
    assert read_back(machine) == machine


def test_a_text_with_del_is_escaped() -> None:
    # JSON leaves DEL as it is; TOML refuses it.
    assert "\x7f" not in hardware_toml(replace(catalog()["v100"], name="a\x7fb"))
