"""Capturing a step on fake tensors: equal to the real one in operators, storages and readers; and the merge by hand."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from slackswap.hardware import InputError, load_hardware
from slackswap.models.problem import Problem
from slackswap.models.traces import capture as capturing
from slackswap.models.traces.capture.call_log import CallLog, LoggedCall
from slackswap.models.traces.capture.fake_nodes import merge
from slackswap.models.traces.pytorch.shaped_calls import ShapedCall, ShapedTensor
from slackswap.models.workloads import WORKLOADS

HARDWARE = load_hardware("a100-pcie4")
MODELS = ("small_gpt", "small_resnet", "perceptron", "checkpointed", "scalars_and_gates")


# ---- the merge, by hand: without PyTorch ----------------------------------------------------------------------------


def node(node_id: int, name: str, parent: int, inputs: tuple[int, ...] = (), outputs: tuple[int, ...] = ()) -> Any:
    """A node of a fake execution trace: tensors by id, all of them in storage 9."""

    def values(ids: tuple[int, ...]) -> Any:
        return {"values": [[tensor, 9, 0, 1, 4, "cpu"] for tensor in ids]}

    attributes = [{"name": "tid", "value": 1}, {"name": "op_schema", "value": f"{name}(...)"}]
    return {
        "id": node_id,
        "name": name,
        "ctrl_deps": parent,
        "inputs": values(inputs),
        "outputs": values(outputs),
        "attrs": attributes,
    }


def merged(nodes: list[Any], calls: list[LoggedCall]) -> dict[int, ShapedCall]:
    log = CallLog(calls=list(calls), storage_bytes={number: 100 * number for number in range(1, 20)})
    content = json.dumps({"schema": "1.1.1", "nodes": nodes}).encode()
    return {call.node.id: call for call in merge(content, log)}


def logged(name: str, inputs: tuple[int, ...], outputs: tuple[int, ...], *, overwrites: bool = False) -> LoggedCall:
    def tensors(storages: tuple[int, ...]) -> tuple[ShapedTensor, ...]:
        return tuple(ShapedTensor(storage, (1,), 4) for storage in storages)

    return LoggedCall(name, tensors(inputs), tensors(outputs), overwrites)


def storages(call: ShapedCall) -> tuple[list[int], list[int]]:
    return [use.storage for use in call.node.inputs], [use.storage for use in call.node.outputs]


def test_kernels_get_the_logs_storages_and_calls_around_them_by_tensor_id() -> None:
    found = merged(
        [
            node(1, "[pytorch|process]", 1),
            node(2, "aten::linear", 1, (31, 32), (34,)),
            node(3, "aten::t", 2, (32,), (33,)),
            node(4, "slackswap call 0", 3),
            node(5, "aten::set_", 4, (40,), (40,)),  # on the way to a fake result
            node(6, "aten::mm", 2, (31, 33), (34,)),
            node(7, "PythonDispatchMode", 6, (31, 33)),
            node(8, "slackswap call 1", 7),
        ],
        [logged("aten::t", (2,), (2,)), logged("aten::mm", (1, 2), (3,))],
    )
    assert list(found) == [1, 2, 3, 6]
    assert storages(found[2]) == ([1, 2], [3])
    assert storages(found[3]) == ([2], [2])
    assert storages(found[6]) == ([1, 2], [3])
    assert [use.bytes for use in found[6].node.inputs] == [100, 200]
    assert found[3].node.parent == found[6].node.parent == 2
    # Only kernels have shapes: what is around them takes no time of its own.
    assert found[2].arguments == () and found[6].arguments[0].shape == (1,)


def test_ids_that_are_used_again_mislead_nobody() -> None:
    found = merged(
        [
            node(1, "[pytorch|process]", 1),
            node(2, "aten::exp", 1, (31,), (32,)),
            node(3, "slackswap call 0", 2),
            # 32 is gone: its id now names the result of a call that has no kernel of its own to tell.
            node(4, "aten::odd", 1, (31,), (32,)),
            node(5, "aten::neg", 4, (31,), (33,)),
            node(6, "slackswap call 1", 5),
            # A call of the engine, whose input was made before.
            node(7, "NegBackward0", 1, (33,)),
        ],
        [logged("aten::exp", (1,), (2,)), logged("aten::neg", (1,), (3,))],
    )
    assert storages(found[4]) == ([1], [])
    assert storages(found[7]) == ([3], [])


def test_a_kernel_inside_of_a_kernel_and_one_without_a_node_are_kept() -> None:
    found = merged(
        [
            node(1, "[pytorch|process]", 1),
            node(2, "aten::silu_", 1, (31,), (31,)),
            node(3, "aten::clone", 2, (31,), (32,)),
            node(4, "slackswap call 0", 3),
            node(5, "slackswap call 1", 2),
            node(6, "aten::detach", 1, (32,), (33,)),
            node(7, "detach", 6, (32,)),
            node(8, "slackswap call 2", 7),
            node(9, "slackswap call 3", 1),
        ],
        [
            logged("aten::clone", (1,), (2,)),
            logged("aten::silu_", (1,), (1,)),
            logged("aten::detach", (2,), (2,)),
            logged("aten::sum", (2,), (3,)),
        ],
    )
    assert {i: call.node.name for i, call in found.items() if i > 1} == {
        2: "aten::silu_",
        3: "aten::clone",
        6: "aten::detach",
        9: "aten::sum",
    }
    assert storages(found[3]) == ([1], [2])
    assert storages(found[6]) == ([2], [2])
    assert found[9].node.scope == 0


@pytest.mark.parametrize("by_engine", [True, False])
def test_the_engine_adds_in_place_where_nothing_else_holds_the_gradient(by_engine: bool) -> None:
    around = "autograd::engine::evaluate_function: MulBackward0" if by_engine else "MulBackward0"
    found = merged(
        [
            node(1, "[pytorch|process]", 1),
            node(2, around, 1),
            node(3, "aten::add", 2, (31, 32), (33,)),
            node(4, "slackswap call 0", 3),
            node(5, "aten::exp", 1, (33,), (34,)),
            node(6, "slackswap call 1", 5),
        ],
        [logged("aten::add", (1, 2), (3,), overwrites=True), logged("aten::exp", (3,), (4,))],
    )
    total = 1 if by_engine else 3
    assert found[3].node.name == ("aten::add_" if by_engine else "aten::add")
    assert storages(found[3]) == ([1, 2], [total])
    assert storages(found[5]) == ([total], [4])


# ---- against the real step ------------------------------------------------------------------------------------------


def captured(target: str, device: capturing.Device) -> Problem:
    pytest.importorskip("torch")
    return capturing.capture(target, device=device, hardware=HARDWARE, n_steps=1, n_warmup=1)


def tensors_of(problem: Problem) -> list[Any]:
    return [
        (
            tensor.name,
            tensor.bytes,
            tensor.producer,
            tensor.readers,
            tensor.block,
            tensor.rebuild and tensor.rebuild.inputs,
        )
        for tensor in problem.tensors()
    ]


@pytest.mark.torch
@pytest.mark.parametrize("name", MODELS)
def test_a_fake_step_equals_the_real_one(name: str) -> None:
    real, fake = (captured(f"captured_models:{name}", device) for device in ("cpu", "fake"))
    assert fake.operator_names == real.operator_names
    assert (fake.n_forward, fake.kind.tolist()) == (real.n_forward, real.kind.tolist())
    assert tensors_of(fake) == tensors_of(real)
    for key in ("autograd_saved_bytes", "forward_flops", "batch"):
        assert fake.metadata.get(key) == real.metadata.get(key)
    assert fake.metadata["derivation"]["warnings"] == real.metadata["derivation"]["warnings"]


@pytest.mark.torch
def test_fake_times_are_the_roofline_by_rule() -> None:
    problem = captured("captured_models:small_gpt", "fake")
    times = problem.metadata["derivation"]["facts"]["times"]
    assert times == {
        "exact": 0,
        "by_rule": problem.n_operators,
        "unknown": 0,
        "how": "the roofline of the NVIDIA A100 80GB SXM",
    }
    assert problem.metadata["gpu"] == "NVIDIA A100 80GB SXM"
    seconds = dict(zip(problem.operator_names, problem.duration_s.tolist(), strict=True))
    # Tiny calls are launches (5 us): a norm is one, dropout three (draw, scale, multiply), a view none.
    assert seconds["blocks.0/layer_norm.7"] == pytest.approx(5e-6, rel=0.01)
    assert seconds["blocks.0/dropout.20"] == pytest.approx(15e-6, rel=0.01)
    assert seconds["blocks.0/transpose.11"] == 0


@pytest.mark.torch
@pytest.mark.parametrize("name", ["small_gpt", "small_resnet"])
def test_flops_are_those_of_pytorchs_own_counter(name: str) -> None:
    torch = pytest.importorskip("torch")
    import captured_models
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    from slackswap.models.traces.capture.fake_step import fake_step
    from slackswap.models.traces.capture.training_step import TrainingStep
    from slackswap.models.traces.capture.user_step import Target
    from slackswap.models.traces.pytorch.roofline_times import flops_by_operator

    function = getattr(captured_models, name)
    # The counter does not know the CPU's fused attention: without it, attention is two products.
    with sdpa_kernel(SDPBackend.MATH):
        step, _ = fake_step(Target(function, name), HARDWARE, lambda _: None)
        with FlopCounterMode(display=False) as counter:
            TrainingStep(function(), "cpu", name).run()
    assert sum(flops_by_operator(step.calls, step.iteration, skip_masked=False)) == counter.get_total_flops() > 0
    assert torch.is_grad_enabled()


@pytest.mark.torch
def test_gpt2_xl_takes_seconds_and_no_memory_and_agrees_with_the_workload(tmp_path: Path) -> None:
    # 1.6 billion parameters and 24 GB of activations; about 5 s and 0.5 GB on one core.
    source = """
from captured_models import small_gpt
import torch

def step():
    model, inputs, loss = small_gpt(layers=48, hidden=1600, heads=25, sequence=1024, batch=8, vocabulary=50257)
    return model.to(torch.bfloat16), inputs, loss
"""
    (tmp_path / "xl.py").write_text(source)
    started_s = time.monotonic()
    problem = captured(f"{tmp_path / 'xl.py'}:step", "fake")
    assert time.monotonic() - started_s < 60
    workload = WORKLOADS["gpt2-xl"].build(HARDWARE)
    assert problem.metadata["forward_flops"] == workload.metadata["forward_flops"]
    # A CPU's dropout is three kernels, the workload's one; the other additions are the engine's sums of gradients.
    assert 1.0 < problem.forward_s / workload.forward_s < 1.06
    assert 1.0 < problem.backward_s / workload.backward_s < 1.08
    # The CPU's dropout masks have two bytes per element, the workload's one; each block has two, the embedding one.
    masks_bytes = (2 * 48 + 1) * 8 * 1024 * 1600
    assert problem.saved_bytes - masks_bytes == pytest.approx(workload.saved_bytes, rel=2e-3)
    # 48 blocks, and each has what the workload's has, but for the norms' statistics and the shape of one more tensor.
    unit = 8 * 1024 * 1600 * 2
    of_block = [
        int(problem.tensor_bytes[t]) for t in range(problem.n_tensors) if problem.block[t] == 47 and problem.saved[t]
    ]
    assert sum(of_block) == 17 * unit + 25 * 8 * 1024 * 4 + 4 * 8 * 1024 * 2
    assert any("dropout masks" in said for said in problem.metadata["heuristics"])


@pytest.mark.torch
def test_resnet_50_saves_what_recorded_ones_save() -> None:
    # Execution traces, Kineto traces and PipeDream's profile of ResNet-50 (FP32, 32 images) agree on 2730.2 MB, without the
    # batch's own copy; 4.089 billion multiply-adds per image are the literature's.
    problem = captured("captured_models:resnet_50", "fake")
    batch_bytes = 32 * 3 * 224 * 224 * 4
    assert (problem.saved_bytes - batch_bytes) / 1e6 == pytest.approx(2730.2, abs=0.1)
    assert problem.metadata["forward_flops"] == pytest.approx(4.089e9 * 2 * 32, rel=1e-3)
    # The four stages are no blocks, their 16 bottlenecks are.
    assert set(problem.block.tolist()) == {-1, *range(16)}
    assert problem.operator_names[6] == "Sequential_4.0/conv2d.6"


@pytest.mark.torch
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("model, x, lambda y: y.sum() if y.sum() > 0 else y.mean()", "capture on a real device"),
        ("model, x, lambda y: y.sum() * float(y.sum().item())", "capture on a real device"),
    ],
)
def test_what_depends_on_values_is_refused(tmp_path: Path, body: str, said: str) -> None:
    head = "import torch\nfrom torch import nn\ndef step():\n    model = nn.Linear(4, 2)\n    x = torch.randn(3, 4)\n"
    (tmp_path / "train.py").write_text(f"{head}    return {body}\n")
    with pytest.raises(InputError, match=said) as caught:
        captured(f"{tmp_path / 'train.py'}:step", "fake")
    assert "(train.py:6)" in str(caught.value)


@pytest.mark.torch
def test_a_model_with_memory_is_copied_without_and_stays_as_it_is(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    source = """
import torch
from torch import nn

layer = nn.Linear(4, 4)
model = nn.Sequential(layer, nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4))
model[3].weight = layer.weight
x = torch.randn(3, 4)

def step():
    return model, x, lambda y: y.square().sum()
"""
    (tmp_path / "with_memory.py").write_text(source)
    real, fake = (captured(f"{tmp_path / 'with_memory.py'}:step", device) for device in ("cpu", "fake"))
    assert tensors_of(fake) == tensors_of(real)
    assert fake.metadata["autograd_saved_bytes"] == real.metadata["autograd_saved_bytes"]
    model = sys.modules["captured_file_with_memory"].model
    assert type(model[1].running_mean) is torch.Tensor
    assert all(type(parameter.data) is torch.Tensor for parameter in model.parameters())


@pytest.mark.torch
def test_layers_copied_deeply_and_converted_keep_their_weights() -> None:
    pytest.importorskip("torch")
    import copy

    import torch
    from torch import nn

    from slackswap.models.traces.capture.fake_tensors import fake_tensors

    with fake_tensors():
        layer = nn.Linear(4, 3)
        layer.register_buffer("scale", torch.ones(3))
        copied = copy.deepcopy(layer).to(torch.bfloat16)
        weight = copied.weight
        assert isinstance(weight, nn.Parameter) and weight.requires_grad and weight.dtype == torch.bfloat16
        assert weight.t().untyped_storage()._cdata == weight.untyped_storage()._cdata
        assert weight.untyped_storage()._cdata != layer.weight.untyped_storage()._cdata
        assert layer.weight.dtype == torch.float32 and copied.scale.dtype == torch.bfloat16
        tied = nn.ModuleList([layer, nn.Linear(4, 3)])
        tied[1].weight = layer.weight
        assert tied.to(torch.bfloat16)[1].weight is tied[0].weight
    real = nn.Linear(2, 2).to(torch.float64)
    assert copy.deepcopy(real).weight.tolist() == real.weight.tolist()
