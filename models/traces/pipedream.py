"""Imports PipeDream's ``graph.txt`` profiles: one forward and one backward time per layer, and the bytes of its output.

Which tensors the backward pass keeps is not in the file: it follows from a rule per kind of layer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from slackswap.hardware.input_error import InputError
from slackswap.hardware.link import Link
from slackswap.models.problem import Operator, Problem, Rebuild, Tensor
from slackswap.models.traces.derivation import KEY, Derivation, Dropped, Fact, by_rule, exact, rebuild_costs
from slackswap.models.traces.pipedream_graph import Node, looks_like_pipedream, read_graph
from slackswap.models.traces.trace_file import TraceFile, as_trace_file

__all__ = ["import_pipedream", "looks_like_pipedream"]

# PyTorch's profiler calls `x.size()` a node; it is a number on the host.
_NOT_A_TENSOR = {"Size"}
_VIEWS = {"View", "Transpose", "__getitem__", *_NOT_A_TENSOR}
# What a layer is, and what its backward pass reads: its inputs, its (first) output, or neither.
_RULES = {
    "Conv": ("convolution", "inputs"),
    "ConvTranspose": ("convolution", "inputs"),
    "BatchNorm": ("norm", "inputs"),
    "LayerNorm": ("norm", "inputs"),
    "Linear": ("gemm", "inputs"),
    "Classifier": ("gemm", "inputs"),
    "LSTM": ("gemm", "inputs, output"),
    "EmuBidirLSTM": ("gemm", ""),
    "RecurrentAttention": ("attention", ""),
    "MaxPool": ("other", "inputs"),
    "AvgPool": ("other", ""),
    "ReLU": ("elementwise", "output"),
    "ReLU6": ("elementwise", "inputs"),
    "GELU": ("elementwise", "inputs"),
    "Sigmoid": ("elementwise", "output"),
    "Tanh": ("elementwise", "output"),
    "Softmax": ("other", "output"),
    "LogSoftmax": ("other", "output"),
    "Mul": ("elementwise", "inputs"),
    "Add": ("elementwise", ""),
    "Dropout": ("dropout", ""),
    "Embedding": ("embedding", "inputs"),
    "Concat": ("copy", ""),
}
_RECURRENT = {"LSTM", "EmuBidirLSTM", "RecurrentAttention"}
# The profiles are of fp32 training; PyTorch's pool indices are int64, dropout masks one byte per element.
_INDEX_BYTES_PER_OUTPUT_BYTE = 2
_OUTPUT_BYTES_PER_MASK_BYTE = 4


def _rule(node: Node) -> tuple[str, str]:
    return _RULES.get(node.layer, ("other", ""))


@dataclass(slots=True, eq=False)
class _Storage:
    """Memory that one forward operator allocates; in-place operators write it again, views give it other names."""

    name: str
    bytes: int
    producer: int
    writers: list[int] = field(default_factory=list)
    readers: list[int] = field(default_factory=list)
    savers: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Forward:
    """The forward pass: operators in execution order, what each reads, and the storages in order of production."""

    nodes: list[Node] = field(default_factory=list)
    reads: list[list[_Storage]] = field(default_factory=list)
    has_producers: list[bool] = field(default_factory=list)
    storages: list[_Storage] = field(default_factory=list)
    inputs: list[Node] = field(default_factory=list)


def import_pipedream(file: TraceFile | Path | str, *, link: Link, pool_indices: bool = False) -> Problem:
    """Derive a problem from a PipeDream ``graph.txt``.

    Parameters
    ----------
    file : plain or gzip
    link : Link
        The host link; the profile says nothing about one.
    pool_indices : bool
        Whether the int64 indices that PyTorch's max pooling keeps are tensors of their own. They are left out by
        default, as in the paper's workloads; the metadata says how large they are.

    Returns
    -------
    Problem
        One forward and one backward operator per layer, without input and views. The metadata declares the ``source``,
        the ``heuristics`` and what is ``left_out``.

    Raises
    ------
    InputError
        The file cannot be read, a line is malformed, the edges form a cycle; with the file and the line.
    """
    trace = as_trace_file(file)
    try:
        order, producers = read_graph(trace.read())
        forward = _forward_pass(order, producers, pool_indices=pool_indices)
        return _problem(trace.name, forward, link, pool_indices=pool_indices)
    except InputError as error:
        raise error.within(trace.source) from None


def _forward_pass(order: Sequence[Node], producers: dict[int, list[int]], *, pool_indices: bool) -> _Forward:
    """Follow the storages through the forward pass and apply the save rules."""
    forward = _Forward()
    outputs: dict[int, list[_Storage]] = {}
    for node in order:
        sources = [outputs[number] for number in producers[node.number]]
        if re.fullmatch("Input[0-9]*", node.layer) and not sources:
            outputs[node.number] = []
            forward.inputs.append(node)
        elif node.layer in _VIEWS and node.forward_s == node.backward_s == 0:
            outputs[node.number] = _shared(node, sources)
        else:
            outputs[node.number] = _run(node, sources, forward, pool_indices=pool_indices)
    if not forward.nodes:
        raise InputError("has no layer besides inputs and views")
    return forward


def _run(node: Node, sources: list[list[_Storage]], forward: _Forward, *, pool_indices: bool) -> list[_Storage]:
    """Append one operator; return the storages of its outputs."""
    index = len(forward.nodes)
    reads = list({id(storage): storage for source in sources for storage in source}.values())
    forward.nodes.append(node)
    forward.reads.append(reads)
    forward.has_producers.append(bool(sources))
    outputs = _shared(node, sources) if node.in_place or node.layer in _VIEWS else []
    if node.in_place:
        for storage in outputs:
            storage.writers.append(index)
    if not outputs:
        single = len(node.output_bytes) == 1
        outputs = [
            _Storage(node.name if single else f"{node.name}[{k}]", size, producer=index)
            for k, size in enumerate(node.output_bytes)
        ]
        forward.storages.extend(outputs)
    for storage in reads:
        storage.readers.append(index)
    keeps = _rule(node)[1]
    for storage in (*(reads if "inputs" in keeps else ()), *(outputs[:1] if "output" in keeps else ())):
        storage.savers.append(index)
    if pool_indices and node.layer == "MaxPool":
        size = _INDEX_BYTES_PER_OUTPUT_BYTE * sum(node.output_bytes)
        forward.storages.append(_Storage(f"{node.name}.indices", size, producer=index, savers=[index]))
    return outputs


def _shared(node: Node, sources: list[list[_Storage]]) -> list[_Storage]:
    """Return the storages of the input that a view or in-place operator shares: the one produced last."""
    candidates = [source for source in sources if source]
    if not candidates or node.layer in _NOT_A_TENSOR:
        return []
    base = max(candidates, key=lambda source: source[-1].producer)
    item = re.fullmatch(r"__getitem__\((-?[0-9]{1,9})\)", node.description)
    if not item or len(base) == 1:
        return base
    if not -len(base) <= int(item[1]) < len(base):
        raise InputError(f"takes item {item[1]} of {len(base)} outputs", place=f"line {node.line}")
    return [base[int(item[1])]]


def _problem(file_name: str, forward: _Forward, link: Link, *, pool_indices: bool) -> Problem:
    name = re.sub(r"(\.graph)?\.txt(\.gz)?$", "", file_name)
    problem = Problem.from_records(name, _operators(forward), _tensors(forward), link)
    metadata = {
        "source": f"{file_name}, a PipeDream graph.txt",
        "heuristics": _heuristics(problem, forward),
        "left_out": _left_out(forward, pool_indices=pool_indices),
        KEY: _derivation(problem, forward, pool_indices=pool_indices).as_metadata(),
    }
    return replace(problem, metadata=metadata)


def _derivation(problem: Problem, forward: _Forward, *, pool_indices: bool) -> Derivation:
    n, saved = problem.n_operators, int(problem.saved.sum())
    n_indices = sum(node.layer == "MaxPool" for node in forward.nodes) if pool_indices else 0
    loading_s = sum(node.forward_s + node.backward_s for node in forward.inputs)
    kept = "a save rule per kind of layer"
    return Derivation(
        kind="PipeDream graph",
        facts={
            "order": Fact(0, n, 0, "topological, of the ready layers the lowest number first; backward in reverse"),
            "times": exact(n, "forward and backward time of each layer, to the microsecond"),
            "sizes": Fact(saved - n_indices, n_indices, 0, "output of each layer; pool indices are int64"),
            "producers": exact(saved, "the layer itself; in-place layers and views share their input"),
            "readers": exact(saved, "edges of the graph"),
            "first backward use": by_rule(saved, kept),
            "rebuild costs": rebuild_costs(problem, "forward time of the layer and of the in-place layers behind it"),
        },
        dropped=[Dropped("data loading: the time of input nodes", len(forward.inputs), loading_s)] if loading_s else [],
        warnings=_too_low(forward),
    )


def _operators(forward: _Forward) -> list[Operator]:
    """Return the forward operators, then their backward operators in reverse; every operator is a layer."""
    n = len(forward.nodes)
    operators = [Operator(x.name, "forward", x.forward_s, 0, i, _rule(x)[0]) for i, x in enumerate(forward.nodes)]
    for i in reversed(range(n)):
        node = forward.nodes[i]
        gradient_bytes = sum(node.output_bytes) + sum(storage.bytes for storage in forward.reads[i])
        name = f"{node.name}.backward"
        operators.append(Operator(name, "backward", node.backward_s, gradient_bytes, 2 * n - 1 - i, _rule(node)[0]))
    return operators


def _tensors(forward: _Forward) -> list[Tensor]:
    last = 2 * len(forward.nodes) - 1
    index_of = {id(storage): t for t, storage in enumerate(forward.storages)}
    return [
        Tensor(
            name=storage.name,
            bytes=storage.bytes,
            producer=storage.producer,
            readers=tuple(sorted({*storage.readers, *(last - saver for saver in storage.savers)})),
            block=block,
            rebuild=_rebuild(storage, forward, index_of),
        )
        for storage, block in zip(forward.storages, _blocks(forward), strict=True)
    ]


def _rebuild(storage: _Storage, forward: _Forward, index_of: dict[int, int]) -> Rebuild | None:
    """Run the producer and the in-place writers again; None where that does not give the same values."""
    operators = (storage.producer, *storage.writers)
    if not forward.has_producers[storage.producer] or any(forward.nodes[i].random for i in operators):
        return None
    inputs: set[int] = set()
    for operator in operators:
        for source in forward.reads[operator]:
            if source is storage:
                continue
            overwritten = source.writers and source.writers[-1] > operator
            if overwritten or source.producer >= storage.producer:
                return None
            inputs.add(index_of[id(source)])
    return Rebuild(sum(forward.nodes[i].forward_s for i in operators), tuple(sorted(inputs)))


def _blocks(forward: _Forward) -> list[int | None]:
    """Cut the forward pass where one tensor alone is handed on, after every sqrt(n) of n saved tensors.

    Chen et al. 2016 with equal lengths. The tensor handed on belongs to no block: a block is recomputed from it. Empty
    tensors do not stand in the way of a cut.
    """
    storages = forward.storages
    blocks: list[int | None] = [None] * len(storages)
    length = math.sqrt(sum(bool(storage.savers) for storage in storages))
    born, dead = ([list[int]() for _ in forward.nodes] for _ in range(2))
    for t, storage in enumerate(storages):
        born[storage.producer].append(t)
        if storage.bytes:
            dead[max((storage.producer, *storage.readers))].append(t)
    block, alive, inside, n_saved = 0, set[int](), list[int](), 0
    for births, deaths in zip(born, dead, strict=True):
        inside += births
        n_saved += sum(bool(storages[t].savers) for t in births)
        alive.update(t for t in births if storages[t].bytes)
        alive.difference_update(deaths)
        if len(alive) == 1 and n_saved >= length:
            for t in inside:
                blocks[t] = None if t in alive else block
            block, inside, n_saved = block + 1, [], 0
    for t in inside:
        blocks[t] = block
    return blocks


def _heuristics(problem: Problem, forward: _Forward) -> list[str]:
    free = problem.saved & (problem.rebuild_s == 0)
    fixed = problem.saved & ~problem.rebuildable
    unknown = sorted({node.layer for node in forward.nodes} - set(_RULES) - _VIEWS)
    sentences = [
        "Saved tensors follow from a rule per layer: convolution, normalization, linear, embedding and max pooling "
        "keep their inputs, ReLU its output, LSTM its inputs and first output; addition, concatenation and average "
        "pooling keep nothing.",
        "The backward pass runs the layers in reverse; the gradients of a layer's output and inputs are the workspace "
        "of its backward operator and live no longer than it.",
        "In-place layers and views share the storage of their input; in-place addition that of the latest input.",
        "A rebuild costs the forward time of the layer and of the in-place layers behind it, and reads their inputs.",
        "A block ends where one tensor alone is handed on, after every sqrt(n) of n saved tensors.",
    ]
    if free.any():
        sentences.append(
            f"Saved tensors that cost 0 s to rebuild: {free.sum()} ({_mb(problem.tensor_bytes[free].tolist())}), "
            "because the profile gives their layers a time of 0.000 ms; planners recompute them for nothing."
        )
    if fixed.any():
        sentences.append(
            f"Saved tensors that nothing rebuilds: {fixed.sum()} ({_mb(problem.tensor_bytes[fixed].tolist())}), "
            "because they are random, come from no layer, or their inputs are overwritten."
        )
    if unknown:
        sentences.append(f"Layers without a rule, taken to keep nothing: {', '.join(unknown)}.")
    return sentences


def _left_out(forward: _Forward, *, pool_indices: bool) -> list[str]:
    nodes = forward.nodes
    pools = [_INDEX_BYTES_PER_OUTPUT_BYTE * sum(x.output_bytes) for x in nodes if x.layer == "MaxPool"]
    masks = [sum(x.output_bytes) // _OUTPUT_BYTES_PER_MASK_BYTE for x in nodes if x.layer == "Dropout"]
    sentences = [
        "Batch size, GPU, loss and optimizer are not in the file.",
        f"The weights ({_mb(x.parameter_bytes for x in nodes)}) stay on the device and do not count.",
        f"The input batch ({_mb(sum(x.output_bytes) for x in forward.inputs)}) stays on the device and does not count; "
        f"the {1000 * sum(x.forward_s + x.backward_s for x in forward.inputs):.3f} ms of its node are data loading.",
        "Views, items and sizes are no operators where the profile gives them no time.",
        "Convolution workspaces, statistics of normalization and allocator rounding are not recorded.",
    ]
    if pools and not pool_indices:
        sentences.append(f"The int64 indices that max pooling keeps ({_mb(pools)}).")
    if masks:
        sentences.append(f"The masks that dropout keeps ({_mb(masks)}).")
    return sentences


def _too_low(forward: _Forward) -> list[str]:
    """Say where the profile gives too few bytes."""
    layers = list(zip(forward.nodes, forward.reads, strict=True))
    averaged = {id(s): s.bytes for x, reads in layers if x.layer == "AvgPool" for s in reads if not s.savers}
    joined = [x for x, reads in layers if x.layer == "Concat" and sum(x.output_bytes) < sum(s.bytes for s in reads)]
    recurrent = sorted({x.layer for x, _ in layers} & _RECURRENT)
    sentences = []
    if averaged:
        sentences.append(
            f"PyTorch keeps the inputs of average pooling, {_mb(averaged.values())} that nothing else keeps."
        )
    if joined:
        sentences.append(f"Concatenations recorded as smaller than their inputs: {', '.join(x.name for x in joined)}.")
    if recurrent:
        sentences.append(f"What {', '.join(recurrent)} keep inside is not recorded: the saved bytes are too few.")
    return sentences


def _mb(sizes: Iterable[int]) -> str:
    return f"{sum(sizes) / 1e6:.1f} MB"
