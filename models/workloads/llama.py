"""Llama style language models: RMSNorm, rotary embedding, SwiGLU, no dropout.

Sizes: u a hidden tensor, uf a feed-forward tensor. A block saves 8 u + 3 uf and the log-sum-exp.
"""

from __future__ import annotations

from dataclasses import dataclass

from slackswap.hardware.catalog import Hardware
from slackswap.models.problem import Problem, Rebuild
from slackswap.models.workloads.declarations import TRANSFORMER_LEFT_OUT, metadata
from slackswap.models.workloads.language_head import LanguageHead
from slackswap.models.workloads.recorder import IterationRecorder
from slackswap.models.workloads.transformer import TransformerParameters, TransformerSizes
from slackswap.models.workloads.transformer_block import TransformerBlock, blocks_backward, blocks_forward

HEURISTICS = (
    "RoPE rotates Q and K in place: their tensor counts as written by the QKV GEMM; its rebuild includes the rotation",
    "gate and up are one GEMM that writes both",
)


@dataclass(frozen=True)
class BlockTensors:
    """Indices of the tensors that one block saves; `block_input` was saved by whatever stands before the block."""

    block_input: int
    norm1: int
    qkv: int
    attention: int
    mid: int
    norm2: int
    gate: int
    up: int
    swiglu: int


def build_llama(name: str, parameters: TransformerParameters, hardware: Hardware) -> Problem:
    """Return one training iteration of a Llama style model; refuse a dtype that the GPU lacks (InputError)."""
    dtype = parameters.dtype_on(hardware.gpu)
    recorder = IterationRecorder(hardware, dtype)
    sizes = TransformerSizes(parameters, recorder.element_bytes)
    u = sizes.hidden_bytes
    recorder.memory_bound("embedding", "embedding", 2 * u)
    stream = recorder.saved("input.0", u, block=0)
    blocks = [LlamaBlock(recorder, sizes, i) for i in range(parameters.layers)]
    saved, stream = blocks_forward(blocks, stream)
    head = LanguageHead(recorder, sizes, parameters.tokens)
    norm, logits = head.forward(stream)

    recorder.start_backward()
    head.backward(stream, norm, logits)
    blocks_backward(blocks, saved)
    return recorder.problem(name, metadata(parameters, dtype, heuristics=HEURISTICS, left_out=TRANSFORMER_LEFT_OUT))


@dataclass(frozen=True)
class LlamaBlock(TransformerBlock[BlockTensors]):
    """One block of the Llama family."""

    def forward(self, block_input: int, *, output_saved: bool = True) -> BlockTensors:
        """Record the forward pass."""
        norm1, qkv, attention = self._attention_forward(block_input)
        mid = self._first_residual(block_input, attention)
        norm2, gate, up, swiglu = self._feed_forward(mid, output_saved)
        return BlockTensors(block_input, norm1, qkv, attention, mid, norm2, gate, up, swiglu)

    def _attention_forward(self, block_input: int) -> tuple[int, int, int]:
        recorder, sizes = self.recorder, self.sizes
        u, h = sizes.hidden_bytes, sizes.parameters.hidden
        norm_s = recorder.memory_bound(self._name("norm1"), "norm", 2 * u, reads=[block_input])
        norm1 = self._saved("norm1", u, norm_s, block_input)
        # The rotation follows as a kernel of its own; only then is the tensor what the backward pass reads.
        rope_s = recorder.memory_bound_s(4 * u)
        qkv_s = recorder.gemm(self._name("qkv"), sizes.linear_flops(h, 3 * h), reads=[norm1])
        qkv = self._saved("qkv", 3 * u, qkv_s + rope_s, norm1)
        recorder.memory_bound(self._name("rope"), "elementwise", 4 * u, reads=[qkv])
        attention_s = recorder.attention(self._name("attention"), sizes.attention_flops(causal=True), reads=[qkv])
        return norm1, qkv, self._saved("attention", sizes.attention_bytes, attention_s, qkv)

    def _first_residual(self, block_input: int, attention: int) -> int:
        recorder, u, h = self.recorder, self.sizes.hidden_bytes, self.sizes.parameters.hidden
        projection_s = recorder.gemm(
            self._name("projection"), self.sizes.linear_flops(h, h), reads=[attention], workspace_bytes=u
        )
        add_s = recorder.memory_bound(self._name("add1"), "elementwise", 3 * u, reads=[block_input], workspace_bytes=u)
        rebuild = Rebuild(projection_s + add_s, (block_input, attention), u)
        return recorder.saved(self._name("mid"), u, block=self.index, rebuild=rebuild)

    def _feed_forward(self, mid: int, output_saved: bool) -> tuple[int, int, int, int]:
        recorder, sizes = self.recorder, self.sizes
        u, uf, h, f = sizes.hidden_bytes, sizes.ffn_bytes, sizes.parameters.hidden, sizes.parameters.ffn_units
        norm_s = recorder.memory_bound(self._name("norm2"), "norm", 2 * u, reads=[mid])
        norm2 = self._saved("norm2", u, norm_s, mid)
        recorder.gemm(self._name("gate_up"), sizes.linear_flops(h, 2 * f), reads=[norm2])
        half_s = recorder.gemm_s(sizes.linear_flops(h, f))
        gate = self._saved("gate", uf, half_s, norm2)
        up = self._saved("up", uf, half_s, norm2)
        swiglu_s = recorder.memory_bound(self._name("swiglu"), "elementwise", 3 * uf, reads=[gate, up])
        swiglu = self._saved("swiglu", uf, swiglu_s, gate, up)
        recorder.gemm(self._name("down"), sizes.linear_flops(f, h), reads=[swiglu], workspace_bytes=u)
        workspace_bytes = u if output_saved else 2 * u
        recorder.memory_bound(self._name("add2"), "elementwise", 3 * u, reads=[mid], workspace_bytes=workspace_bytes)
        return norm2, gate, up, swiglu

    def backward(self, saved: BlockTensors) -> None:
        """Record the backward pass, last operator first.

        Workspace is the gradients that are alive: the residual stream's u throughout, which without dropout is the
        branch's too until the branch's first product, and what stands beside it.
        """
        recorder, sizes, name, flops = self.recorder, self.sizes, self._gradient, self.sizes.linear_flops
        u, uf, h, f = sizes.hidden_bytes, sizes.ffn_bytes, sizes.parameters.hidden, sizes.parameters.ffn_units
        recorder.gemm_backward(name("down"), flops(f, h), reads=[saved.swiglu], workspace_bytes=u + uf)
        recorder.memory_bound(
            name("swiglu"), "elementwise", 5 * uf, reads=[saved.gate, saved.up], workspace_bytes=u + 3 * uf
        )
        recorder.gemm_backward(name("gate_up"), flops(h, 2 * f), reads=[saved.norm2], workspace_bytes=2 * u + 2 * uf)
        recorder.memory_bound(name("norm2"), "norm", 4 * u, reads=[saved.mid], workspace_bytes=2 * u)
        recorder.gemm_backward(name("projection"), flops(h, h), reads=[saved.attention], workspace_bytes=2 * u)
        recorder.attention_backward(
            name("attention"),
            sizes.attention_flops(causal=True),
            reads=[saved.qkv, saved.attention],
            workspace_bytes=5 * u,
        )
        recorder.memory_bound(name("rope"), "elementwise", 4 * u, workspace_bytes=4 * u)
        recorder.gemm_backward(name("qkv"), flops(h, 3 * h), reads=[saved.norm1], workspace_bytes=5 * u)
        recorder.memory_bound(name("norm1"), "norm", 4 * u, reads=[saved.block_input], workspace_bytes=2 * u)
