"""Real traces: the published numbers of a pair, and the files that hold too little."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from handwritten_trace import (
    leaves_only,
    refusal,
    saved_bytes,
)
from instances import MB, MS, PLAIN_LINK
from shared_data import shared_file

from slackswap.models.problem import Problem
from slackswap.models.traces.pytorch.execution_trace import read_execution_trace
from slackswap.models.traces.pytorch.pair import import_pytorch
from slackswap.models.traces.trace_file import open_trace_files


@pytest.fixture(scope="module")
def resnet18() -> Problem:
    pair = ["resnet18_2080ti_kineto.json.gz", "resnet18_2080ti_et_schema1.0.1.json.gz"]
    return import_pytorch([shared_file(f"traces/et/{name}") for name in pair], link=PLAIN_LINK)


def megabytes_by(problem: Problem, operator_of: Callable[[int], int]) -> dict[str, float]:
    """Saved megabytes by the class of an operator, without the few bytes of the loss."""
    sums: Counter[str] = Counter()
    for t in np.flatnonzero(problem.saved):
        sums[problem.operator_names[operator_of(int(t))].split(".")[0]] += int(problem.tensor_bytes[t])
    return {name: round(size / MB, 1) for name, size in sums.items() if size > 1 * MB}


def test_resnet18_has_the_published_operators_and_times(resnet18: Problem) -> None:
    assert (resnet18.n_forward, resnet18.n_operators - resnet18.n_forward) == (94, 134)
    # 42.652 ms of kernels and 22.971 ms of host copies; 92.351 ms of kernels.
    assert resnet18.forward_s == pytest.approx(65.623 * MS)
    assert resnet18.backward_s == pytest.approx(92.351 * MS)
    assert resnet18.metadata["kineto_iteration"] == "index 10 of 30"
    assert (resnet18.metadata["matched_nodes"], resnet18.metadata["nodes"]) == (1307, 1310)
    assert resnet18.metadata["gpu"] == "NVIDIA GeForce RTX 2080 Ti"


def test_resnet18_has_the_published_saved_tensors(resnet18: Problem) -> None:
    assert resnet18.saved.sum() == 86
    assert resnet18.saved_bytes / MB == pytest.approx(2839.6, abs=0.05)
    assert (resnet18.tensor_bytes[resnet18.saved] >= 64 << 10).sum() == 42
    made_by = megabytes_by(resnet18, lambda t: int(resnet18.producer[t]))
    assert made_by == {"conv2d": 1271.7, "batch_norm": 1181.8, "max_pool2d": 308.3, "to": 77.1}
    read_by = megabytes_by(resnet18, lambda t: int(resnet18.first_backward_reader[t]))
    assert read_by == {
        "CudnnBatchNormBackward0": 1271.7,
        "ConvolutionBackward0": 937.7,
        "MaxPool2DWithIndicesBackward0": 616.6,
        "ReluBackward0": 12.8,
    }


def test_resnet18_rebuild_costs_are_known(resnet18: Problem) -> None:
    assert resnet18.rebuildable[resnet18.saved].all()
    large = resnet18.saved & (resnet18.tensor_bytes >= 64 << 10)
    cost_ps_per_byte = resnet18.rebuild_s[large] / resnet18.tensor_bytes[large] * 1e12
    producer_ps_per_byte = resnet18.duration_s[resnet18.producer[large]] / resnet18.tensor_bytes[large] * 1e12
    # The cheapest producer is a batch norm, 59 us for 12.8 MB; with its add_ and relu_ it costs 106 us, and then a
    # convolution (243 us for 51.4 MB) is the cheapest to rebuild.
    assert producer_ps_per_byte.min() == pytest.approx(4.59, abs=0.01)
    assert cost_ps_per_byte.min() == pytest.approx(4.73, abs=0.01)


@pytest.mark.parametrize(
    ("name", "saved_mb", "n_large", "leaves_mb"),
    [
        # 2730.2 MB is what four other kinds of trace of ResNet-50 say too.
        ("resnet50_ddp_et_only_schema1.1.0.json.gz", 2730.2, 106, 1573.9),
        ("hf_gpt2_large_et_only_schema1.1.0.json.tar.gz", 4497.2, 580, None),
    ],
)
def test_storages_of_traces_without_times(name: str, saved_mb: float, n_large: int, leaves_mb: float | None) -> None:
    path = shared_file(f"traces/et/{name}")
    (file,) = open_trace_files(path)
    trace = read_execution_trace(file)
    sizes = [size for _, size in saved_bytes(trace)]
    assert sum(sizes) / MB == pytest.approx(saved_mb, abs=0.05)
    assert sum(size >= 64 << 10 for size in sizes) == n_large
    if leaves_mb is not None:
        naive = [size for _, size in saved_bytes(leaves_only(trace))]
        assert sum(naive) / MB == pytest.approx(leaves_mb, abs=0.05)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("kineto/NEG_alexnet_a100_forward_only.json.gz", "has no backward pass"),
        ("et/NEG_pt2_triton_forward_only_et_schema1.1.1.json.tar.gz", "has no backward pass"),
        ("kineto/aot_ddp_v100_mem_addr_noshapes.pt.trace.json.gz", "A = 1333.8 MB in 319 tensors by its memory events"),
        ("kineto/resnet50_v100_float_ts_fwdbwd_noshapes.pt.trace.json.gz", "is a Kineto trace without shapes"),
        ("kineto/recmodel_v100_rank1of2.json.gz", "for 60% of its backward pass: one node of compiled or custom code"),
        ("et/hf_gpt2_large_et_only_schema1.1.0.json.tar.gz", "has no times; it holds 4214 operators and A = 4497.2 MB"),
        ("g10/bert_base_b256_a100.cudnn256.txt", "holds kernel times of G10 alone"),
        ("nsys/NEG_h100_2gpu_forward_only.sqlite.gz", "SQLite"),
        ("snapshot/medium24L_ctx128_training.pickle.gz", "is a memory snapshot: it holds no operator times"),
        ("memory_timeline/resnet50_b32.memory_timeline.raw.json.gz", "memory timeline"),
    ],
)
def test_real_files_that_hold_too_little_are_refused(name: str, reason: str) -> None:
    assert reason in refusal([shared_file(f"traces/{name}")])


def test_two_resnets_of_different_processes_are_no_pair() -> None:
    names = [
        "et/resnet50_ddp_et_only_schema1.1.0.json.gz",
        "kineto/resnet50_v100_float_ts_fwdbwd_noshapes.pt.trace.json.gz",
    ]
    assert "was not recorded in the execution trace's process" in refusal(
        [shared_file(f"traces/{name}") for name in names]
    )
