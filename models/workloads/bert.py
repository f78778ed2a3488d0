"""BERT style masked language models: bidirectional blocks and a head on the masked positions."""

from __future__ import annotations

from dataclasses import dataclass

from slackswap.hardware.catalog import Hardware
from slackswap.hardware.input_error import InputError
from slackswap.models.problem import Problem, Rebuild
from slackswap.models.workloads.declarations import TRANSFORMER_LEFT_OUT, metadata
from slackswap.models.workloads.gpt_block import GptBlock
from slackswap.models.workloads.language_head import LanguageHead
from slackswap.models.workloads.recorder import IterationRecorder
from slackswap.models.workloads.transformer import TransformerParameters, TransformerSizes
from slackswap.models.workloads.transformer_block import blocks_backward, blocks_forward

HEURISTICS = ("LayerNorm stands before each branch, as in the GPT-2 block, and once before the head",)
LEFT_OUT = (*TRANSFORMER_LEFT_OUT, "the head's transform layer and next-sentence prediction")


@dataclass(frozen=True, kw_only=True)
class BertParameters(TransformerParameters):
    """A transformer whose head reads `predictions` of the `sequence` positions of each sample."""

    predictions: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.predictions > self.sequence:
            raise InputError(
                f"{self.predictions} predictions need more than the {self.sequence} positions of a sequence",
                place="predictions",
            )


def build_bert(name: str, parameters: BertParameters, hardware: Hardware) -> Problem:
    """Return one training iteration of a BERT style model; refuse a dtype that the GPU lacks (InputError)."""
    dtype = parameters.dtype_on(hardware.gpu)
    recorder = IterationRecorder(hardware, dtype)
    sizes = TransformerSizes(parameters, recorder.element_bytes)
    u, m = sizes.hidden_bytes, sizes.mask_bytes
    predicted = parameters.batch * parameters.predictions
    predicted_bytes = recorder.element_bytes * predicted * parameters.hidden
    embedding, mask, stream = _embedding_forward(recorder, u, m)
    blocks = [GptBlock(recorder, sizes, i, causal=False) for i in range(parameters.layers)]
    saved, _ = blocks_forward(blocks, stream, output_saved=False)
    # Only the masked positions of the last block's output are saved; all of it is there while they are gathered.
    recorder.memory_bound("gather", "other", 2 * predicted_bytes, workspace_bytes=u)
    gathered = recorder.saved("gathered", predicted_bytes)
    head = LanguageHead(recorder, sizes, predicted)
    norm, logits = head.forward(gathered)

    recorder.start_backward()
    head.backward(gathered, norm, logits)
    # Scattering writes the gradient of every position, zeros included.
    recorder.memory_bound("gather'", "other", predicted_bytes + u, workspace_bytes=predicted_bytes + u)
    blocks_backward(blocks, saved)
    recorder.memory_bound("dropout'", "dropout", 2 * u + m, reads=[mask], workspace_bytes=2 * u)
    recorder.memory_bound("embedding_norm'", "norm", 3 * u, reads=[embedding], workspace_bytes=2 * u)
    return recorder.problem(name, metadata(parameters, dtype, heuristics=HEURISTICS, left_out=LEFT_OUT))


def _embedding_forward(recorder: IterationRecorder, u: int, m: int) -> tuple[int, int, int]:
    """Record embedding, its LayerNorm and dropout; return embedding, mask and the first block's input."""
    lookup_s = recorder.memory_bound("embedding", "embedding", 2 * u)
    embedding = recorder.saved("embedding", u, rebuild=Rebuild(lookup_s))
    recorder.memory_bound("embedding_norm", "norm", 2 * u, reads=[embedding], workspace_bytes=u)
    recorder.memory_bound("dropout", "dropout", 2 * u + m, workspace_bytes=u)
    mask = recorder.saved("mask", m, rebuild=Rebuild(recorder.memory_bound_s(m)))
    return embedding, mask, recorder.saved("input.0", u, block=0)
