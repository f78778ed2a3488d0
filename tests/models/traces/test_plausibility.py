"""What an imported problem is examined for: operators and rebuilds without time, and speeds that no GPU has."""

from __future__ import annotations

from dataclasses import replace

import pytest
from instances import MB, MS, PLAIN_LINK, two_layers

from slackswap.models.problem import Operator, Problem, Rebuild, Tensor
from slackswap.models.traces.plausibility import computed_too_fast, remarks_on

V100 = "Tesla V100-SXM2-32GB"  # 900 GB/s


def writing(size_bytes: int, duration_s: float, gpu: str = V100, rebuild: Rebuild | None = None) -> Problem:
    """One forward operator that writes `size_bytes` in `duration_s`, and a backward one that reads them."""
    operators = [
        Operator("f", "forward", duration_s, layer=0, kind="gemm"),
        Operator("b", "backward", 1 * MS, layer=1, kind="gemm"),
    ]
    problem = Problem.from_records("p", operators, [Tensor("a", size_bytes, 0, (1,), rebuild=rebuild)], PLAIN_LINK)
    return replace(problem, metadata={"gpu": gpu})


def test_a_plausible_problem_is_not_remarked_on() -> None:
    assert remarks_on(two_layers()) == []
    assert remarks_on(writing(100 * MB, 1 * MS)) == []  # 100 GB/s


def test_operators_that_write_in_no_time_are_counted_with_what_they_write() -> None:
    (said,) = remarks_on(writing(25 * MB, 0.0))
    assert said.startswith("1 of 2 operators take 0 s and yet write 25.0 MB")
    assert remarks_on(writing(0, 0.0)) == []  # views take no time, and write nothing


def test_rebuilds_that_cost_nothing_are_counted() -> None:
    (said,) = remarks_on(writing(25 * MB, 1 * MS, rebuild=Rebuild(0.0)))
    assert said.startswith("1 saved tensors (25.0 MB) cost 0 s to rebuild")
    assert remarks_on(writing(25 * MB, 1 * MS, rebuild=Rebuild(1 * MS))) == []
    assert remarks_on(writing(0, 1 * MS, rebuild=Rebuild(0.0))) == []


@pytest.mark.parametrize(
    ("size_bytes", "duration_s", "gpu", "is_doubtful"),
    [
        (900 * MB, 0.9 * MS, V100, True),  # 1,000 GB/s
        (900 * MB, 0.95 * MS, V100, False),  # 947 GB/s: within the tolerance of a tenth
        (60 * MB, 0.01 * MS, V100, False),  # may never leave the cache
        (900 * MB, 0.5 * MS, "NVIDIA H100 80GB HBM3", False),  # 1,800 of 3,350 GB/s
        (900 * MB, 0.01 * MS, "Toy GPU", False),
        (900 * MB, 0.01 * MS, "", False),
    ],
)
def test_no_operator_writes_faster_than_its_gpu_can(
    size_bytes: int, duration_s: float, gpu: str, is_doubtful: bool
) -> None:
    remarks = remarks_on(writing(size_bytes, duration_s, gpu))
    assert len(remarks) == is_doubtful
    if is_doubtful:
        assert (
            "1 operators write faster than the memory of the NVIDIA V100 SXM2 32GB: up to 1000 GB/s of 900"
            in remarks[0]
        )


def test_all_that_an_operator_writes_counts_together() -> None:
    problem = writing(500 * MB, 0.9 * MS)
    twice = Problem.from_records(
        "p", problem.operators(), [Tensor(name, 500 * MB, 0, (1,)) for name in ("a", "b")], PLAIN_LINK
    )
    assert remarks_on(problem) == []  # 556 GB/s
    assert len(remarks_on(replace(twice, metadata={"gpu": V100}))) == 1  # 1,111 GB/s


def test_a_problem_of_unknown_origin_is_examined_too() -> None:
    assert remarks_on(replace(two_layers(), metadata={})) == []
    assert remarks_on(replace(two_layers(), metadata={"gpu": None})) == []


@pytest.mark.parametrize(
    ("flops", "gpu", "is_doubtful"),
    [
        (150e9, V100, True),  # in 1 ms: 150 TFLOP/s of 125
        (137e9, V100, False),  # within the tolerance of a tenth
        (150e9, "NVIDIA H100 80GB HBM3", False),
        (150e9, "Toy GPU", False),
        (150e9, "", False),
    ],
)
def test_no_operator_computes_faster_than_its_gpu_can(flops: float, gpu: str, is_doubtful: bool) -> None:
    # The second takes no time, the third has no FLOPs that are known: neither has a speed.
    remarks = computed_too_fast([1 * MS, 0.0, 1 * MS], [flops, 1e15, 0.0], gpu)
    assert len(remarks) == is_doubtful
    if is_doubtful:
        assert "1 operators compute faster than the NVIDIA V100 SXM2 32GB can: up to 150 TFLOP/s of 125" in remarks[0]
