"""What each backward node of PyTorch's autograd keeps of its forward call: for traces that do not record it.

The rules follow ``derivatives.yaml`` of PyTorch; a node is known by its name without what changed over the years
(``CudnnConvolutionBackward`` of 2021 is ``ConvolutionBackward0``). Small statistics are sized by the channels or rows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from slackswap.models.traces.operator_kind import shown_name

Extra = Literal["indices", "mask", "channel statistics", "row statistics", "logsumexp"]
_ALL = -1


@dataclass(frozen=True, slots=True)
class SaveRule:
    """What a backward node reads again.

    Attributes
    ----------
    inputs : positions of the forward call's tensor arguments; (-1,) for all of them
    output : whether it reads the forward call's output
    extras : what the forward call writes for it beside the output
    product : whether an argument is read for the gradient of another tensor only: `x * 2` keeps nothing
    """

    inputs: tuple[int, ...] = ()
    output: bool = False
    extras: tuple[Extra, ...] = ()
    product: bool = False

    def keeps(self, position: int) -> bool:
        """Whether the argument at this position is kept."""
        return _ALL in self.inputs or position in self.inputs

    @property
    def nothing(self) -> bool:
        """Whether nothing is kept."""
        return not (self.inputs or self.output or self.extras)


_NOTHING = SaveRule()
_FIRST = SaveRule((0,))
_EVERY = SaveRule((_ALL,))
_OUTPUT = SaveRule(output=True)

# The first pattern that fits a whole name decides; names come without `Backward` and digits, in lower case.
_RULES: tuple[tuple[str, SaveRule], ...] = (
    (r"(?!convert).*conv.*", _FIRST),
    (r".*batchnorm.*|.*instancenorm.*", SaveRule((0,), extras=("channel statistics",))),
    (r".*layernorm.*|.*groupnorm.*|.*rmsnorm.*", SaveRule((0,), extras=("row statistics",))),
    (r"(threshold|relu|sigmoid|tanh|exp|expm|sqrt|rsqrt|reciprocal|safesoftmax|softmax|logsoftmax)", _OUTPUT),
    (
        r"(prelukernel|hardtanh|hardswish|hardsigmoid|leakyrelu|elu|gelu|silu|mish|softplus|logsigmoid|celu|selu)",
        _FIRST,
    ),
    (r"(fused|native)?dropout", SaveRule(extras=("mask",))),
    (r"maxpool.*indices|fractionalmaxpool.*|adaptivemaxpool.*", SaveRule((0,), extras=("indices",))),
    (r"avgpool.*|adaptiveavgpool.*|maxpool.*", _FIRST),
    (r"scaleddotproduct.*(flash|efficient|cudnn|fused).*", SaveRule((0, 1, 2), output=True, extras=("logsumexp",))),
    (r"scaleddotproduct.*", SaveRule((0, 1, 2), output=True)),
    (r"addmm|addbmm|baddbmm|addmv", SaveRule((1, 2))),
    (r"linear|mm|bmm|matmul|mv|dot|einsum|bilinear", _EVERY),
    (r"mul|div", SaveRule((_ALL,), product=True)),
    (r"pow|atan|fmod|cdist|lerp|addcmul|addcdiv|maximum|minimum|glu|prod|cumprod", _EVERY),
    (r"where|logp?|sin|cos|abs|clamp.*|norm|(std|var)(mean)?|erf|nantonum|square|linalg.*|logsumexp", _FIRST),
    (r"embedding.*|index|take|indexput.*|masked(fill|select|scatter)", SaveRule((1,))),
    (r"indexselect|gather|takealongdim|scatter.*|indexadd|indexcopy|indexfill", SaveRule((2,))),
    (r"max|min|median|mode|topk|sort|kthvalue", SaveRule(extras=("indices",))),
    (r"(nll|crossentropy|mse|smoothl|huber|kldiv|binarycrossentropy|l|bce).*loss.*|binarycrossentropy.*", _EVERY),
    (
        r"add|sub|rsub|neg|sum|mean|view|unsafeview|reshapealias|alias|t|transpose|permute|expand|select|slice|split.*|chunk"
        r"|unbind|cat|stack|squeeze|unsqueeze|clone|copys?|tocopy|detach|contiguous|asstrided|flatten|unflatten|unfold|repeat"
        r"|pad|constantpadnd|upsample.*|roll|flip|cumsum|zeros|ones|fill|trace|diagonal|tril|triu|narrow|identity"
        r"|accumulategrad|movedim|swapaxes|realas.*|pixelshuffle|viewas(real|complex)|floor|ceil|round|trunc|sign|errors?",
        _NOTHING,
    ),
)
_COMPILED = tuple((re.compile(pattern), rule) for pattern, rule in _RULES)
# Backward nodes whose forward call returns a view of its first argument.
_VIEWS = re.compile(
    r"(view|unsafeview|reshapealias|alias|t|transpose|permute|expand|select|slice|split.*|chunk|unbind|squeeze|unsqueeze|detach"
    r"|asstrided|flatten|unflatten|unfold|narrow|diagonal|movedim|swapaxes|identity|viewas(real|complex))"
)


def save_rule(backward_name: str) -> SaveRule | None:
    """Return the rule for a backward node; None where its name is not known."""
    name = _plain(backward_name)
    return next((rule for pattern, rule in _COMPILED if pattern.fullmatch(name)), None)


def is_view(backward_name: str) -> bool:
    """Whether the forward call of a backward node returns a view of its first argument."""
    return bool(_VIEWS.fullmatch(_plain(backward_name)))


def _plain(backward_name: str) -> str:
    """Take off the suffix, digits and underscores: `MaxPool2DWithIndicesBackward0` becomes `maxpooldwithindices`."""
    return re.sub(r"[\d_]", "", re.sub(r"Backward.*$", "", shown_name(backward_name))).lower()
