"""What the transformer families share: their dimensions, sizes and FLOPs."""

from __future__ import annotations

from dataclasses import dataclass

from slackswap.hardware.input_error import InputError
from slackswap.models.workloads.workload import Parameters


@dataclass(frozen=True, kw_only=True)
class TransformerParameters(Parameters):
    """Dimensions of a transformer.

    Attributes
    ----------
    layers, hidden, heads, vocabulary, sequence : int
        Blocks, hidden units, attention heads (dividing `hidden`), vocabulary entries, tokens per sample.
    ffn : int or None
        Hidden units of the feed-forward layer; None is 4 x `hidden`.
    """

    layers: int
    hidden: int
    heads: int
    vocabulary: int
    sequence: int
    ffn: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden % self.heads:
            raise InputError(f"{self.heads} heads do not divide {self.hidden} hidden units", place="heads")

    @property
    def tokens(self) -> int:
        """T = batch x sequence."""
        return self.batch * self.sequence

    @property
    def ffn_units(self) -> int:
        """Hidden units of the feed-forward layer."""
        return self.ffn or 4 * self.hidden


@dataclass(frozen=True)
class TransformerSizes:
    """Bytes and forward FLOPs of one iteration's tensors and operators, for one element size.

    In the notation of the block descriptions: u = `hidden_bytes`, m = `mask_bytes`, uf = `ffn_bytes`.
    """

    parameters: TransformerParameters
    element_bytes: int

    @property
    def hidden_bytes(self) -> int:
        """One hidden tensor, tokens x hidden."""
        return self.element_bytes * self.mask_bytes

    @property
    def mask_bytes(self) -> int:
        """One dropout mask: a byte per token and hidden unit."""
        return self.parameters.tokens * self.parameters.hidden

    @property
    def ffn_bytes(self) -> int:
        """One feed-forward tensor, tokens x ffn."""
        return self.element_bytes * self.parameters.tokens * self.parameters.ffn_units

    @property
    def attention_bytes(self) -> int:
        """Attention output, and the FP32 log-sum-exp per head and token that the fused backward pass needs."""
        return self.hidden_bytes + 4 * self.parameters.heads * self.parameters.tokens

    def linear_flops(self, n_in: int, n_out: int, *, tokens: int | None = None) -> int:
        """Forward FLOPs of a linear layer over all tokens, or over `tokens`."""
        return 2 * (tokens or self.parameters.tokens) * n_in * n_out

    def attention_flops(self, *, causal: bool) -> int:
        """Forward FLOPs of attention: two products of 2 s h T each, half of that under a causal mask."""
        return (2 if causal else 4) * self.parameters.sequence * self.mask_bytes
