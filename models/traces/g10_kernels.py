"""Imports G10's kernel lists (``statistics/kernels.config``): one training step, kernel by kernel, with its tensors.

G10 (Zhang et al., MICRO 2023, platformxlab/G10) writes one block per kernel: its number and name, the operator of the graph
that it belongs to, its time in cycles, and the tensors that it reads and writes, each with a number of its own, a size and
whether it is a weight. The kernel's name says which pass it belongs to.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from slackswap.hardware.input_error import InputError
from slackswap.hardware.link import Link
from slackswap.models.problem import MAX_TOTAL_BYTES, Problem
from slackswap.models.traces.derivation import KEY, Derivation, Dropped, exact, rebuild_costs
from slackswap.models.traces.rebuild_recipes import is_saved
from slackswap.models.traces.storage_lifetimes import Lifetime
from slackswap.models.traces.storage_records import TimedCall, problem_records
from slackswap.models.traces.trace_file import TraceFile, as_trace_file

# `GPU_frequency_GHz 1.2`, in the configurations that G10 ships: its list holds the measured milliseconds times this.
DEFAULT_CLOCK_HZ = 1.2e9
_NAIVE_RATIO = 4.0  # tuned kernels need about twice the forward time for the backward pass

_Role = Literal["forward", "backward", "update", "input"]
_ROLES: tuple[tuple[_Role, re.Pattern[str]], ...] = (
    ("update", re.compile(r"(\w+_)?Apply_Grad(_(Weight|Bias))?")),
    ("input", re.compile(r"LoadData(_\w+)?")),
    ("forward", re.compile(r"\w+_Forward")),
    # `makeLoss` writes the gradient of the last output; `Add_MultiGredient` adds up the gradients of several readers.
    ("backward", re.compile(r"makeLoss|Add_MultiGredient|\w+_Backward(_(A|B|Input|Weight|Bias))?")),
)
_START = re.compile(rb"\s*Kernel ID: ?\d+, ?Name: ?\w")
_KERNEL = re.compile(rb"Kernel ID: ?(\d{1,9}), ?Name: ?(\w{1,200})")
_PARENT = re.compile(rb"Parent (?:OP|Layer) ID: ?(\d{1,9}); ?Name:.*")
_TIME = re.compile(rb"Execution Time: *(\d{1,18})")
# Convolutional networks have a line with the layer's shape; forks of G10 add times under page faults.
_IGNORED = re.compile(rb"\(\d+(,\d+)*\)|Execution Time \([^)]*\):.*")
_TENSOR = re.compile(
    rb"tensor(\d{1,9}) Is weight \(global\)\?: ?([01]), ?Size in byte: ?(\d{1,19})(?:, ?Range: ?-?\d+--?-?\d+)?"
)
_RULE = re.compile(rb"_+")
_TIMES_LINE = re.compile(rb"\d+\s+\d+(\.\d+)?\s+ms")


@dataclass(frozen=True, slots=True)
class _Use:
    """A tensor as a kernel states it, and the line that does."""

    number: int
    is_weight: bool
    bytes: int
    line: int


@dataclass(slots=True)
class _Kernel:
    """One block of the list; `parent` is the operator or layer of the graph."""

    number: int
    name: str
    role: _Role
    line: int
    parent: int = -1
    cycles: int = -1
    reads: list[_Use] = field(default_factory=list)
    writes: list[_Use] = field(default_factory=list)


@dataclass(slots=True)
class _Storages:
    """Tensors born in an operator, in order, and the bytes, by number, of those that stay on the device."""

    born: list[Lifetime] = field(default_factory=list)
    weights_bytes: dict[int, int] = field(default_factory=dict)
    inputs_bytes: dict[int, int] = field(default_factory=dict)
    _alive: dict[int, Lifetime] = field(default_factory=dict)

    def follow(self, use: _Use, operator: int | None, *, writes: bool) -> None:
        """Note that a kernel reads or writes a tensor; `operator` is what it became, None if it was dropped."""
        if use.is_weight:
            self.weights_bytes[use.number] = use.bytes
        elif use.number in self._alive:
            storage = self._alive[use.number]
            operators = storage.writers if writes else storage.readers
            if operator is not None and operators[-1:] != [operator]:
                operators.append(operator)
        elif writes and operator is not None:
            self._alive[use.number] = Lifetime(operator + 1, operator, "", use.bytes)
            self.born.append(self._alive[use.number])
        else:
            # Read before a kernel writes it: data, a constant, or a state (running statistics) that is written back.
            self._alive[use.number] = Lifetime(0, None, "", use.bytes)
            self.inputs_bytes[use.number] = use.bytes


def looks_like_g10(start: bytes) -> bool:
    """Whether the start of an unpacked file is that of a G10 kernel list."""
    return bool(_START.match(start))


def looks_like_g10_times(start: bytes) -> bool:
    """Whether the start of an unpacked file is that of G10's list of times, ``0000 0.197632 ms``."""
    lines = [line.strip() for line in start.split(b"\n")]
    complete = [line for line in lines[:-1] or lines if line]  # the last one may be cut
    return bool(complete) and all(_TIMES_LINE.fullmatch(line) for line in complete)


def import_g10(
    file: TraceFile | Path | str, *, link: Link, clock_hz: float = DEFAULT_CLOCK_HZ, weight_updates: bool = False
) -> Problem:
    """Derive a problem from a G10 kernel list.

    Parameters
    ----------
    file : plain, gzip, or in a tar archive
    link : the host link; the list says nothing about one
    clock_hz : cycles per second of the list's times, G10's ``GPU_frequency_GHz``
    weight_updates : whether the ``Apply_Grad`` kernels, which G10 runs between the backward kernels, are backward operators.
        They are left out by default, as every importer leaves out the optimizer; the metadata gives their time.

    Returns
    -------
    Problem
        One operator per kernel, named ``name.number``. ``makeLoss`` writes a gradient: it is the first backward operator.

    Raises
    ------
    InputError
        The file cannot be read or is torn; holds times only; a line is malformed; a kernel's name does not say its pass; the
        passes are mixed or one is missing: with the file and the line.
    """
    trace = as_trace_file(file)
    if not (math.isfinite(clock_hz) and clock_hz > 0):
        raise InputError(f"a clock is a finite number of cycles per second above 0, not {clock_hz}", place="clock_hz")
    try:
        kernels = _read_kernels(trace.read())
        _check_passes(kernels)
        return _problem(trace.name, kernels, link, clock_hz, weight_updates=weight_updates)
    except InputError as error:
        raise error.within(trace.source) from None


def _read_kernels(content: bytes) -> list[_Kernel]:
    if looks_like_g10_times(content[:4096]):
        raise InputError(
            "holds the times of G10's kernels only, not their names, tensors and passes: give the kernels.config that G10"
            " writes from it (into the folder statistics/ of its output)"
        )
    if not looks_like_g10(content[:4096]):
        raise InputError("is no G10 kernel list: it does not begin with 'Kernel ID: 0, Name: ...'")
    kernels: list[_Kernel] = []
    block: list[tuple[int, bytes]] = []
    for number, raw in enumerate(content.splitlines(), 1):
        line = raw.strip()
        if _RULE.fullmatch(line):
            kernels.append(_kernel(block, len(kernels), number))
            block = []
        elif line:
            block.append((number, line))
    if block:
        raise InputError(
            f"ends within kernel {len(kernels)}, before its line of underscores: the file is torn, copy it again",
            place=f"line {block[-1][0]}",
        )
    _check_tensors(kernels)
    return kernels


def _kernel(block: Sequence[tuple[int, bytes]], number: int, end: int) -> _Kernel:
    """Read one block; `number` is what the kernel's must be, `end` the line of underscores."""
    first, head = block[0] if block else (end, b"")
    named = _KERNEL.fullmatch(head)
    if not named or int(named[1]) != number:
        raise InputError(
            f"kernels are numbered from 0 without gaps, and here stands not 'Kernel ID: {number}, Name: ...'",
            place=f"line {first}",
        )
    name = named[2].decode()
    kernel = _Kernel(number, name, _role(name, first), first)
    uses: list[_Use] | None = None
    for line_number, line in block[1:]:
        if line == b"Input Tensors:":
            uses = kernel.reads
        elif line == b"Output Tensors:":
            uses = kernel.writes
        elif uses is None:
            _take_head(kernel, line, line_number)
        else:
            uses.append(_use(line, line_number))
    if kernel.cycles < 0 or uses is not kernel.writes:
        missing = "execution time" if kernel.cycles < 0 else "list of output tensors"
        raise InputError(f"kernel {number}, {name}, has no {missing}", place=f"line {first}")
    return kernel


def _role(name: str, line: int) -> _Role:
    for role, pattern in _ROLES:
        if pattern.fullmatch(name):
            return role
    raise InputError(
        f"the name of kernel '{name}' does not say which pass it belongs to: names end in _Forward or _Backward, but for"
        " makeLoss, Add_MultiGredient, Apply_Grad and LoadData",
        place=f"line {line}",
    )


def _take_head(kernel: _Kernel, line: bytes, number: int) -> None:
    """Take a line before the tensors."""
    if parent := _PARENT.fullmatch(line):
        kernel.parent = int(parent[1])
    elif time := _TIME.fullmatch(line):
        kernel.cycles = int(time[1])
    elif not _IGNORED.fullmatch(line):
        raise _malformed(line, number, "a line before the tensors of a kernel")


def _use(line: bytes, number: int) -> _Use:
    stated = _TENSOR.fullmatch(line)
    if not stated:
        raise _malformed(line, number, "'tensorN Is weight (global)?: 0 or 1, Size in byte: N, Range:N--N'")
    if int(stated[3]) > MAX_TOTAL_BYTES:
        raise InputError(f"a size is at most {MAX_TOTAL_BYTES} bytes, not {int(stated[3])}", place=f"line {number}")
    return _Use(int(stated[1]), stated[2] == b"1", int(stated[3]), number)


def _malformed(line: bytes, number: int, what: str) -> InputError:
    return InputError(f"is not {what}, but '{line[:60].decode('utf-8', 'replace')}'", place=f"line {number}")


def _check_tensors(kernels: Sequence[_Kernel]) -> None:
    """Refuse a number that names two tensors: the numbers decide, since the ranges are addresses that may be used again."""
    first: dict[int, _Use] = {}
    for kernel in kernels:
        for use in (*kernel.reads, *kernel.writes):
            known = first.setdefault(use.number, use)
            if (known.is_weight, known.bytes) != (use.is_weight, use.bytes):
                raise InputError(
                    f"states tensor{use.number} with another size or another kind than line {known.line}",
                    place=f"line {use.line}",
                )


def _check_passes(kernels: Sequence[_Kernel]) -> None:
    """Refuse passes that are mixed or missing."""
    backward: _Kernel | None = None
    for kernel in kernels:
        if backward is not None and kernel.role in ("forward", "input"):
            raise InputError(
                f"{kernel.name} stands after {backward.name} of line {backward.line}: a list holds one forward pass, then"
                " one backward pass; cut out one step",
                place=f"line {kernel.line}",
            )
        if backward is None and kernel.role == "update":
            raise InputError(f"{kernel.name} stands before the first backward kernel", place=f"line {kernel.line}")
        if backward is None and kernel.role == "backward":
            backward = kernel
    if backward is None:
        raise InputError("has no backward kernel: without them, nothing says what is saved; give a list of training")
    if not any(kernel.role == "forward" for kernel in kernels):
        raise InputError("has no forward kernel")


def _problem(
    file_name: str, kernels: Sequence[_Kernel], link: Link, clock_hz: float, *, weight_updates: bool
) -> Problem:
    kept = [kernel for kernel in kernels if kernel.role != "input" and (weight_updates or kernel.role != "update")]
    n_forward = sum(kernel.role == "forward" for kernel in kept)
    storages = _storages(kernels, {kernel.number: i for i, kernel in enumerate(kept)})
    tensors = [s for s in storages.born if s.later_users and (s.bytes or is_saved(s, n_forward))]
    used = {id(storage) for storage in tensors}
    temporaries = [storage for storage in storages.born if id(storage) not in used]
    calls = [TimedCall(f"{kernel.name}.{kernel.number}", kernel.name, kernel.cycles / clock_hz) for kernel in kept]
    operators, records = problem_records(calls, n_forward, tensors, temporaries)
    problem = Problem.from_records(re.sub(r"(\.kernels)?\.config(\.gz)?$", "", file_name), operators, records, link)
    metadata = {
        "source": f"{file_name}, a G10 kernel list",
        "heuristics": _heuristics(clock_hz, weight_updates=weight_updates),
        "left_out": _left_out(kernels, storages),
        KEY: _derivation(kernels, kept, problem, clock_hz).as_metadata(),
    }
    return replace(problem, metadata=metadata)


def _storages(kernels: Sequence[_Kernel], operator_of: Mapping[int, int]) -> _Storages:
    """Follow the tensors through all kernels; `operator_of` says which operators the kept ones became."""
    storages = _Storages()
    for kernel in kernels:
        for use in kernel.reads:
            storages.follow(use, operator_of.get(kernel.number), writes=False)
        for use in kernel.writes:
            storages.follow(use, operator_of.get(kernel.number), writes=True)
    return storages


def _derivation(kernels: Sequence[_Kernel], kept: Sequence[_Kernel], problem: Problem, clock_hz: float) -> Derivation:
    n, n_saved = problem.n_operators, int(problem.saved.sum())
    dropped = []
    for role, what in (("update", "weight updates between the backward kernels"), ("input", "loading of the batch")):
        cycles = [kernel.cycles for kernel in kernels if kernel.role == role]
        if cycles and not any(kernel.role == role for kernel in kept):
            dropped.append(Dropped(what, len(cycles), sum(cycles) / clock_hz))
    return Derivation(
        kind="G10 kernel list",
        facts={
            "order": exact(n, "The order of the list, in which the kernels are numbered."),
            "times": exact(n, f"Execution Time, in cycles of a clock of {clock_hz / 1e9:g} GHz."),
            "sizes": exact(n_saved, "Size in byte of each tensor."),
            "producers": exact(n_saved, "Output Tensors of each kernel."),
            "readers": exact(n_saved, "Input Tensors of each kernel."),
            "first backward use": exact(n_saved, "The first backward kernel that has the tensor among its inputs."),
            "rebuild costs": rebuild_costs(problem, "Times of the kernels that make a tensor and what it needs."),
        },
        dropped=dropped,
        warnings=_warnings(kept, problem),
    )


def _warnings(kept: Sequence[_Kernel], problem: Problem) -> list[str]:
    warnings = []
    if problem.backward_s > _NAIVE_RATIO * problem.forward_s > 0:
        warnings.append(
            f"The backward pass takes {problem.backward_s / problem.forward_s:.1f} times as long as the forward pass: G10"
            " times naive kernels; tuned ones need about twice as long and hide fewer transfers."
        )
    forward = [kernel for kernel in kept if kernel.role == "forward"]
    backward_parents = {kernel.parent for kernel in kept if kernel.role == "backward"}
    if forward[0].parent not in backward_parents:
        warnings.append(
            f"No backward kernel belongs to the layer of the first one, {forward[0].name}: the list may be cut."
        )
    return warnings


def _heuristics(clock_hz: float, *, weight_updates: bool) -> list[str]:
    sentences = [
        f"Times are cycles of a clock of {clock_hz / 1e9:g} GHz, G10's GPU_frequency_GHz; the list does not state it.",
        "The pass follows from the kernel's name; makeLoss writes a gradient, so the backward pass begins with it.",
        "Each graph operator is a kernel of its own, as G10 times them: nothing is fused.",
        "Saved tensors are written by a forward kernel and read by a backward one; their numbers decide, not their addresses.",
        "A rebuild repeats the kernels that made a tensor, and what makes the unsaved temporaries that these read.",
        "Temporaries and gradients last until their last recorded use.",
        "No blocks: the list does not number the repeated parts of the model.",
    ]
    if not weight_updates:
        sentences.append(
            "Without the weight updates, a weight's gradient is workspace of the kernel that writes it and lives no longer."
        )
    return sentences


def _left_out(kernels: Sequence[_Kernel], storages: _Storages) -> list[str]:
    weights, inputs = storages.weights_bytes, storages.inputs_bytes
    sentences = [
        "GPU, batch size and model are not in the list; neither are workspaces inside of a kernel.",
        f"The weights stay on the device and do not count: {len(weights)} tensors ({_mb(weights)}).",
        f"Tensors that no kernel writes before one reads them (batch, masks, constants): {len(inputs)} ({_mb(inputs)}); they"
        " stay on the device and do not count.",
    ]
    droppers = [kernel for kernel in kernels if kernel.name == "Dropout_Forward"]
    masks = {use.number: use.bytes for kernel in droppers for use in kernel.reads if use.number in inputs}
    if masks:
        sentences.append(f"Among them are the masks of dropout, which G10 records as inputs: {_mb(masks)}.")
    return sentences


def _mb(bytes_of: Mapping[int, int]) -> str:
    return f"{sum(bytes_of.values()) / 1e6:.1f} MB"
