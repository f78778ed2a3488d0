"""Compares a problem's saved bytes (A) with what another recording of the same training step says about them.

The recordings are those from which no problem can be imported, since they have no operator times, but which count bytes on
the device. What differs by more than the allocator's rounding is another step, model or batch, or a fault of the importer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from slackswap.hardware.input_error import InputError
from slackswap.models.problem import Problem
from slackswap.models.traces import memory_snapshot, memory_timeline
from slackswap.models.traces.memory_snapshot import Blocks, MemorySnapshot
from slackswap.models.traces.pytorch.kineto_problem import read_kineto_iteration
from slackswap.models.traces.pytorch.kineto_step import survey_kineto
from slackswap.models.traces.trace_content import TraceKind, recognise
from slackswap.models.traces.trace_file import TraceFile, as_trace_file

# PyTorch's caching allocator rounds a block up to 512 bytes, and leaves up to 1 MiB unused in one of more than 1 MiB:
# 0.6% of A for ResNet-50 at batch 32. The logits that Python names keep alive are 1.1% for a language model with a short
# context. Nothing makes it less, but small tensors can be counted by one side only.
MOST_ABOVE = 0.015
MOST_BELOW = 0.005
# Two recordings of one model most often differ in batch size or sequence length, by one of these.
_LIKELY_FACTORS = (2, 3, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class Measurement:
    """What a recording says about the bytes saved when the backward pass begins.

    Attributes
    ----------
    saved_bytes : total
    n_tensors : number of tensors; None where the recording only has totals
    remarks : sentences about what was counted, and how far it can be trusted
    """

    saved_bytes: int
    n_tensors: int | None
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Recording:
    """A kind of file to check against.

    Attributes
    ----------
    kind : what users call it
    measure : counts the saved bytes; raises `InputError`
    how_to_record : the call that writes such a file
    excess : why it can count a little more than the problem, to complete "explained by"
    """

    kind: str
    measure: Callable[[TraceFile], Measurement]
    how_to_record: str
    excess: str


@dataclass(frozen=True, slots=True)
class CrossCheck:
    """A problem's saved bytes beside those of a recording.

    Attributes
    ----------
    kind : what the recording is
    saved_bytes, n_tensors : as the recording counts them; `n_tensors` is None where it has totals only
    problem_bytes : as the problem counts them
    difference : ``saved_bytes / problem_bytes - 1``
    agrees : whether the difference lies between ``-MOST_BELOW`` and ``MOST_ABOVE``
    verdict : one sentence that says what the difference means
    remarks : sentences about what was counted
    """

    kind: str
    saved_bytes: int
    n_tensors: int | None
    problem_bytes: int
    difference: float
    agrees: bool
    verdict: str
    remarks: tuple[str, ...]


def cross_check(problem: Problem, file: TraceFile | Path | str) -> CrossCheck:
    """Compare a problem's saved bytes with a recording, whose kind is told by its content.

    Raises
    ------
    InputError
        The file is of no kind that counts saved bytes, or is refused by its reader; or the problem saves nothing.
    """
    file = as_trace_file(file)
    recording = _recording(file)
    problem_bytes = problem.saved_bytes
    if not problem_bytes:
        raise InputError("the problem has no saved tensors, so there is nothing to check against the file")
    measured = recording.measure(file)
    difference = (measured.saved_bytes - problem_bytes) / problem_bytes
    agrees = -MOST_BELOW <= difference <= MOST_ABOVE
    return CrossCheck(
        kind=recording.kind,
        saved_bytes=measured.saved_bytes,
        n_tensors=measured.n_tensors,
        problem_bytes=problem_bytes,
        difference=difference,
        agrees=agrees,
        verdict=_verdict(recording, measured.saved_bytes, problem_bytes, agrees),
        remarks=tuple(_remarks(problem, measured)),
    )


def _recording(file: TraceFile) -> Recording:
    known = "; ".join(f"a {recording.kind} ({recording.how_to_record})" for recording in RECORDINGS.values())
    kind = recognise(file, instead=f"check against {known}")
    if kind not in RECORDINGS:
        raise InputError(f"is a {kind}, which does not count saved bytes: check against {known}", source=file.source)
    return RECORDINGS[kind]


def _verdict(recording: Recording, saved_bytes: int, problem_bytes: int, agrees: bool) -> str:
    if saved_bytes == problem_bytes:
        return f"Agrees: the {recording.kind} has the problem's A of {_mb(problem_bytes)} exactly."
    percent = 100 * abs(saved_bytes - problem_bytes) / problem_bytes
    more = "more" if saved_bytes > problem_bytes else "less"
    found = f"the {recording.kind} has {_mb(saved_bytes)}, {percent:.1f}% {more} than the problem's A of {_mb(problem_bytes)}"
    if agrees and saved_bytes > problem_bytes:
        return f"Agrees: {found}; up to {100 * MOST_ABOVE:.1f}% is explained by {recording.excess}."
    if agrees:
        return f"Agrees: {found}; up to {100 * MOST_BELOW:.1f}% can be small tensors that it leaves out."
    if saved_bytes > problem_bytes:
        return (
            f"Differs: {found}, beyond the {100 * MOST_ABOVE:.1f}% that {recording.excess} can explain; it is of another"
            " batch size, model or step, or it counts what is no saved activation: autocast's copies of weights,"
            " libraries' workspaces, tensors that only Python names hold."
        )
    return (
        f"Differs: {found}, and rounding never makes it less; it is of another batch size, model or step, of one with"
        " activation checkpointing, or the problem counts what it does not, such as the input batch."
    )


def _remarks(problem: Problem, measured: Measurement) -> Iterator[str]:
    low_bytes, high_bytes = sorted((measured.saved_bytes, problem.saved_bytes))
    for factor in _LIKELY_FACTORS:
        if abs(high_bytes - factor * low_bytes) <= MOST_ABOVE * high_bytes:
            yield f"One is {factor} times the other: batch sizes or sequence lengths that differ by that would explain it."
    if measured.n_tensors is not None:
        yield f"{measured.n_tensors} tensors are saved, and {int(problem.saved.sum())} in the problem."
    yield from measured.remarks


def _measure_snapshot(file: TraceFile) -> Measurement:
    snapshot = memory_snapshot.read_memory_snapshot(file)
    return Measurement(snapshot.saved.size_bytes, snapshot.saved.count, tuple(_snapshot_remarks(snapshot)))


def _snapshot_remarks(snapshot: MemorySnapshot) -> Iterator[str]:
    if len(snapshot.device_bytes) > 1:
        others = ", ".join(f"{number}: {_mb(size_bytes)}" for number, size_bytes in snapshot.device_bytes.items())
        yield f"Device {snapshot.device} was measured, which saves most ({others})."
    n_passes = len(snapshot.pass_bytes)
    if n_passes > 1:
        low_bytes, high_bytes = min(snapshot.pass_bytes), max(snapshot.pass_bytes)
        yield f"Backward pass {n_passes} of {n_passes} was measured; they save {_mb(low_bytes)} to {_mb(high_bytes)}."
    if snapshot.outside_forward.count:
        yield f"{_part(snapshot.outside_forward)} was allocated outside of any module's forward: the loss."
    if snapshot.never_freed.count:
        yield (
            f"{_part(snapshot.never_freed)} is never freed: Python names hold it (logits), it is a library's workspace, or"
            " the recording ends before the backward pass does."
        )
    if snapshot.autocast.count:
        yield f"{_part(snapshot.autocast)} is autocast's copies, of activations and of weights."
    if snapshot.n_unmatched_frees:
        yield f"{snapshot.n_unmatched_frees} frees are of blocks older than the first event."
    if snapshot.ring_buffer_full:
        yield (
            f"The ring buffer was full and the oldest events are lost, such as those of {snapshot.n_lost} blocks in use:"
            " record with a larger max_entries."
        )
    elif snapshot.ring_buffer_full is None:
        yield f"There are exactly {snapshot.n_events} events: if that was max_entries, the oldest are lost."


def _measure_timeline(file: TraceFile) -> Measurement:
    timeline = memory_timeline.read_memory_timeline(file)
    totals = ", ".join(f"{name} {_mb(timeline.peak_of(name))}" for name in ("PARAMETER", "INPUT"))
    remarks = (
        "A is the maximum of ACTIVATION over the whole file, in blocks as the allocator rounds them.",
        f"Maxima that identify the model and batch: {totals}; the input batch is not part of A here.",
    )
    return Measurement(timeline.peak_of("ACTIVATION"), None, remarks)


def _part(blocks: Blocks) -> str:
    return f"Of it, {_mb(blocks.size_bytes)} ({blocks.count} tensor{'s' if blocks.count > 1 else ''})"


def _mb(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.1f} MB"


def _measure_kineto(file: TraceFile) -> Measurement:
    survey = survey_kineto(file)
    if not survey.n_memory:
        raise InputError(
            "holds no memory events of a device: record with profile_memory=True, with PyTorch's caching allocator",
            source=file.source,
        )
    read = read_kineto_iteration(file, survey)
    blocks = read.saved_blocks()
    remarks = [
        f"Step {read.step.name}: blocks that the forward pass allocates and that are not freed before the backward pass."
    ]
    if blocks.ambiguous_frees:
        remarks.append(
            f"{blocks.ambiguous_frees} of {blocks.frees} frees fitted several blocks, for lack of addresses."
        )
    return Measurement(blocks.bytes, len(blocks.blocks), tuple(remarks))


_ROUNDING = "the allocator's rounding (512 bytes a block, up to 1 MiB of a large one)"
# A further kind is one more entry.
RECORDINGS: dict[TraceKind, Recording] = {
    "memory snapshot": Recording(
        "CUDA memory snapshot",
        _measure_snapshot,
        "torch.cuda.memory._dump_snapshot",
        "tensors that are alive but not read again, such as logits and the loss",
    ),
    "memory timeline": Recording(
        "memory timeline",
        _measure_timeline,
        "profile.export_memory_timeline('NAME.raw.json.gz')",
        _ROUNDING,
    ),
    "Kineto trace": Recording(
        "Kineto trace with memory events",
        _measure_kineto,
        "torch.profiler.profile(profile_memory=True)",
        _ROUNDING,
    ),
}
