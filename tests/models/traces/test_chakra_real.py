"""A real Chakra trace: the published numbers of a ResNet-50 step."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from instances import MB, MS, PLAIN_LINK
from shared_data import shared_file

from slackswap.models.problem import Problem
from slackswap.models.traces.chakra import import_chakra, looks_like_chakra
from slackswap.models.traces.trace_file import TraceFile, open_trace_files


@pytest.fixture(scope="module")
def trace() -> TraceFile:
    (file,) = open_trace_files(shared_file("traces/chakra/resnet50_b32_ddp_chakra_et_protobuf.tar.gz"))
    return file


@pytest.fixture(scope="module")
def resnet50(trace: TraceFile) -> Problem:
    # As published: with what the calls alone record.
    return import_chakra(trace, link=PLAIN_LINK, kernel_outputs=False)


def test_it_is_recognised_and_named(trace: TraceFile, resnet50: Problem) -> None:
    assert looks_like_chakra(trace.start())
    assert resnet50.name == "resnet50_b32_ddp_chakra_et_protobuf"


def test_it_has_the_published_nodes(resnet50: Problem) -> None:
    metadata = resnet50.metadata
    assert (metadata["cpu_nodes"], metadata["kernel_nodes"], metadata["calls"]) == (2448, 1216, 1232)
    assert metadata["dangling_dependencies"] == 1277
    # 1,232 calls without the three of the optimizer.
    assert (resnet50.n_forward, resnet50.n_operators) == (395, 1229)


def test_it_has_the_published_times(resnet50: Problem) -> None:
    dropped = {item["what"]: (item["count"], item["seconds"]) for item in resnet50.metadata["derivation"]["dropped"]}
    n_collective, collective_s = dropped["collective kernels (NCCL/RCCL)"]
    n_optimizer, optimizer_s = dropped["calls after the backward pass (optimizer)"]
    assert resnet50.forward_s == pytest.approx(89.781 * MS)
    # Published as 203 ms together with the optimizer.
    assert resnet50.backward_s == pytest.approx(199.1 * MS)
    assert resnet50.backward_s + optimizer_s == pytest.approx(203.047 * MS)
    assert (n_optimizer, optimizer_s) == (3, pytest.approx(3.947 * MS))
    assert (n_collective, collective_s) == (7, pytest.approx(36.715 * MS))
    assert any("157 of the 1216 kernels" in said for said in resnet50.metadata["heuristics"])


def test_it_has_the_published_saved_tensors(resnet50: Problem) -> None:
    assert resnet50.saved.sum() == 106
    assert resnet50.saved_bytes / MB == pytest.approx(2678.5, abs=0.05)
    assert resnet50.rebuildable[resnet50.saved].all()
    # The 25,557,032 parameters of ResNet-50 have their gradients in 161 storages.
    assert any(said.startswith("Weight gradients: 161 storages (102.228 MB)") for said in resnet50.metadata["left_out"])
    read_by: Counter[str] = Counter()
    for t in np.flatnonzero(resnet50.saved):
        first = resnet50.operator_names[int(resnet50.first_backward_reader[t])].split(".")[0]
        read_by[first] += int(resnet50.tensor_bytes[t])
    # The outputs of the 53 convolutions, which the norms read.
    assert round(read_by["cudnn_batch_norm_backward"] / MB, 1) == 1422.6


def test_it_lacks_the_outputs_that_only_kernels_name(trace: TraceFile, resnet50: Problem) -> None:
    # 51.4 MB of indices, 0.1 MB of the log softmax, and the statistics of the norms.
    said = "Of the resident storages, 109 (51.720 MB) were saved by a forward call that does not record them"
    assert any(warning.startswith(said) for warning in resnet50.metadata["derivation"]["warnings"])
    whole = import_chakra(trace, link=PLAIN_LINK)
    assert whole.duration_s.tolist() == resnet50.duration_s.tolist()
    # What an execution trace of the same model says: 2730.2 MB, 106 tensors of 64 KiB or more.
    assert whole.saved_bytes / MB == pytest.approx(2730.2, abs=0.05)
    assert (whole.tensor_bytes[whole.saved] >= 64 << 10).sum() == 106
    assert 32 * 64 * 56 * 56 * 8 in whole.tensor_bytes[whole.saved]
