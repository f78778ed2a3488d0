"""The end of a language model, from the last hidden state to the loss and back: final norm, vocabulary GEMM, loss."""

from __future__ import annotations

from dataclasses import dataclass

from slackswap.models.problem import Rebuild
from slackswap.models.workloads.recorder import IterationRecorder
from slackswap.models.workloads.transformer import TransformerSizes


@dataclass(frozen=True)
class LanguageHead:
    """Final norm, vocabulary GEMM and loss over `tokens`; `forward` and then `backward` record their operators."""

    recorder: IterationRecorder
    sizes: TransformerSizes
    tokens: int

    def forward(self, norm_input: int) -> tuple[int, int]:
        """Record the forward pass; return the indices of the norm's output and of the logits."""
        recorder = self.recorder
        norm_s = recorder.memory_bound("final_norm", "norm", 2 * self._hidden_bytes, reads=[norm_input])
        norm = recorder.saved("final_norm", self._hidden_bytes, rebuild=Rebuild(norm_s, (norm_input,)))
        head_s = recorder.gemm("head", self._flops, reads=[norm])
        logits = recorder.saved("logits", self._logits_bytes, rebuild=Rebuild(head_s, (norm,)))
        recorder.memory_bound("loss", "loss", self._logits_bytes, reads=[logits])
        return norm, logits

    def backward(self, norm_input: int, norm: int, logits: int) -> None:
        """Record the backward pass; the logits' gradient stands beside the logits, which makes the peak P."""
        recorder, u, gradient_bytes = self.recorder, self._hidden_bytes, self._logits_bytes
        recorder.memory_bound("loss'", "loss", 2 * gradient_bytes, reads=[logits], workspace_bytes=gradient_bytes)
        recorder.gemm_backward("head'", self._flops, reads=[norm], workspace_bytes=gradient_bytes + u)
        # No residual branch joins here: 3 u, where a block's norm moves 4 u.
        recorder.memory_bound("final_norm'", "norm", 3 * u, reads=[norm_input], workspace_bytes=2 * u)

    @property
    def _hidden_bytes(self) -> int:
        return self.recorder.element_bytes * self.tokens * self.sizes.parameters.hidden

    @property
    def _logits_bytes(self) -> int:
        return self.recorder.element_bytes * self.tokens * self.sizes.parameters.vocabulary

    @property
    def _flops(self) -> int:
        parameters = self.sizes.parameters
        return self.sizes.linear_flops(parameters.hidden, parameters.vocabulary, tokens=self.tokens)
