"""What the blocks of the transformer families share: names, saved tensors, and the order in which they run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from slackswap.models.problem import Rebuild
from slackswap.models.workloads.recorder import IterationRecorder
from slackswap.models.workloads.transformer import TransformerSizes

Saved = TypeVar("Saved")


@dataclass(frozen=True)
class TransformerBlock(ABC, Generic[Saved]):
    """One block: `forward` and `backward` record its operators; the block's output is for the caller to save."""

    recorder: IterationRecorder
    sizes: TransformerSizes
    index: int

    @abstractmethod
    def forward(self, block_input: int, *, output_saved: bool = True) -> Saved:
        """Record the forward pass; return the saved tensors.

        `output_saved` is False where nothing saves the block's output: then it is workspace of the last addition.
        """

    @abstractmethod
    def backward(self, saved: Saved) -> None:
        """Record the backward pass."""

    def _saved(self, tensor: str, size_bytes: int, rebuild_s: float, *inputs: int) -> int:
        return self.recorder.saved(self._name(tensor), size_bytes, block=self.index, rebuild=Rebuild(rebuild_s, inputs))

    def _name(self, operator: str) -> str:
        return f"{operator}.{self.index}"

    def _gradient(self, operator: str) -> str:
        return f"{operator}.{self.index}'"


def blocks_forward(
    blocks: Sequence[TransformerBlock[Saved]], stream: int, *, output_saved: bool = True
) -> tuple[list[Saved], int]:
    """Record the forward pass of all blocks, the first of which reads `stream`.

    Returns what each block saves, and the tensor that the last one hands on: its output, saved under that name, or its own
    input where `output_saved` is False.
    """
    saved = []
    for block in blocks:
        following = block.index + 1
        last = following == len(blocks)
        saved.append(block.forward(stream, output_saved=output_saved or not last))
        if output_saved or not last:
            name, number = ("output", None) if last else (f"input.{following}", following)
            stream = block.recorder.saved(name, block.sizes.hidden_bytes, block=number)
    return saved, stream


def blocks_backward(blocks: Sequence[TransformerBlock[Saved]], saved: Sequence[Saved]) -> None:
    """Record the backward pass of all blocks, the last one first."""
    for block, tensors in zip(reversed(blocks), reversed(saved), strict=True):
        block.backward(tensors)
