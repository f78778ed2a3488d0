"""The catalog holds the paper's machines, and a user's file is read whole or refused with the key that is wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slackswap.hardware.catalog import DEFAULT_HARDWARE, MAX_FILE_BYTES, catalog, load_hardware
from slackswap.hardware.input_error import InputError

MACHINE = """\
[lab]
sources = ["measured"]
[lab.gpu]
name = "Lab GPU"
peak_flops_per_s = { bf16 = 1e14, fp32 = 1e13 }
gemm_efficiency = 0.7
attention_forward_efficiency = 0.6
attention_backward_efficiency = 0.5
convolution_efficiency = 0.4
memory_efficiency = 0.9
memory_bytes_per_s = 1e12
launch_s = 4e-6
memory_bytes = 48_000_000_000
[lab.link]
d2h_bytes_per_s = 20e9
h2d_bytes_per_s = 22e9
duplex_factor = 0.9
latency_s = 0.0
"""


def test_the_default_is_the_papers_a100() -> None:
    # Paper, section 4.1.
    a100 = load_hardware(DEFAULT_HARDWARE)
    gpu, link = a100.gpu, a100.link
    assert a100.name == "a100-pcie4"
    assert gpu.peak("bf16") == 312e12
    assert (gpu.gemm_efficiency, gpu.convolution_efficiency) == (0.75, 0.60)
    assert (gpu.attention_forward_efficiency, gpu.attention_backward_efficiency) == (0.62, 0.48)
    assert (gpu.memory_efficiency, gpu.memory_bytes_per_s, gpu.launch_s) == (0.85, 2.039e12, 5e-6)
    assert (link.d2h_bytes_per_s, link.h2d_bytes_per_s) == (25e9, 25e9)
    assert (link.duplex_factor, link.latency_s) == (0.85, 10e-6)


@pytest.mark.parametrize(
    ("name", "flops_per_link_byte"),
    [
        ("titan-x", 410),  # 7e12 x 0.75 / 12.8e9; the paper prints 0.4K
        ("v100", 7500),  # 125e12 x 0.72 / 12e9
        ("a100-pcie4", 9360),  # 312e12 x 0.75 / 25e9; printed 9.4K
        ("h100-sxm", 13846),  # 989e12 x 0.70 / 50e9; printed 13.8K
    ],
)
def test_figure_1_last_line(name: str, flops_per_link_byte: int) -> None:
    hardware = catalog()[name]
    gpu = hardware.gpu
    sustained_flops_per_s = gpu.peak(gpu.training_dtype) * gpu.gemm_efficiency
    assert round(sustained_flops_per_s / hardware.link.d2h_bytes_per_s) == flops_per_link_byte


def test_from_titan_x_to_h100_compute_grew_141_times_and_the_link_3_9_times() -> None:
    # Paper, section 1: 989 / 7 and 50 / 12.8.
    old, new = catalog()["titan-x"], catalog()["h100-sxm"]
    assert round(new.gpu.peak("bf16") / old.gpu.peak("fp32")) == 141
    assert round(new.link.d2h_bytes_per_s / old.link.d2h_bytes_per_s, 1) == 3.9


def test_every_machine_names_its_sources() -> None:
    expected = {"a100-pcie4", "a100-40", "a100-80", "titan-x", "v100", "h100-pcie", "h100-sxm", "h200", "gh200"}
    assert set(catalog()) == expected
    for name, hardware in catalog().items():
        assert hardware.name == name
        assert any("datasheet" in source or "vDNN" in source for source in hardware.sources)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"^b200: no hardware has this name: use a100-pcie4, .*gh200"):
        load_hardware("b200")


def test_a_users_file_is_a_machine(tmp_path: Path) -> None:
    path = tmp_path / "lab.toml"
    path.write_text(MACHINE)
    hardware = load_hardware(path)
    assert (hardware.name, hardware.gpu.name, hardware.sources) == ("lab", "Lab GPU", ("measured",))
    assert hardware.gpu.memory_bytes == 48 * 10**9
    assert (hardware.link.h2d_bytes_per_s, hardware.link.duplex_factor) == (22e9, 0.9)
    assert load_hardware(str(path)) == hardware


def test_sources_duplex_factor_and_latency_may_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "lab.toml"
    kept = [line for line in MACHINE.splitlines() if not line.startswith(("sources", "duplex", "latency"))]
    path.write_text("\n".join(kept))
    hardware = load_hardware(path)
    assert hardware.sources == ()
    assert (hardware.link.duplex_factor, hardware.link.latency_s) == (0.85, 1e-5)  # the paper's link


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        # unknown keys
        ("launch_s", "launch_us", r"lab\.gpu\.launch_us: is not a key that is known here: use name, peak_flops_per_s"),
        ("latency_s", "latency", r"lab\.link\.latency: is not a key"),
        ("sources =", "source =", r"lab\.source: is not a key that is known here: use sources, gpu, link"),
        # missing keys
        ("launch_s = 4e-6", "", r"lab\.gpu\.launch_s: is missing"),
        ("h2d_bytes_per_s = 22e9", "", r"lab\.link\.h2d_bytes_per_s: is missing"),
        # wrong types
        ("launch_s = 4e-6", 'launch_s = "4e-6"', r"lab\.gpu\.launch_s: is a number, not a text"),
        ("launch_s = 4e-6", "launch_s = true", r"lab\.gpu\.launch_s: is a number, not a boolean"),
        ("launch_s = 4e-6", "launch_s = 2024-01-01", r"lab\.gpu\.launch_s: is a number, not a date or time"),
        ('name = "Lab GPU"', "name = 7", r"lab\.gpu\.name: is a text, not an integer"),
        ('sources = ["measured"]', 'sources = "measured"', r"lab\.sources: is a list of texts, not a text"),
        ('sources = ["measured"]', "sources = [1.5]", r"lab\.sources\[0\]: is a text, not a float"),
        ("{ bf16 = 1e14, fp32 = 1e13 }", "1e14", r"lab\.gpu\.peak_flops_per_s: is a table of dtypes, not a float"),
        ("bf16 = 1e14", "bf16 = [1e14]", r"lab\.gpu\.peak_flops_per_s\.bf16: is a number, not an array"),
        # out of range
        ("gemm_efficiency = 0.7", "gemm_efficiency = 75", r"lab\.gpu\.gemm_efficiency: lies in \(0, 1\], not 75"),
        ("launch_s = 4e-6", "launch_s = nan", r"lab\.gpu\.launch_s: a launch takes a finite number"),
        ("d2h_bytes_per_s = 20e9", "d2h_bytes_per_s = 0", r"lab\.link\.d2h_bytes_per_s: a bandwidth is"),
        ("duplex_factor = 0.9", "duplex_factor = 1.1", r"lab\.link\.duplex_factor: lies in"),
        ("latency_s = 0.0", "latency_s = -1e-6", r"lab\.link\.latency_s: a latency is"),
        ("48_000_000_000", "48.5", r"lab\.gpu\.memory_bytes: is a whole number, not 48.5"),
        ("48_000_000_000", "inf", r"lab\.gpu\.memory_bytes: is a whole number, not inf"),
        ("48_000_000_000", "9" * 400, r"lab\.gpu\.memory_bytes: is a number that a float holds"),
        # unknown dtype
        ("fp32 =", "fp8 =", r"lab\.gpu\.peak_flops_per_s\.fp8: is not a dtype that is known here: use bf16"),
        # not TOML
        ("launch_s = 4e-6", "launch_s = ", r"is not TOML: .*\(at line 12, column 12\)"),
        ("48_000_000_000", "9" * 5000, "is not TOML: "),  # Python refuses to parse an integer of this length
        ('sources = ["measured"]', "sources = " + "[" * 5000, "is not TOML: "),
    ],
)
def test_a_key_that_breaks_a_rule_is_named(tmp_path: Path, before: str, after: str, message: str) -> None:
    assert before in MACHINE
    path = tmp_path / "lab.toml"
    path.write_text(MACHINE.replace(before, after, 1))
    with pytest.raises(InputError, match=rf"lab\.toml: {message}"):
        load_hardware(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'[lab]\nsources = ["caf\xe9"]\n', "line 2: is not UTF-8"),
        (b"", "describes no machine"),
        (b"lab = 7", "lab: is a table, not an integer"),
        (b"[lab]\ngpu = 7\nlink = 8", r"lab\.gpu: is a table, not an integer"),
        (b"[lab]", r"lab\.gpu: is missing"),
        (
            MACHINE.encode() + MACHINE.replace("[lab", "[home").encode(),
            r"describes 2 machines \(lab, home\): leave one",
        ),
        (b"#" * (MAX_FILE_BYTES + 1), "has more than 1048576 bytes"),
    ],
)
def test_a_file_that_is_no_machine_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "lab.toml"
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"lab\.toml: {message}"):
        load_hardware(path)


def test_a_path_that_holds_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone\.toml: cannot be read: no such file"):
        load_hardware(str(tmp_path / "gone.toml"))
    with pytest.raises(InputError, match="is not a regular file"):
        load_hardware(tmp_path)
    with pytest.raises(InputError, match="no hardware has this name"):
        load_hardware("nul\0byte")
    with pytest.raises(InputError, match="is not a path"):
        load_hardware("nul\0byte.toml")


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.toml"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="is not a regular file"):
        load_hardware(pipe)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused_never_a_crash(tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(MACHINE.encode())
    for _ in range(data.draw(st.integers(1, 5))):
        position = data.draw(st.integers(0, len(content) - 1))
        content[position] = data.draw(st.integers(0, 255))
    path = tmp_path / "damaged.toml"
    path.write_bytes(bytes(content))
    try:
        hardware = load_hardware(path)
    except InputError as error:
        assert str(error).startswith(str(path))
        assert "\n" not in str(error)
    else:
        assert 0 < hardware.link.duplex_factor <= 1
