"""The four workloads give the paper's numbers, and their blocks the arithmetic of a block worked out by hand."""

from __future__ import annotations

import itertools
import json
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackswap.hardware.catalog import Hardware, catalog
from slackswap.hardware.gpu import Gpu
from slackswap.hardware.input_error import InputError
from slackswap.hardware.link import Link
from slackswap.models.link_budget import link_budget
from slackswap.models.problem import KINDS, Problem
from slackswap.models.workloads import WORKLOADS

A100 = catalog()["a100-pcie4"]
# 1000 FLOP/s and 1000 bytes/s, all of it sustained; attention 500 FLOP/s forward and 250 backward; 1 s per launch.
TOY = Hardware(
    "toy",
    Gpu(
        name="toy",
        peak_flops_per_s={"bf16": 1000.0, "fp32": 1000.0},
        gemm_efficiency=1.0,
        attention_forward_efficiency=0.5,
        attention_backward_efficiency=0.25,
        convolution_efficiency=1.0,
        memory_efficiency=1.0,
        memory_bytes_per_s=1000.0,
        launch_s=1.0,
        memory_bytes=10**6,
    ),
    Link(1e9, 1e9),
)
# T = 2 x 3 = 6 tokens of 4 units: a hidden tensor u = 2 x 4 x 6 = 48 bytes, a mask m = 24, a feed-forward tensor
# uf = 192, log-sum-exp 4 x 2 heads x 6 = 48.
TINY = {"layers": 1, "hidden": 4, "heads": 2, "vocabulary": 10, "sequence": 3, "batch": 2}


@cache
def paper(name: str) -> Problem:
    return WORKLOADS[name].build(A100)


def tensor(problem: Problem, name: str) -> int:
    return problem.tensor_names.index(name)


def seconds(problem: Problem, operator: str) -> float:
    return float(problem.duration_s[problem.operator_names.index(operator)])


def workspace(problem: Problem, operator: str) -> int:
    return int(problem.workspace_bytes[problem.operator_names.index(operator)])


def readers(problem: Problem, name: str) -> list[str]:
    return [problem.operator_names[i] for i in problem.readers_of(tensor(problem, name))]


def keep_everything_peak(problem: Problem) -> int:
    """Peak P, added up operator by operator."""
    used_bytes = peak_bytes = 0
    for i in range(problem.n_operators):
        used_bytes += int(problem.allocation_bytes[i])
        peak_bytes = max(peak_bytes, used_bytes)
        used_bytes -= int(problem.workspace_bytes[i]) + int(problem.tensor_bytes[problem.last_use == i].sum())
    assert used_bytes == 0
    return peak_bytes


# The paper's numbers


@pytest.mark.parametrize(
    ("name", "saved_gb", "intensity", "hideable_pct"),
    [
        ("bert-large", 13.9, 782, 11),
        ("gpt2-xl", 22.3, 1200, 15),
        ("llama-7b", 35.2, 3326, 38),
        ("vgg-16", 3.9, 1015, 17),
    ],
)
def test_table_1_saved_bytes_intensity_and_hideable_fraction(
    name: str, saved_gb: float, intensity: float, hideable_pct: int
) -> None:
    # Paper, Table 1. A and I within 1%, f to the printed percent.
    budget = link_budget(paper(name))
    assert budget.saved_bytes / 1e9 == pytest.approx(saved_gb, rel=0.01)
    assert budget.intensity_flops_per_byte == pytest.approx(intensity, rel=0.01)
    assert round(100 * budget.hideable_fraction) == hideable_pct


@pytest.mark.parametrize(
    ("name", "step_ms", "tolerance"),
    # VGG-16: the paper does not state a convolution efficiency; 0.60 gives T_F, not quite the step.
    [("bert-large", 173, 0.01), ("gpt2-xl", 399, 0.01), ("llama-7b", 1635, 0.01), ("vgg-16", 82, 0.08)],
)
def test_table_1_ideal_step(name: str, step_ms: float, tolerance: float) -> None:
    assert paper(name).ideal_s * 1e3 == pytest.approx(step_ms, rel=tolerance)


@pytest.mark.parametrize(("name", "peak_gb"), [("bert-large", 14.09), ("gpt2-xl", 23.14), ("llama-7b", 35.71)])
def test_peaks_include_the_gradient_of_the_logits(name: str, peak_gb: float) -> None:
    assert round(keep_everything_peak(paper(name)) / 1e9, 2) == peak_gb


def test_gpt2_xl_forward_takes_136_ms() -> None:
    assert round(paper("gpt2-xl").forward_s * 1e3) == 136  # paper, section 4.2


def test_gpt2_xl_has_1065_operators_and_484_tensors() -> None:
    # 48 blocks of 12 forward and 10 backward operators are 1056; embedding, dropout, final norm, head, loss and the
    # backward passes of the last four are 9. 48 blocks of 10 tensors are 480; the mask, the final norm's input and
    # output and the logits are 4.
    assert (paper("gpt2-xl").n_operators, paper("gpt2-xl").n_tensors) == (1065, 484)


@pytest.mark.parametrize(
    ("name", "ps_per_byte", "megabytes"),
    [
        ("mask1.7", 1.0, 13),
        ("gelu.7", 1.2, 105),
        ("ln1.7", 1.3, 26),
        ("attention.7", 5.3, 27),
        ("qkv.7", 6.9, 79),
        ("fc1.7", 6.9, 105),
        ("mid.7", 10.6, 26),
    ],
)
def test_figure_2_rebuild_cost_per_byte(name: str, ps_per_byte: float, megabytes: int) -> None:
    problem = paper("gpt2-xl")
    t = tensor(problem, name)
    assert round(1e12 * problem.rebuild_s[t] / problem.tensor_bytes[t], 1) == ps_per_byte
    assert round(problem.tensor_bytes[t] / 1e6) == megabytes


def test_figure_1_on_the_titan_x_everything_hides() -> None:
    # Section 2.2: every workload has I >= 403 there (FP32 halves it), beta is about 400.
    budgets = [link_budget(workload.build(catalog()["titan-x"])) for workload in WORKLOADS.values()]
    assert round(min(budget.intensity_flops_per_byte or 0 for budget in budgets)) == 403
    assert {budget.hideable_fraction for budget in budgets} == {1.0}


@pytest.mark.parametrize(("hardware", "lowest", "highest"), [("v100", 4700, 6900), ("a100-pcie4", 5900, 8800)])
def test_machine_balance_lies_in_the_papers_range(hardware: str, lowest: float, highest: float) -> None:
    # Section 2.2; printed to two digits.
    budgets = [link_budget(workload.build(catalog()[hardware])) for workload in WORKLOADS.values()]
    balances = [budget.balance_flops_per_byte or 0 for budget in budgets]
    assert min(balances) == pytest.approx(lowest, rel=0.02)
    assert max(balances) == pytest.approx(highest, rel=0.02)


def test_figure_1_on_the_h100_9_to_27_percent_hide() -> None:
    budgets = [link_budget(workload.build(catalog()["h100-sxm"])) for workload in WORKLOADS.values()]
    shares = sorted(round(100 * budget.hideable_fraction) for budget in budgets)
    assert (shares[0], shares[-1]) == (9, 27)


@pytest.mark.parametrize(("sequence", "batch", "hideable_pct"), [(2048, 8, 36), (32768, 1, 60)])
def test_longer_sequences_hide_more_of_llama(sequence: int, batch: int, hideable_pct: int) -> None:
    # Section 4.5: attention FLOPs grow with the sequence, saved bytes per token do not. Ours are 36.5 and 60.7.
    budget = link_budget(WORKLOADS["llama-7b"].build(A100, sequence=sequence, batch=batch))
    assert 100 * budget.hideable_fraction == pytest.approx(hideable_pct, rel=0.02)


def test_vgg_16_keeps_42_percent_in_its_first_two_convolutions() -> None:
    problem = paper("vgg-16")
    first_two_bytes = sum(int(problem.tensor_bytes[tensor(problem, name)]) for name in ("conv1_1", "conv1_2"))
    assert round(100 * first_two_bytes / problem.saved_bytes) == 42  # paper, section 4.2


def test_vgg_16_fits_65_percent_but_not_with_both_first_convolutions_there() -> None:
    # Section 4.2: SlackSwap runs at 65% of P; checkpointing, which rebuilds both before pool1', stops fitting at 70%.
    problem = paper("vgg-16")
    peak_bytes = keep_everything_peak(problem)
    reads_bytes = np.array([int(problem.tensor_bytes[problem.reads_of(i)].sum()) for i in range(problem.n_operators)])
    assert (reads_bytes + problem.allocation_bytes).max() < 0.65 * peak_bytes
    stage = [tensor(problem, name) for name in ("batch", "conv1_1", "conv1_2", "pool1")]
    assert int(problem.tensor_bytes[stage].sum()) + workspace(problem, "pool1'") > 0.70 * peak_bytes


# One block by hand


def test_a_tiny_gpt_is_its_arithmetic() -> None:
    problem = WORKLOADS["gpt2-xl"].build(TOY, **TINY)
    # 17 forward and 14 backward operators; 10 tensors of the block and 4 around it.
    assert (problem.n_operators, problem.n_forward, problem.n_tensors) == (31, 17, 14)
    # Block 17 u + log-sum-exp = 864; mask 24, final norm in and out 96, logits 2 x 6 x 10 = 120.
    assert problem.saved_bytes == 864 + 24 + 96 + 120
    # Linear layers 24 h^2 T = 2304, causal attention 2 s h T = 144, head 2 h V T = 480.
    assert problem.metadata["forward_flops"] == 2304 + 144 + 480
    assert seconds(problem, "ln1.0") == pytest.approx(2 * 0.048 + 1)
    assert seconds(problem, "qkv.0") == pytest.approx(0.576 + 1)  # 6 h^2 T = 576
    assert seconds(problem, "attention.0") == pytest.approx(0.144 / 0.5 + 1)
    assert seconds(problem, "attention.0'") == pytest.approx(2.5 * 0.144 / 0.25 + 1)
    assert seconds(problem, "dropout1.0") == pytest.approx(2 * 0.048 + 0.024 + 1)
    assert seconds(problem, "add1.0") == pytest.approx(3 * 0.048 + 1)
    assert seconds(problem, "fc1.0'") == pytest.approx(2 * 0.768 + 2)  # two GEMMs of 8 h^2 T = 768, two launches
    assert seconds(problem, "gelu.0") == pytest.approx(2 * 0.192 + 1)
    assert seconds(problem, "gelu.0'") == pytest.approx(3 * 0.192 + 1)
    assert seconds(problem, "ln2.0'") == pytest.approx(4 * 0.048 + 1)
    # Gradients alive: 2 u + 2 uf at GeLU, 5 u around attention, the logits' gradient at the loss.
    assert workspace(problem, "gelu.0'") == 2 * 48 + 2 * 192
    assert workspace(problem, "attention.0'") == 5 * 48
    assert workspace(problem, "loss'") == 120
    # P: everything saved, and the logits' gradient.
    assert keep_everything_peak(problem) == 1104 + 120


def test_a_gpt_block_reads_what_its_backward_pass_needs() -> None:
    problem = WORKLOADS["gpt2-xl"].build(TOY, **TINY)
    assert readers(problem, "input.0") == ["ln1.0", "add1.0", "ln1.0'"]
    assert readers(problem, "ln1.0") == ["qkv.0", "qkv.0'"]
    assert readers(problem, "qkv.0") == ["attention.0", "attention.0'"]
    assert readers(problem, "attention.0") == ["projection.0", "projection.0'", "attention.0'"]
    assert readers(problem, "mask1.0") == ["dropout1.0'"]
    assert readers(problem, "mid.0") == ["ln2.0", "add2.0", "ln2.0'"]
    assert readers(problem, "ln2.0") == ["fc1.0", "fc1.0'"]
    assert readers(problem, "fc1.0") == ["gelu.0", "gelu.0'"]
    assert readers(problem, "gelu.0") == ["fc2.0", "fc2.0'"]
    assert readers(problem, "mask2.0") == ["dropout2.0'"]


def test_a_gpt_block_is_rebuilt_from_its_input() -> None:
    problem = WORKLOADS["gpt2-xl"].build(TOY, **TINY)
    inputs = {
        name: [problem.tensor_names[t] for t in problem.rebuild_inputs_of(tensor(problem, name))]
        for name in problem.tensor_names
    }
    assert inputs["ln1.0"] == ["input.0"]
    assert inputs["mid.0"] == ["input.0", "attention.0", "mask1.0"]
    assert inputs["gelu.0"] == ["fc1.0"]
    assert inputs["mask2.0"] == []
    mid = tensor(problem, "mid.0")
    assert problem.rebuild_s[mid] == pytest.approx(
        sum(seconds(problem, f"{name}.0") for name in ("projection", "dropout1", "add1"))
    )
    assert problem.rebuild_workspace_bytes[mid] == 2 * 48
    assert not problem.rebuildable[tensor(problem, "input.0")]
    # Drawing the mask again writes it: 24 bytes.
    assert problem.rebuild_s[tensor(problem, "mask1.0")] == pytest.approx(0.024 + 1)


def test_a_tiny_llama_is_its_arithmetic() -> None:
    problem = WORKLOADS["llama-7b"].build(TOY, **TINY, ffn=16)
    # Block 8 u + 3 uf + log-sum-exp = 384 + 576 + 48; final norm in and out 96, logits 120.
    assert problem.saved_bytes == 384 + 576 + 48 + 96 + 120
    # QKV and projection 8 h^2 T = 768, gate, up and down 6 h f T = 2304, attention 144, head 480.
    assert problem.metadata["forward_flops"] == 768 + 2304 + 144 + 480
    qkv = tensor(problem, "qkv.0")
    # The GEMM's 0.576 s and the rotation's 4 u = 0.192 s, a launch each.
    assert problem.rebuild_s[qkv] == pytest.approx(0.576 + 1 + 0.192 + 1)
    assert readers(problem, "qkv.0") == ["rope.0", "attention.0", "attention.0'"]
    # Gate and up come from one GEMM of 2 x 768 FLOPs; either alone is half of it.
    assert seconds(problem, "gate_up.0") == pytest.approx(1.536 + 1)
    assert problem.rebuild_s[tensor(problem, "up.0")] == pytest.approx(0.768 + 1)
    assert seconds(problem, "swiglu.0'") == pytest.approx(5 * 0.192 + 1)
    assert not any("dropout" in name for name in problem.operator_names)


def test_a_tiny_bert_looks_both_ways_and_predicts_some_positions() -> None:
    problem = WORKLOADS["bert-large"].build(TOY, **TINY, predictions=1)
    # Block 864; embedding 48 and mask 24; of 2 predicted positions: norm in and out 16 each, logits 2 x 2 x 10 = 40.
    assert problem.saved_bytes == 864 + 48 + 24 + 32 + 40
    # Attention without a causal mask 4 s h T = 288; head 2 x 4 x 10 x 2 = 160.
    assert problem.metadata["forward_flops"] == 2304 + 288 + 160
    assert seconds(problem, "attention.0") == pytest.approx(0.288 / 0.5 + 1)
    # The last block's output is workspace: of the addition that writes it (beside the dropout's), of the gather.
    assert (workspace(problem, "add2.0"), workspace(problem, "gather")) == (96, 48)


def test_a_tiny_vgg_is_its_arithmetic() -> None:
    problem = WORKLOADS["vgg-16"].build(TOY, depth=11, width=1, image=32, batch=1, hidden=5, classes=3)
    # conv1_1: 2 x 3 x 1 channels x 9 x 32^2 pixels = 55296 FLOPs, then ReLU reads and writes 2 x 32^2 = 2048 bytes.
    assert seconds(problem, "conv1_1") == pytest.approx(55.296 + 1 + 4.096 + 1)
    # Its backward pass needs no gradient of the batch: one convolution.
    assert seconds(problem, "conv1_1'") == pytest.approx(55.296 + 1)
    # conv2_1: 2 x 1 x 2 x 9 x 16^2 = 9216 FLOPs, two gradients.
    assert seconds(problem, "conv2_1'") == pytest.approx(2 * 9.216 + 2)
    assert workspace(problem, "conv2_1'") == 1024 + 512  # gradients of its output, 2 x 16^2 units, and of pool1
    # pool1 reads 2048 and writes 512 bytes; backward it reads both and their gradients.
    assert seconds(problem, "pool1") == pytest.approx(2.560 + 1)
    assert seconds(problem, "pool1'") == pytest.approx(5.120 + 1)
    assert readers(problem, "conv1_1") == ["pool1", "pool1'", "relu1_1'"]
    # Five pools leave 1 pixel of 8 channels: fc6 has 2 x 8 x 5 = 80 FLOPs.
    assert seconds(problem, "fc6") == pytest.approx(0.080 + 1)
    assert not problem.rebuildable[tensor(problem, "batch")]
    assert seconds(problem, "batch") == 0.0


def test_relu_shares_the_layer_of_its_convolution() -> None:
    problem = paper("vgg-16")
    names = problem.operator_names
    for first, second in (("relu1_2'", "conv1_2'"), ("fc6", "dropout6"), ("dropout6'", "fc6'")):
        i = names.index(first)
        assert names[i + 1] == second
        assert problem.layer[i] == problem.layer[i + 1]
        assert problem.layer[i - 1] < problem.layer[i]
    assert (np.diff(paper("gpt2-xl").layer) == 1).all()  # a transformer's operators are layers of their own


def test_fp32_doubles_all_but_masks_and_log_sum_exp() -> None:
    problem = WORKLOADS["gpt2-xl"].build(TOY, **TINY, dtype="fp32")
    # Block 16 x 96 + 2 x 24 + 48; mask 24, final norm in and out 192, logits 240.
    assert problem.saved_bytes == 1632 + 24 + 192 + 240


# Parameters


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("gpt2-xl", {"depth": 3}, "gpt2-xl: depth: is not a parameter: use batch, dtype, layers, hidden, heads"),
        ("gpt2-xl", {"layers": 0}, "gpt2-xl: layers: is a whole number from 1 to 10000, not 0"),
        ("gpt2-xl", {"layers": 10**9}, "gpt2-xl: layers: is a whole number from 1 to 10000"),
        ("gpt2-xl", {"batch": -1}, "gpt2-xl: batch: is a whole number from 1"),
        ("gpt2-xl", {"batch": 1.5}, "gpt2-xl: batch: is a whole number from 1 to 2147483648, not 1.5"),
        ("gpt2-xl", {"batch": "8"}, "gpt2-xl: batch: is a whole number from 1 to 2147483648, not '8'"),
        ("gpt2-xl", {"batch": True}, "gpt2-xl: batch: is a whole number"),
        ("gpt2-xl", {"sequence": None}, "gpt2-xl: sequence: is a whole number"),
        ("gpt2-xl", {"sequence": 10**12}, "gpt2-xl: sequence: is a whole number"),
        ("gpt2-xl", {"heads": 7}, "gpt2-xl: heads: 7 heads do not divide 1600 hidden units"),
        ("gpt2-xl", {"dtype": "int8"}, "gpt2-xl: dtype: is one of bf16, fp16, tf32, fp32, not 'int8'"),
        ("gpt2-xl", {"dtype": ["bf16"]}, "gpt2-xl: dtype: is one of"),
        (
            "gpt2-xl",
            {"hidden": 1 << 31, "heads": 1, "sequence": 1 << 31},
            r"gpt2-xl: \$\.operators\[0\]\.workspace_bytes: a size is",
        ),
        ("bert-large", {"predictions": 513}, "bert-large: predictions: 513 predictions need more than the 512"),
        ("vgg-16", {"depth": 17}, "vgg-16: depth: is one of 11, 13, 16, 19, not 17"),
        ("vgg-16", {"image": 31}, "vgg-16: image: five pools need images of at least 32 pixels, not 31"),
    ],
)
def test_a_wrong_parameter_is_named(name: str, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        WORKLOADS[name].build(A100, **parameters)


def test_a_dtype_that_the_gpu_lacks_is_refused() -> None:
    with pytest.raises(InputError, match=r"^llama-7b: dtype: the NVIDIA V100 SXM2 32GB has no peak for 'bf16'"):
        WORKLOADS["llama-7b"].build(catalog()["v100"], dtype="bf16")


def test_the_problem_is_named_by_what_was_changed() -> None:
    assert paper("gpt2-xl").name == "gpt2-xl on a100-pcie4"
    problem = WORKLOADS["gpt2-xl"].build(TOY, **TINY)
    assert problem.name == "gpt2-xl layers=1 hidden=4 heads=2 vocabulary=10 sequence=3 batch=2 on toy"
    # A preset's own value is no change.
    assert WORKLOADS["gpt2-xl"].build(A100, layers=48).name == "gpt2-xl on a100-pcie4"


@pytest.mark.parametrize("name", WORKLOADS)
def test_metadata_declares_the_model_and_its_simplifications(name: str) -> None:
    metadata = paper(name).metadata
    assert json.loads(json.dumps(metadata)) == metadata  # it goes into the problem file
    assert (metadata["hardware"], metadata["gpu"]) == ("a100-pcie4", "NVIDIA A100 80GB SXM")
    assert metadata["model"]["dtype"] == "bf16"
    assert metadata["heuristics"]
    assert metadata["left_out"]


@pytest.mark.parametrize("name", WORKLOADS)
def test_building_twice_gives_the_same_problem(name: str) -> None:
    again = WORKLOADS[name].build(A100)
    assert again.operators() == paper(name).operators()
    assert again.tensors() == paper(name).tensors()


# Any dimensions

DIMENSIONS = st.fixed_dictionaries(
    {
        "layers": st.integers(1, 4),
        "hidden": st.sampled_from([8, 24, 64]),
        "heads": st.sampled_from([1, 2, 4, 8]),
        "vocabulary": st.integers(1, 100),
        "sequence": st.integers(1, 16),
        "batch": st.integers(1, 4),
    }
)
DTYPES = st.sampled_from([("bf16", 2), ("fp16", 2), ("tf32", 4), ("fp32", 4)])
TRANSFORMERS = ["bert-large", "gpt2-xl", "llama-7b"]


def build(name: str, dimensions: dict[str, int], dtype: str) -> Problem:
    extra = {"predictions": min(3, dimensions["sequence"])} if name == "bert-large" else {}
    return WORKLOADS[name].build(A100, **dimensions, **extra, dtype=dtype)


@settings(max_examples=50, deadline=None)
@given(name=st.sampled_from(TRANSFORMERS), dimensions=DIMENSIONS, dtype=DTYPES)
def test_any_transformer_saves_every_tensor_and_reads_it_backward(
    name: str, dimensions: dict[str, int], dtype: tuple[str, int]
) -> None:
    problem = build(name, dimensions, dtype[0])
    assert problem.saved.all()
    assert problem.forward_s < problem.backward_s
    assert keep_everything_peak(problem) >= problem.saved_bytes
    assert len(set(problem.tensor_names)) == problem.n_tensors
    assert len(set(problem.operator_names)) == problem.n_operators
    # Every operator that is run again takes as long as it took; a mask takes less, mid and a rotated QKV more.
    for t in itertools.compress(range(problem.n_tensors), problem.rebuildable):
        if problem.tensor_names[t].startswith(("ln", "norm", "fc", "gelu", "swiglu", "attention", "logits")):
            assert problem.rebuild_s[t] == problem.duration_s[problem.producer[t]]


@settings(max_examples=50, deadline=None)
@given(dimensions=DIMENSIONS, dtype=DTYPES)
def test_a_gpt_block_saves_34_bytes_per_token_and_hidden_unit_in_16_bits(
    dimensions: dict[str, int], dtype: tuple[str, int]
) -> None:
    problem = build("gpt2-xl", dimensions, dtype[0])
    tokens = dimensions["batch"] * dimensions["sequence"]
    # 16 tensors of tokens x hidden and two masks of a byte: 34 for two bytes, 66 for four; and the log-sum-exp.
    per_unit_bytes = 16 * dtype[1] + 2
    block_bytes = tokens * (per_unit_bytes * dimensions["hidden"] + 4 * dimensions["heads"])
    for block in range(dimensions["layers"]):
        assert int(problem.tensor_bytes[problem.block == block].sum()) == block_bytes


@settings(max_examples=50, deadline=None)
@given(name=st.sampled_from(TRANSFORMERS), dimensions=DIMENSIONS)
def test_only_the_input_of_a_block_has_no_rebuild_within_it(name: str, dimensions: dict[str, int]) -> None:
    # Block checkpointing keeps the input and rebuilds the rest, from tensors of the same block alone.
    problem = build(name, dimensions, "bf16")
    for block in range(dimensions["layers"]):
        members = set(np.flatnonzero(problem.block == block).tolist())
        assert [problem.tensor_names[t] for t in members if not problem.rebuildable[t]] == [f"input.{block}"]
        assert all(set(problem.rebuild_inputs_of(t).tolist()) <= members for t in members)


@settings(max_examples=50, deadline=None)
@given(name=st.sampled_from(TRANSFORMERS), dimensions=DIMENSIONS)
def test_twice_the_batch_saves_twice_the_bytes_in_twice_the_flops(name: str, dimensions: dict[str, int]) -> None:
    once = build(name, dimensions, "bf16")
    twice = build(name, {**dimensions, "batch": 2 * dimensions["batch"]}, "bf16")
    assert twice.saved_bytes == 2 * once.saved_bytes
    assert twice.metadata["forward_flops"] == 2 * once.metadata["forward_flops"]
    assert once.forward_s < twice.forward_s < 2 * once.forward_s  # launches do not double


@settings(max_examples=25, deadline=None)
@given(
    depth=st.sampled_from([11, 13, 16, 19]),
    width=st.integers(1, 4),
    image=st.integers(32, 80),
    batch=st.integers(1, 3),
    dtype=DTYPES,
)
def test_any_vgg_has_its_depth_in_weighted_layers(
    depth: int, width: int, image: int, batch: int, dtype: tuple[str, int]
) -> None:
    problem = WORKLOADS["vgg-16"].build(A100, depth=depth, width=width, image=image, batch=batch, dtype=dtype[0])
    assert problem.saved.all()
    weighted = [KINDS.index("convolution"), KINDS.index("gemm")]
    assert int(np.isin(problem.kind[: problem.n_forward], weighted).sum()) == depth
    pool5 = problem.tensor_bytes[tensor(problem, "pool5")]
    assert pool5 == dtype[1] * batch * 8 * width * (image // 32) ** 2
    # Only the batch is not rebuilt.
    assert [problem.tensor_names[t] for t in np.flatnonzero(~problem.rebuildable)] == ["batch"]
