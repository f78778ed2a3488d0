"""What backward nodes keep, node by node as PyTorch's derivatives.yaml says."""

from __future__ import annotations

import pytest

from slackswap.models.traces.pytorch.save_rules import SaveRule, is_view, save_rule

NOTHING = SaveRule()
INPUT = SaveRule((0,))
OUTPUT = SaveRule(output=True)


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        # Names changed over the years, and the engine puts its own before them.
        ("ConvolutionBackward0", INPUT),
        ("CudnnConvolutionBackward", INPUT),
        ("MkldnnConvolutionBackward", INPUT),
        ("autograd::engine::evaluate_function: ThnnConv2DBackward", INPUT),
        ("CudnnBatchNormBackward0", SaveRule((0,), extras=("channel statistics",))),
        ("NativeBatchNormBackward", SaveRule((0,), extras=("channel statistics",))),
        ("MiopenBatchNormBackward0", SaveRule((0,), extras=("channel statistics",))),
        ("NativeLayerNormBackward0", SaveRule((0,), extras=("row statistics",))),
        ("NativeGroupNormBackward0", SaveRule((0,), extras=("row statistics",))),
        # Activations: some read what they wrote, some what they were given.
        ("ReluBackward0", OUTPUT),
        ("ReluBackward1", OUTPUT),
        ("SigmoidBackward0", OUTPUT),
        ("TanhBackward0", OUTPUT),
        ("SoftmaxBackward0", OUTPUT),
        ("LogSoftmaxBackward0", OUTPUT),
        ("ExpBackward0", OUTPUT),
        ("GeluBackward0", INPUT),
        ("SiluBackward0", INPUT),
        ("LogBackward0", INPUT),
        ("Log1PBackward0", INPUT),
        ("Log2Backward0", INPUT),
        ("Expm1Backward0", OUTPUT),
        ("Atan2Backward0", SaveRule((-1,))),
        ("NanToNumBackward0", INPUT),
        ("VarMeanBackward0", INPUT),
        ("HardtanhBackward0", INPUT),
        ("NativeDropoutBackward0", SaveRule(extras=("mask",))),
        ("FusedDropoutBackward", SaveRule(extras=("mask",))),
        # Pooling.
        ("MaxPool2DWithIndicesBackward0", SaveRule((0,), extras=("indices",))),
        ("AdaptiveAvgPool2DBackward0", INPUT),
        ("AvgPool2DBackward0", INPUT),
        ("MeanBackward1", NOTHING),
        # Products.
        ("AddmmBackward0", SaveRule((1, 2))),
        ("BaddbmmBackward0", SaveRule((1, 2))),
        ("MmBackward0", SaveRule((-1,))),
        ("BmmBackward0", SaveRule((-1,))),
        ("MulBackward0", SaveRule((-1,), product=True)),
        ("DivBackward0", SaveRule((-1,), product=True)),
        ("PowBackward0", SaveRule((-1,))),
        ("ScaledDotProductFlashAttentionBackward0", SaveRule((0, 1, 2), output=True, extras=("logsumexp",))),
        ("ScaledDotProductEfficientAttentionBackward0", SaveRule((0, 1, 2), output=True, extras=("logsumexp",))),
        # Choices: the condition, or the index, not what is chosen from.
        ("WhereBackward0", INPUT),
        ("EmbeddingBackward0", SaveRule((1,))),
        ("IndexBackward0", SaveRule((1,))),
        ("MaskedFillBackward0", SaveRule((1,))),
        ("GatherBackward0", SaveRule((2,))),
        ("IndexSelectBackward0", SaveRule((2,))),
        ("ScatterAddBackward0", SaveRule((2,))),
        ("MaxBackward0", SaveRule(extras=("indices",))),
        ("TopkBackward0", SaveRule(extras=("indices",))),
        # Losses.
        ("NllLossBackward0", SaveRule((-1,))),
        ("MseLossBackward0", SaveRule((-1,))),
        ("BinaryCrossEntropyWithLogitsBackward0", SaveRule((-1,))),
        # What only moves or adds.
        ("AddBackward0", NOTHING),
        ("SubBackward0", NOTHING),
        ("SumBackward1", NOTHING),
        ("CatBackward0", NOTHING),
        ("ViewBackward0", NOTHING),
        ("TBackward0", NOTHING),
        ("ViewAsComplexBackward0", NOTHING),
        ("TransposeBackward0", NOTHING),
        ("ReshapeAliasBackward0", NOTHING),
        ("ToCopyBackward0", NOTHING),
        ("CopyBackwards", NOTHING),
        ("CloneBackward0", NOTHING),
        ("torch::autograd::AccumulateGrad", NOTHING),
        ("UpsampleNearest2DBackward0", NOTHING),
    ],
)
def test_a_node_keeps_what_its_derivative_reads(name: str, rule: SaveRule) -> None:
    assert save_rule(name) == rule


@pytest.mark.parametrize(
    "name",
    [
        "CompiledFunctionBackward",
        "MyOwnThingBackward",
        "All2All_Pooled_ReqBackward",
        "CheckpointFunctionBackward",
        "torch::autograd::CppNode<SplitLookupFunction_adagrad_Op>",
    ],
)
def test_what_is_compiled_or_custom_has_no_rule(name: str) -> None:
    assert save_rule(name) is None


def test_a_rule_may_keep_every_argument() -> None:
    assert [SaveRule((-1,)).keeps(i) for i in range(3)] == [True] * 3
    assert [SaveRule((1,)).keeps(i) for i in range(3)] == [False, True, False]
    assert NOTHING.nothing
    assert not any(rule.nothing for rule in (INPUT, OUTPUT, SaveRule(extras=("mask",))))


@pytest.mark.parametrize(
    "name",
    ["ViewBackward0", "ViewAsRealBackward0", "TBackward0", "ExpandBackward0", "SplitBackward0", "UnsafeViewBackward0"],
)
def test_views_return_the_storage_that_they_were_given(name: str) -> None:
    assert is_view(name)


@pytest.mark.parametrize(
    "name", ["AddBackward0", "CloneBackward0", "CatBackward0", "RepeatBackward0", "ToCopyBackward0"]
)
def test_what_writes_anew_is_no_view(name: str) -> None:
    assert not is_view(name)
