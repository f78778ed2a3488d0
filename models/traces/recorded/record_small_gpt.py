"""Records ``small-gpt``: one training step of a small GPT on the CPU, as execution trace and Kineto trace.

Run it with PyTorch installed: ``python -m slackswap.models.traces.recorded.record_small_gpt FOLDER``. It is the program
that made the two files beside it; on another machine the times differ, the storages do not.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slackswap.models.atomic_file import write_atomically
from slackswap.models.traces.recorded import SMALL_GPT_FILES

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class SmallGpt:
    """Shape of the model and of its batch."""

    blocks: int = 6
    hidden: int = 256
    heads: int = 4
    sequence: int = 128
    batch: int = 8
    vocabulary: int = 2048
    dropout: float = 0.1


def record(folder: Path, shape: SmallGpt, *, warmup_steps: int = 5, recordings: int = 5, seed: int = 0) -> list[Path]:
    """Record the step several times, write the two files of the fastest one, and return their paths.

    Others use the machine as well: the fastest recording is the one that they disturbed least.
    """
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    step = training_step(shape)
    traces = [_profile(step, warmup_steps) for _ in range(recordings)]
    execution_trace, kineto = min(traces, key=lambda trace: _step_us(trace[1]))
    paths = [folder / name for name in SMALL_GPT_FILES]
    for path, content in zip(paths, (execution_trace, _anonymous(kineto, paths[1].name)), strict=True):
        write_atomically(path, content)
    return paths


def training_step(shape: SmallGpt) -> Callable[[], None]:
    """Build the model and a random batch; the returned function runs forward, loss and backward once."""
    import torch
    from torch.nn import functional

    model = _small_gpt(shape)
    tokens = torch.randint(0, shape.vocabulary, (shape.batch, shape.sequence))
    targets = torch.randint(0, shape.vocabulary, (shape.batch, shape.sequence))

    def step() -> None:
        model.zero_grad(set_to_none=True)
        logits = _forward(model, tokens, shape)
        loss: Any = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()

    return step


def _small_gpt(shape: SmallGpt) -> nn.ModuleDict:
    from torch import nn

    hidden = shape.hidden
    block: dict[str, Callable[[], nn.Module]] = {
        "norm_1": lambda: nn.LayerNorm(hidden),
        "qkv": lambda: nn.Linear(hidden, 3 * hidden),
        "projection": lambda: nn.Linear(hidden, hidden),
        "norm_2": lambda: nn.LayerNorm(hidden),
        "fc_1": lambda: nn.Linear(hidden, 4 * hidden),
        "fc_2": lambda: nn.Linear(4 * hidden, hidden),
    }
    return nn.ModuleDict(
        {
            "tokens": nn.Embedding(shape.vocabulary, hidden),
            "positions": nn.Embedding(shape.sequence, hidden),
            "blocks": nn.ModuleList(
                nn.ModuleDict({name: make() for name, make in block.items()}) for _ in range(shape.blocks)
            ),
            "norm": nn.LayerNorm(hidden),
            "head": nn.Linear(hidden, shape.vocabulary, bias=False),
        }
    )


def _forward(model: nn.ModuleDict, tokens: Tensor, shape: SmallGpt) -> Tensor:
    """Return the logits; each block is an annotation ``block.N``, from which the importer numbers blocks."""
    import torch
    from torch.nn import functional

    x: Tensor = model["tokens"](tokens) + model["positions"](torch.arange(shape.sequence))
    x = functional.dropout(x, shape.dropout)
    blocks: Any = model["blocks"]
    for number, block in enumerate(blocks):
        with torch.profiler.record_function(f"block.{number}"):
            x = x + functional.dropout(_attention(block, x, shape), shape.dropout)
            inner = functional.gelu(block["fc_1"](block["norm_2"](x)))
            x = x + functional.dropout(block["fc_2"](inner), shape.dropout)
    logits: Tensor = model["head"](model["norm"](x))
    return logits


def _attention(block: nn.ModuleDict, x: Tensor, shape: SmallGpt) -> Tensor:
    from torch.nn import functional

    by_head = (shape.batch, shape.sequence, shape.heads, shape.hidden // shape.heads)
    qkv = block["qkv"](block["norm_1"](x))
    query, key, value = (part.view(by_head).transpose(1, 2) for part in qkv.split(shape.hidden, dim=2))
    mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    projected: Tensor = block["projection"](mixed.transpose(1, 2).reshape(x.shape))
    return projected


def _profile(step: Callable[[], None], warmup_steps: int) -> tuple[bytes, bytes]:
    """Run the step to warm up and once more under the profiler; return the execution trace and the Kineto trace."""
    from torch import profiler

    with tempfile.TemporaryDirectory() as folder:
        observed, exported = Path(folder) / "et.json", Path(folder) / "kineto.json"
        observer = profiler.ExecutionTraceObserver().register_callback(str(observed))
        with profiler.profile(
            activities=[profiler.ProfilerActivity.CPU],
            schedule=profiler.schedule(wait=0, warmup=warmup_steps, active=1, repeat=1),
            on_trace_ready=lambda profile: profile.export_chrome_trace(str(exported)),
            record_shapes=True,
            profile_memory=True,
            execution_trace_observer=observer,
        ) as profile:
            for _ in range(warmup_steps + 1):
                step()
                profile.step()
        observer.unregister_callback()
        return observed.read_bytes(), exported.read_bytes()


def _step_us(kineto: bytes) -> float:
    events = json.loads(kineto)["traceEvents"]
    return float(sum(event["dur"] for event in events if event.get("name", "").startswith("ProfilerStep#")))


def _anonymous(kineto: bytes, name: str) -> bytes:
    """Take out what names the machine: its host name and the path of the temporary file."""
    trace = json.loads(kineto)
    trace.pop("host_name", None)
    trace["traceName"] = name
    return json.dumps(trace, indent=0).encode()


def main() -> None:
    """Record into the folder given on the command line."""
    parser = argparse.ArgumentParser(description="Record one training step of a small GPT on the CPU.")
    parser.add_argument("folder", type=Path)
    for path in record(parser.parse_args().folder, SmallGpt()):
        print(path)


if __name__ == "__main__":
    main()
