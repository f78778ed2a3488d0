"""FLOPs that shapes of a Kineto trace tell."""

from __future__ import annotations

from pathlib import Path

import pytest
from handwritten_kineto import Call, backward, imported, warnings_of
from instances import PLAIN_LINK
from shared_data import shared_file

from slackswap.models.traces import import_traces


def step(kernel_us: float) -> list[Call]:
    """A product of [32, 64] and [64, 128], a convolution to [2, 8, 4, 4], and their backward nodes."""
    kernels = [("gemm", kernel_us)]
    product = Call("aten::mm", [[32, 64], [64, 128]], sequence=0, kernels=kernels)
    convolved = Call("aten::convolution", [[2, 3, 6, 6], [8, 3, 3, 3]], sequence=1, kernels=kernels)
    return [
        product,
        convolved,
        backward("ConvolutionBackward0", [2, 8, 4, 4], 1, kernel_us=kernel_us),
        backward("MmBackward0", [32, 128], 0, kernel_us=kernel_us),
    ]


def test_products_and_convolutions_of_the_forward_pass_count(tmp_path: Path) -> None:
    # 2 x 32 x 64 x 128 = 524,288; 2 x 2 images x 216 weights x 16 positions = 13,824.
    problem = imported(step(kernel_us=10), tmp_path)
    assert problem.metadata["forward_flops"] == 524_288 + 13_824
    assert "compute faster" not in warnings_of(problem)


def test_the_flops_of_real_networks() -> None:
    v100 = import_traces(
        [shared_file("traces/kineto/resnet50_v100_shapes_mem_noaddr.pt.trace.json.gz")], link=PLAIN_LINK
    )
    # 32 images of 4.09 GMAC; an execution trace of the same step gives 261.7 GFLOP.
    assert v100.metadata["forward_flops"] / 1e9 == pytest.approx(261.7, rel=1e-3)
    mi300x = import_traces([shared_file("traces/kineto/resnet18_mi300x_bf16_shapes_nostep.json.gz")], link=PLAIN_LINK)
    # 512 images; the recorded pair of 128 images gives 464.4 GFLOP.
    assert mi300x.metadata["forward_flops"] / 1e9 == pytest.approx(4 * 464.4, rel=1e-3)
