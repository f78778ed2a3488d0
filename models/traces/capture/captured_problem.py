"""From a captured step to a problem: operators, storages and times, and the declaration of how they came about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from slackswap.hardware.catalog import Hardware
from slackswap.hardware.input_error import InputError
from slackswap.models.problem import Problem
from slackswap.models.traces.capture.training_step import SavedByAutograd
from slackswap.models.traces.derivation import KEY, Derivation, Dropped, by_rule, exact, rebuild_costs
from slackswap.models.traces.pytorch.execution_trace import Iteration, Node
from slackswap.models.traces.pytorch.operator_times import OperatorTimes
from slackswap.models.traces.pytorch.roofline_times import flops_by_operator
from slackswap.models.traces.pytorch.shaped_calls import ShapedCall
from slackswap.models.traces.pytorch.traced_problem import TracedProblem, build_records, compute_device, is_checkpointed
from slackswap.models.traces.storage_lifetimes import find_lifetimes

_SEED = "aten::ones_like"


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """One training step, however it was observed.

    Attributes
    ----------
    nodes : its calls
    iteration : its operators
    calls : the same calls with shapes
    times_from : where the times are from, as half a sentence
    saved : what autograd itself counted
    notes : sentences on what was assumed
    remarks : sentences on what makes the numbers doubtful
    """

    nodes: tuple[Node, ...]
    iteration: Iteration
    calls: tuple[ShapedCall, ...]
    times: OperatorTimes
    times_from: str
    saved: SavedByAutograd
    notes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Under what a step was captured.

    Attributes
    ----------
    target : what the user named
    device : ``cpu``, ``cuda`` or ``fake``
    gpu : where the times are from
    torch_version, batch : as text; the batch is the shapes of the inputs
    is_training : whether the model was in training mode
    """

    target: str
    device: str
    gpu: str
    torch_version: str
    batch: str
    is_training: bool
    hardware: Hardware

    @property
    def is_fake(self) -> bool:
        """Whether the step ran without memory, and was timed by rule."""
        return self.device == "fake"

    @property
    def problem_name(self) -> str:
        """Name the problem after the function and where it ran."""
        return f"{self.target} on {self.hardware.name if self.is_fake else self.device}"


def with_seed_in_backward(iteration: Iteration) -> Iteration:
    """Move the gradient 1.0 of the loss to the backward pass: ``backward()`` makes it before the engine starts.

    Left in the forward pass it would count as a tensor that the forward pass saves.
    """
    if len(iteration.forward) > 1 and iteration.forward[-1].node.name == _SEED:
        seed = iteration.forward[-1]
        return replace(iteration, forward=iteration.forward[:-1], backward=(seed, *iteration.backward))
    return iteration


def captured_problem(captured: CapturedStep, circumstances: Circumstances, source: str) -> Problem:
    """Build the problem and declare how each fact came about.

    Raises
    ------
    InputError
        The step gives no valid problem.
    """
    lifetimes = find_lifetimes(captured.nodes, captured.iteration)
    device = compute_device(lifetimes)
    records = build_records(captured.nodes, captured.iteration, lifetimes, device, captured.times)
    try:
        problem = Problem.from_records(
            circumstances.problem_name, records.operators, records.tensors, circumstances.hardware.link
        )
    except InputError as error:
        raise InputError(f"gives no valid problem: {error}", source=source) from None
    metadata = _metadata(problem, captured, circumstances, records)
    return replace(problem, metadata=metadata)


def _metadata(
    problem: Problem, captured: CapturedStep, circumstances: Circumstances, records: TracedProblem
) -> dict[str, Any]:
    iteration = captured.iteration
    warnings = [*captured.remarks, *_warnings(problem, captured)]
    if not circumstances.is_training:
        warnings.append("The model is in evaluation mode: dropout and batch statistics are off.")
    metadata: dict[str, Any] = {
        "source": [circumstances.target],
        "gpu": circumstances.gpu,
        "torch": circumstances.torch_version,
        "batch": circumstances.batch,
        "autograd_saved_bytes": captured.saved.bytes,
        "heuristics": [
            *records.heuristics,
            *captured.notes,
            "Rebuild costs are the sum of the times of the operators that a rebuild repeats.",
            f"A capture does not measure the host link: it is that of {circumstances.hardware.name}.",
        ],
        "left_out": [*records.left_out, "The optimizer: a captured step has none."],
        KEY: _derivation(problem, circumstances, captured, warnings).as_metadata(),
    }
    flops = sum(flops_by_operator(captured.calls, iteration)[: len(iteration.forward)])
    if flops:
        metadata["forward_flops"] = flops
    return metadata


def _derivation(
    problem: Problem, circumstances: Circumstances, captured: CapturedStep, warnings: Sequence[str]
) -> Derivation:
    saved, n_dropped = int(problem.saved.sum()), captured.iteration.dropped
    aside = [Dropped("calls beside the two passes", n_dropped)] if n_dropped else []
    fact = by_rule if circumstances.is_fake else exact
    return Derivation(
        kind="PyTorch step without memory" if circumstances.is_fake else "PyTorch step",
        facts={
            "order": exact(problem.n_operators, "the order in which the step made its outermost calls"),
            "times": fact(problem.n_operators, captured.times_from),
            "sizes": exact(saved, "bytes of the storages"),
            "producers": exact(saved, "the call that a storage was born in"),
            "readers": exact(saved, "the calls that were given the storage and are no views"),
            "first backward use": exact(saved, "the first call of the backward pass that was given the storage"),
            "rebuild costs": rebuild_costs(
                problem, "sum of the times of the operators that make the tensor from what is saved"
            ),
        },
        dropped=[*aside, *captured.times.dropped],
        warnings=warnings,
    )


def _warnings(problem: Problem, captured: CapturedStep) -> list[str]:
    """Compare with what autograd counted, and say what recomputation does to the numbers."""
    if is_checkpointed(captured.nodes, captured.iteration):
        return [
            "The model checkpoints activations: what it recomputes is backward time here, and what it does not save is no"
            " tensor to plan for. Capture it without checkpointing to plan recomputation."
        ]
    difference = captured.saved.bytes - problem.saved_bytes
    if difference > 0:
        return [
            f"Autograd saves {difference:,} bytes more than the step makes: tensors that exist before it (labels that the"
            " loss holds, say) are resident."
        ]
    if difference < 0:
        return [
            f"The backward pass reads {-difference:,} bytes of the forward pass that autograd did not save for it:"
            " something else keeps them (a function of the user's, a hook)."
        ]
    return []
