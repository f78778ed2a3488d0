"""Capturing a step on the CPU: the acceptance is what autograd itself says that it saves, to the byte."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import captured_models
import pytest

from slackswap.hardware import InputError, load_hardware
from slackswap.models.problem import KINDS, Problem
from slackswap.models.problem_file import problem_from_json, problem_to_json
from slackswap.models.traces import capture as capturing

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

HARDWARE = load_hardware("a100-pcie4")


def captured(target: str, *, n_steps: int = 2, **how: Any) -> Problem:
    return capturing.capture(target, device="cpu", hardware=HARDWARE, n_steps=n_steps, n_warmup=1, **how)


@pytest.fixture(scope="module")
def gpt() -> Problem:
    return captured("captured_models:small_gpt", n_steps=3)


@pytest.fixture(scope="module")
def resnet() -> Problem:
    return captured("captured_models:small_resnet")


def warnings_of(problem: Problem) -> list[str]:
    warnings: list[str] = problem.metadata["derivation"]["warnings"]
    return warnings


@pytest.mark.parametrize("name", ["small_gpt", "small_resnet", "scalars_and_gates"])
def test_saved_bytes_are_those_that_autograd_saves(name: str, request: pytest.FixtureRequest) -> None:
    short = name.removeprefix("small_")
    problem = request.getfixturevalue(short) if short in ("gpt", "resnet") else captured(f"captured_models:{name}")
    counted = captured_models.saved_storage_bytes(getattr(captured_models, name)())
    assert problem.saved_bytes == counted == problem.metadata["autograd_saved_bytes"]
    assert not warnings_of(problem)


def test_what_the_gpt_saves_by_hand(gpt: Problem) -> None:
    # u = 2 x 16 x 32 floats. A block: norm output 1, qkv 3, attention 1, mask 1, sum 1, norm output 1, fc_1 4, gelu 4, mask 1,
    # sum 1; two norms' mean and deviation for 32 tokens; log-sum-exp of 4 heads. The ends: embedding sum and its mask, last
    # norm, 64 log-probabilities a token, loss weight; positions and both batches as int64.
    unit = 2 * 16 * 32 * 4
    block = 18 * unit + 4 * 32 * 4 + 4 * 32 * 4
    assert gpt.saved_bytes == 2 * block + 3 * unit + 2 * 32 * 4 + 32 * 64 * 4 + 4 + 16 * 8 + 2 * 32 * 8
    # The last sum of each block is the next one's input: 14 of 15 belong to the block.
    in_block = gpt.block[gpt.saved & (gpt.block >= 0)].tolist()
    assert [in_block.count(i) for i in (0, 1)] == [14, 14]
    assert {name.split("/")[0] for name in gpt.operator_names if "/" in name} == {"blocks.0", "blocks.1"}


def test_the_batch_is_born_in_the_step_and_the_gradient_seed_behind_the_loss(gpt: Problem) -> None:
    assert gpt.operator_names[0] == "clone.0"
    assert [name.split(".")[0] for name in gpt.operator_names[gpt.n_forward - 1 : gpt.n_forward + 1]] == [
        "cross_entropy_loss",
        "ones_like",
    ]


def test_times_and_rebuild_costs_are_sums_of_medians(gpt: Problem) -> None:
    attention = next(t for t, name in enumerate(gpt.tensor_names) if "scaled_dot_product_attention" in name)
    assert gpt.rebuild_s[attention] == gpt.duration_s[gpt.producer[attention]] > 0
    # The sum before the second norm is made by the projection, the dropout and the addition.
    total = next(t for t, name in enumerate(gpt.tensor_names) if name.startswith("blocks.0/add"))
    made_by = [gpt.producer[total] - i for i in range(3)]
    assert [gpt.operator_names[i].split("/")[1].split(".")[0] for i in made_by] == ["add", "dropout", "linear"]
    assert gpt.rebuild_s[total] == pytest.approx(sum(gpt.duration_s[i] for i in made_by))
    assert "An operator's time is the median of 3 recorded steps." in gpt.metadata["heuristics"]


def test_facts_are_declared(gpt: Problem) -> None:
    facts = gpt.metadata["derivation"]["facts"]
    assert facts["times"] == {
        "exact": gpt.n_operators,
        "by_rule": 0,
        "unknown": 0,
        "how": "the median of 3 recorded steps",
    }
    assert facts["sizes"]["exact"] == facts["readers"]["exact"] == gpt.saved.sum()
    assert facts["rebuild costs"]["by_rule"] == gpt.saved.sum()
    assert gpt.metadata["gpu"] == "none (CPU trace)"
    assert gpt.metadata["batch"] == "2 x 16 int64, 2 x 16 int64"
    assert gpt.metadata["torch"].startswith("2.")
    # 2 x tokens x (12 h^2 per block + h V), and causal attention: half of 4 s h a token and block.
    assert gpt.metadata["forward_flops"] == 2 * 32 * (2 * 12 * 32**2 + 32 * 64) + 2 * 2 * 16 * 32 * 32
    assert problem_from_json(problem_to_json(gpt)).saved_bytes == gpt.saved_bytes


def test_random_operators_and_in_place_writers_are_declared(resnet: Problem) -> None:
    said = " ".join(resnet.metadata["heuristics"])
    assert "may draw random numbers" in said
    assert "changed in place" in said
    assert resnet.metadata["batch"] == "images: 4 x 3 x 32 x 32 float32, labels: 4 int64"
    convolutions = KINDS.index("convolution")
    assert (resnet.kind[: resnet.n_forward] == convolutions).sum() == 6
    assert {name.split("/")[0] for name in resnet.operator_names if "/" in name} == {"layers.0", "layers.1"}


def test_labels_that_exist_before_the_step_are_resident() -> None:
    problem = captured("captured_models:perceptron")
    assert problem.metadata["autograd_saved_bytes"] - problem.saved_bytes == 8 * 4 * 4
    assert "Autograd saves 128 bytes more" in warnings_of(problem)[0]


def test_checkpointing_is_warned_about_and_keeps_its_call_tree() -> None:
    problem = captured("captured_models:checkpointed")
    assert "checkpoints activations" in warnings_of(problem)[0]
    assert sum("inside backward ones" in said for said in problem.metadata["heuristics"]) == 1
    # Each block ran in the forward pass; what it recomputes lies in backward operators, not beside them.
    forward = problem.operator_names[: problem.n_forward]
    assert sum("linear" in name for name in forward) == 6
    assert not any("linear" in name for name in problem.operator_names[problem.n_forward :])
    # Only the three blocks' inputs, and what the loss saves, are kept; 2 KiB each at most.
    assert problem.saved_bytes < 3 * 8 * 16 * 4 + 8 * 16 * 4 + 64


def test_hooks_are_gone_after_a_capture() -> None:
    from slackswap.models.traces.capture.training_step import TrainingStep

    model, inputs, loss = captured_models.small_gpt()
    step = TrainingStep((model, inputs, loss), "cpu", "x")
    with step.numbered_blocks():
        assert len(model.blocks[0]._forward_hooks) == len(model.blocks[0]._forward_pre_hooks) == 1
        assert not model.blocks[0].qkv._forward_hooks
    assert not model.blocks[0]._forward_hooks and not model.blocks[0]._forward_pre_hooks


def test_steps_with_other_operators_do_not_count() -> None:
    # Counting run, one warm-up, then steps 3 to 7: the third and the sixth run `exp` as well.
    problem = captured("captured_models:unstable", n_steps=5)
    assert "2 of 5 recorded steps ran other operators than the rest: they do not count." in warnings_of(problem)
    assert not any("exp" in name for name in problem.operator_names)
    assert problem.metadata["derivation"]["facts"]["times"]["how"] == "the median of 3 recorded steps"


# ---- what users get wrong -------------------------------------------------------------------------------------------

HEAD = "import torch\nfrom torch import nn\n"
BODY = "model = nn.Linear(4, 2)\nx = torch.randn(3, 4)\n"


@pytest.fixture
def refused(tmp_path: Path) -> Callable[[str], str]:
    """Return the message with which a file with this function body is refused."""

    def refuse(body: str, *, head: str = HEAD + BODY) -> str:
        file = tmp_path / "train.py"
        file.write_text(f"{head}def step():\n    {body}\n")
        with pytest.raises(InputError) as caught:
            captured(f"{file}:step")
        message = str(caught.value)
        assert "\n" not in message and message.startswith(str(file))
        return message.removeprefix(str(file)).removeprefix(":step")

    return refuse


def test_what_the_function_returns_is_checked(refused: Callable[[str], str]) -> None:
    for body, said in (
        ("return model", "returns (model, inputs, loss)"),
        ("return model, x", "not tuple of 2"),
        ("return 3, x, None", "its model is int"),
        ("return model, object(), None", "among its inputs is object"),
        ("return model, {}, None", "its inputs hold no tensor"),
        ("return model, {3: x}, None", "its keys are texts"),
        ("return model, x, 3", "its loss is int"),
        ("return model, x, lambda y: 3.0", "what the loss returns is no loss but float"),
        ("return model, x, None", "the loss is a scalar, not a tensor of shape (3, 2)"),
        ("return model, x, lambda y: y.sum().detach()", "the loss requires no gradient"),
        ("return model.requires_grad_(False), x, lambda y: y.sum()", "the loss requires no gradient"),
    ):
        assert said in refused(body), body


def test_exceptions_of_the_user_are_one_line_with_the_place(refused: Callable[[str], str]) -> None:
    # The head has four lines, `def step` is the fifth.
    assert refused("raise KeyError('weights')") == ": calling it raised KeyError: 'weights' (train.py:6)"
    assert refused("import no_such_module").endswith(
        ": calling it raised ModuleNotFoundError: No module named 'no_such_module' (train.py:6)"
    )
    assert "mat1 and mat2 shapes cannot be multiplied" in refused("return model, x.T, lambda y: y.sum()")
    wrong_loss = refused("return model, x, lambda y: y.no_such_method()")
    assert wrong_loss.startswith(": the training step raised AttributeError") and wrong_loss.endswith("(train.py:6)")
    assert ": calling it raised SystemExit: 3 (train.py:6)" in refused("raise SystemExit(3)")
    in_backward = (
        "return model, x, lambda y: torch.autograd.function.once_differentiable and F.apply(y)\n"
        "class F(torch.autograd.Function):\n"
        "    @staticmethod\n"
        "    def forward(context, y): return y.sum()\n"
        "    @staticmethod\n"
        "    def backward(context, gradient): raise RuntimeError('no gradient\\nof this')"
    )
    assert refused(in_backward) == ": the training step raised RuntimeError: no gradient (train.py:11)"


def test_importing_can_go_wrong(refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused("pass", head="1 / 0\n") == ": importing it raised ZeroDivisionError: division by zero (train.py:1)"
    assert refused("pass", head="def f(:\n").startswith(": importing it raised SyntaxError: ")
    (tmp_path / "other.py").write_text("step = 3\n")
    monkeypatch.chdir(tmp_path)
    for target, said in (
        ("train", "give MODULE:FUNCTION"),
        (":step", "give MODULE:FUNCTION"),
        ("missing.py:step", "there is no such file"),
        ("no_such_package.train:step", "there is no module 'no_such_package' here"),
        ("..train:step", "is no module name"),
        ("other.py:train", "the module has no 'train'"),
        ("other:step", "'step' is no function"),
    ):
        with pytest.raises(InputError) as caught:
            captured(target)
        assert said in str(caught.value), target


def test_a_file_does_not_hide_a_module_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text(HEAD + BODY + "def step():\n    return model, x, lambda y: y.sum()\n")
    assert captured(f"{tmp_path / 'json.py'}:step").n_operators > 3
    import sys

    assert sys.modules["json"] is json


def test_no_gpu_is_said_at_once() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(InputError, match=r"--device: this PyTorch finds no GPU.*--device fake"):
        capturing.capture("x:y", device="cuda", hardware=HARDWARE)


def test_what_the_user_prints_is_no_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = "print('hello')\n    return model, x, lambda y: print('there') or y.sum()"
    (tmp_path / "chatty.py").write_text(f"{HEAD}{BODY}def step():\n    {lines}\n")
    problem = captured(f"{tmp_path / 'chatty.py'}:step")
    assert math.isfinite(problem.ideal_s)
    printed = capsys.readouterr()
    assert printed.out == "" and "hello" in printed.err and "there" in printed.err
