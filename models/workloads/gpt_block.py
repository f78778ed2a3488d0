"""The GPT-style transformer block of BERT-Large and GPT-2 XL: LayerNorm first, GeLU, dropout in both branches.

Sizes per block: u a hidden tensor, uf a feed-forward tensor, m a dropout mask. With FlashAttention and 16 bits a block
saves 16 u + 2 m, 34 bytes per token and hidden unit (paper, section 2.1), and the log-sum-exp.
"""

from __future__ import annotations

from dataclasses import dataclass

from slackswap.models.problem import Rebuild
from slackswap.models.workloads.transformer_block import TransformerBlock


@dataclass(frozen=True)
class BlockTensors:
    """Indices of the tensors that one block saves; `block_input` was saved by whatever stands before the block."""

    block_input: int
    ln1: int
    qkv: int
    attention: int
    mask1: int
    mid: int
    ln2: int
    fc1: int
    gelu: int
    mask2: int


@dataclass(frozen=True)
class GptBlock(TransformerBlock[BlockTensors]):
    """One block of the GPT-2 and BERT families.

    A dropout and the residual addition after it are separate kernels. Forward outputs that are not saved (of the
    projection, of FC2, of the dropouts) are workspace of the operator that writes and of the one that reads them.
    """

    causal: bool

    def forward(self, block_input: int, *, output_saved: bool = True) -> BlockTensors:
        """Record the forward pass; the block's output is for the caller to save, as what follows it names it.

        `output_saved` is False where nothing saves it: then it is workspace of the last addition.
        """
        ln1, qkv, attention = self._attention_forward(block_input)
        mask1, mid = self._first_residual(block_input, attention)
        ln2, fc1, gelu, mask2 = self._feed_forward(mid, output_saved)
        return BlockTensors(block_input, ln1, qkv, attention, mask1, mid, ln2, fc1, gelu, mask2)

    def _attention_forward(self, block_input: int) -> tuple[int, int, int]:
        recorder, u, h = self.recorder, self.sizes.hidden_bytes, self.sizes.parameters.hidden
        norm_s = recorder.memory_bound(self._name("ln1"), "norm", 2 * u, reads=[block_input])
        ln1 = self._saved("ln1", u, norm_s, block_input)
        qkv_s = recorder.gemm(self._name("qkv"), self.sizes.linear_flops(h, 3 * h), reads=[ln1])
        qkv = self._saved("qkv", 3 * u, qkv_s, ln1)
        attention_s = recorder.attention(
            self._name("attention"), self.sizes.attention_flops(causal=self.causal), reads=[qkv]
        )
        return ln1, qkv, self._saved("attention", self.sizes.attention_bytes, attention_s, qkv)

    def _first_residual(self, block_input: int, attention: int) -> tuple[int, int]:
        recorder, u, m, h = self.recorder, self.sizes.hidden_bytes, self.sizes.mask_bytes, self.sizes.parameters.hidden
        projection_s = recorder.gemm(
            self._name("projection"), self.sizes.linear_flops(h, h), reads=[attention], workspace_bytes=u
        )
        dropout_s = recorder.memory_bound(self._name("dropout1"), "dropout", 2 * u + m, workspace_bytes=2 * u)
        mask1 = self._saved("mask1", m, recorder.memory_bound_s(m))
        add_s = recorder.memory_bound(self._name("add1"), "elementwise", 3 * u, reads=[block_input], workspace_bytes=u)
        # Three operators rebuild it: their unsaved results, of the projection and of the dropout, are its workspace.
        rebuild = Rebuild(projection_s + dropout_s + add_s, (block_input, attention, mask1), 2 * u)
        return mask1, recorder.saved(self._name("mid"), u, block=self.index, rebuild=rebuild)

    def _feed_forward(self, mid: int, output_saved: bool) -> tuple[int, int, int, int]:
        recorder, sizes = self.recorder, self.sizes
        u, m, uf = sizes.hidden_bytes, sizes.mask_bytes, sizes.ffn_bytes
        h, f = sizes.parameters.hidden, sizes.parameters.ffn_units
        norm_s = recorder.memory_bound(self._name("ln2"), "norm", 2 * u, reads=[mid])
        ln2 = self._saved("ln2", u, norm_s, mid)
        fc1_s = recorder.gemm(self._name("fc1"), sizes.linear_flops(h, f), reads=[ln2])
        fc1 = self._saved("fc1", uf, fc1_s, ln2)
        gelu_s = recorder.memory_bound(self._name("gelu"), "elementwise", 2 * uf, reads=[fc1])
        gelu = self._saved("gelu", uf, gelu_s, fc1)
        recorder.gemm(self._name("fc2"), sizes.linear_flops(f, h), reads=[gelu], workspace_bytes=u)
        recorder.memory_bound(self._name("dropout2"), "dropout", 2 * u + m, workspace_bytes=2 * u)
        mask2 = self._saved("mask2", m, recorder.memory_bound_s(m))
        workspace_bytes = u if output_saved else 2 * u
        recorder.memory_bound(self._name("add2"), "elementwise", 3 * u, reads=[mid], workspace_bytes=workspace_bytes)
        return ln2, fc1, gelu, mask2

    def backward(self, saved: BlockTensors) -> None:
        """Record the backward pass, last operator first.

        Workspace is the gradients that are alive: the residual stream's u and the branch's u throughout, and what
        stands beside them; in attention the branch's u is the output's gradient, beside 3 u of Q, K, V. A LayerNorm's
        backward pass adds the residual gradient: it reads the input and both gradients and writes one, 4 u.
        """
        recorder, sizes = self.recorder, self.sizes
        u, m, uf = sizes.hidden_bytes, sizes.mask_bytes, sizes.ffn_bytes
        h, f = sizes.parameters.hidden, sizes.parameters.ffn_units
        name, flops = self._gradient, sizes.linear_flops
        recorder.memory_bound(name("dropout2"), "dropout", 2 * u + m, reads=[saved.mask2], workspace_bytes=2 * u)
        recorder.gemm_backward(name("fc2"), flops(f, h), reads=[saved.gelu], workspace_bytes=2 * u + uf)
        recorder.memory_bound(name("gelu"), "elementwise", 3 * uf, reads=[saved.fc1], workspace_bytes=2 * u + 2 * uf)
        recorder.gemm_backward(name("fc1"), flops(h, f), reads=[saved.ln2], workspace_bytes=2 * u + uf)
        recorder.memory_bound(name("ln2"), "norm", 4 * u, reads=[saved.mid], workspace_bytes=2 * u)
        recorder.memory_bound(name("dropout1"), "dropout", 2 * u + m, reads=[saved.mask1], workspace_bytes=2 * u)
        recorder.gemm_backward(name("projection"), flops(h, h), reads=[saved.attention], workspace_bytes=3 * u)
        recorder.attention_backward(
            name("attention"),
            sizes.attention_flops(causal=self.causal),
            reads=[saved.qkv, saved.attention],
            workspace_bytes=5 * u,
        )
        recorder.gemm_backward(name("qkv"), flops(h, 3 * h), reads=[saved.ln1], workspace_bytes=5 * u)
        recorder.memory_bound(name("ln1"), "norm", 4 * u, reads=[saved.block_input], workspace_bytes=2 * u)
