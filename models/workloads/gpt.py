"""GPT-2 style language models: embedding, dropout, causal blocks, final LayerNorm, vocabulary over all tokens, loss."""

from __future__ import annotations

from slackswap.hardware.catalog import Hardware
from slackswap.models.problem import Problem, Rebuild
from slackswap.models.workloads.declarations import TRANSFORMER_LEFT_OUT, metadata
from slackswap.models.workloads.gpt_block import GptBlock
from slackswap.models.workloads.language_head import LanguageHead
from slackswap.models.workloads.recorder import IterationRecorder
from slackswap.models.workloads.transformer import TransformerParameters, TransformerSizes
from slackswap.models.workloads.transformer_block import blocks_backward, blocks_forward


def build_gpt(name: str, parameters: TransformerParameters, hardware: Hardware) -> Problem:
    """Return one training iteration of a GPT-2 style model; refuse a dtype that the GPU lacks (InputError)."""
    dtype = parameters.dtype_on(hardware.gpu)
    recorder = IterationRecorder(hardware, dtype)
    sizes = TransformerSizes(parameters, recorder.element_bytes)
    u, m = sizes.hidden_bytes, sizes.mask_bytes
    recorder.memory_bound("embedding", "embedding", 2 * u, workspace_bytes=u)
    recorder.memory_bound("dropout", "dropout", 2 * u + m, workspace_bytes=u)
    mask = recorder.saved("mask", m, rebuild=Rebuild(recorder.memory_bound_s(m)))
    stream = recorder.saved("input.0", u, block=0)
    blocks = [GptBlock(recorder, sizes, i, causal=True) for i in range(parameters.layers)]
    saved, stream = blocks_forward(blocks, stream)
    head = LanguageHead(recorder, sizes, parameters.tokens)
    norm, logits = head.forward(stream)

    recorder.start_backward()
    head.backward(stream, norm, logits)
    blocks_backward(blocks, saved)
    recorder.memory_bound("dropout'", "dropout", 2 * u + m, reads=[mask], workspace_bytes=2 * u)
    return recorder.problem(name, metadata(parameters, dtype, left_out=TRANSFORMER_LEFT_OUT))
