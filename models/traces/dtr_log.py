"""Imports logs of DTR, Dynamic Tensor Rematerialization (Kirisame et al., ICLR 2021): the operator calls of one training step.

Each line is a JSON object, an instruction of the language that DTR's simulator simrd replays: CALL and MUTATE run an operator,
CONSTANT, COPY, COPY_FROM and RELEASE make, bind and drop names of tensors, MEMORY and ALIAS describe the results of the CALL
before them. `ANNOTATE BACKWARD` alone says where the backward pass begins: operators named ``..._backward`` run before it too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from slackswap.hardware.input_error import InputError
from slackswap.hardware.link import Link
from slackswap.models.problem import MAX_TOTAL_BYTES, Problem
from slackswap.models.traces.derivation import KEY, Derivation, Dropped, exact, rebuild_costs
from slackswap.models.traces.operator_kind import is_random
from slackswap.models.traces.rebuild_recipes import is_saved
from slackswap.models.traces.storage_lifetimes import Lifetime, note
from slackswap.models.traces.storage_records import TimedCall, problem_records
from slackswap.models.traces.trace_file import TraceFile, as_trace_file

# PIN keeps a tensor from being evicted: it says nothing about the step.
_INSTRUCTIONS = ("ANNOTATE", "CONSTANT", "MEMORY", "ALIAS", "CALL", "MUTATE", "COPY", "COPY_FROM", "RELEASE", "PIN")
_START = re.compile(rb'"INSTRUCTION"\s*:\s*"(' + "|".join(_INSTRUCTIONS).encode() + rb')"')
# A call that concatenates thousands of tensors has a line of some hundred kilobytes.
_MAX_LINE_BYTES = 4 << 20
_WHOLE = re.compile(r"-?[0-9]{1,30}")
_NEW = -1  # an ALIAS that is none: a storage of its own
_Number = int | float | str


class _Line(msgspec.Struct, rename="upper"):
    """One instruction; each has some of the keys. Numbers are strings, but for the indices of MUTATE."""

    instruction: str
    name: str | None = None
    args: list[str] | None = None
    result: list[str] | None = None
    time: _Number | None = None
    memory: _Number | None = None
    alias: _Number | None = None
    mutate: list[_Number] | None = None
    dst: str | None = None
    src: str | None = None
    annotation: str | None = None


_DECODER = msgspec.json.Decoder(_Line)


@dataclass(slots=True, eq=False)
class _Storage:
    """A storage and its names; once the last one is released, `freed_before` is the index of the next operator."""

    lifetime: Lifetime
    n_names: int = 0
    freed_before: int | None = None


@dataclass(frozen=True, slots=True)
class _Call:
    """An operator call; a view returns nothing but names for storages that it was given."""

    name: str
    time_ns: int
    is_view: bool


class _Log:
    """Follows the instructions of a log; what is left at the end is its last step.

    Attributes
    ----------
    calls : operators since the last START
    n_forward : how many of them stand before BACKWARD; 0 while there was none
    born : storages that these operators gave birth to, in order
    constants : storages that no call made, or one before START: weights, batch
    n_earlier, earlier_ns : operators before the last START and their time
    n_constant_writers : backward operators that change a constant in place
    """

    def __init__(self, instructions: Iterator[tuple[int, _Line]]) -> None:
        self.calls: list[_Call] = []
        self.n_forward = 0
        self.born: list[_Storage] = []
        self.constants: list[_Storage] = []
        self.n_earlier, self.earlier_ns = 0, 0
        self.n_constant_writers = 0
        self._instructions = instructions
        self._names: dict[str, _Storage] = {}
        self._number = self._backward_line = 0

    def follow(self) -> None:
        """Follow all instructions; refuse what cannot be followed, and a log without one of the passes."""
        try:
            for number, line in self._instructions:
                self._number = number
                self._take(line)
        except InputError as error:  # has a source if the file cannot be read: then no line is to blame
            place = error.place or ("" if error.source else f"line {self._number}")
            raise InputError(error.rule, place=place) from None
        if not self.n_forward:
            raise InputError(
                "has no annotation BACKWARD, and the names of operators do not say where the backward pass begins: record with"
                ' torch.annotate_log("BACKWARD") before loss.backward()'
            )
        if self.n_forward == len(self.calls):
            raise InputError("has no operator after the annotation BACKWARD: nothing says what is saved")

    def _take(self, line: _Line) -> None:
        match line.instruction:
            case "CALL":
                self._call(line)
            case "MUTATE":
                self._mutate(line)
            case "CONSTANT":
                name = _key(line, "name")
                size_bytes = self._described("MEMORY", name, self._number, 0, MAX_TOTAL_BYTES)
                self.constants.append(_Storage(Lifetime(0, None, "", size_bytes)))
                self._bind(name, self.constants[-1])
            case "COPY":
                self._bind(_key(line, "dst"), self._known(_key(line, "src")))
            case "COPY_FROM":
                source, name = self._known(_key(line, "src")), _key(line, "dst")
                self._known(name)
                self._unbind(name)
                self._bind(name, source)
            case "RELEASE":
                self._unbind(_key(line, "name"))
            case "ANNOTATE":
                self._annotate(_key(line, "annotation"))
            case "MEMORY" | "ALIAS":
                raise InputError(f"{line.instruction} stands alone: it describes a result of the CALL before it")
            case unknown if unknown not in _INSTRUCTIONS:
                raise InputError(
                    f"'{unknown[:40]}' is no instruction of a DTR log: they are {', '.join(_INSTRUCTIONS)}"
                )

    def _annotate(self, annotation: str) -> None:
        if annotation == "START":
            # What the steps before left in memory counts as constants.
            self.n_earlier += len(self.calls)
            self.earlier_ns += sum(call.time_ns for call in self.calls)
            self.constants = list({id(storage): storage for storage in self._names.values()}.values())
            for storage in self.constants:
                storage.lifetime = Lifetime(0, None, "", storage.lifetime.bytes)
            self.calls, self.born, self.n_forward, self.n_constant_writers = [], [], 0, 0
        elif annotation == "BACKWARD" and self.n_forward:
            raise InputError(
                f"a second annotation BACKWARD, after that of line {self._backward_line}: a problem has one backward pass;"
                ' record one step without gradient accumulation, or put torch.annotate_log("START") before the last one'
            )
        elif annotation == "BACKWARD":
            if not self.calls:
                raise InputError("no operator stands before the annotation BACKWARD")
            self.n_forward, self._backward_line = len(self.calls), self._number

    def _call(self, line: _Line) -> None:
        announced, name, time_ns = self._number, _key(line, "name"), _time_ns(line)
        arguments = [self._known(argument) for argument in _key(line, "args")]
        results = []
        for result in _key(line, "result"):
            size_bytes = self._described("MEMORY", result, announced, 0, MAX_TOTAL_BYTES)
            results.append((result, size_bytes, self._described("ALIAS", result, announced, _NEW, len(arguments) - 1)))
        is_view = bool(results) and all(alias != _NEW for _, _, alias in results)
        operator = self._run(name, time_ns, arguments, is_view=is_view)
        for result, size_bytes, alias in results:
            if alias == _NEW:
                self.born.append(_Storage(Lifetime(operator + 1, operator, "", size_bytes)))
            self._bind(result, self.born[-1] if alias == _NEW else arguments[alias])

    def _described(self, instruction: str, name: str, announced: int, least: int, most: int) -> int:
        """Return what the next line, which has to be `instruction`, says about a name that line `announced` makes."""
        self._number, line = next(self._instructions, (self._number, None))
        if line is None:
            raise InputError(f"the log ends before the {instruction} of '{name[:40]}': it is torn, copy it again")
        if (line.instruction, line.name) != (instruction, name):
            raise InputError(f"{instruction} of '{name[:40]}' has to stand here, which line {announced} makes")
        return _whole(_key(line, instruction.lower()), instruction, least, most)

    def _mutate(self, line: _Line) -> None:
        arguments = [self._known(argument) for argument in _key(line, "args")]
        indices = [_whole(index, "an index of MUTATE", 0, len(arguments) - 1) for index in _key(line, "mutate")]
        operator = self._run(_key(line, "name"), _time_ns(line), arguments, is_view=False)
        for index in indices:
            note(arguments[index].lifetime.writers, operator)
        if self.n_forward:
            self.n_constant_writers += any(arguments[index].lifetime.operator is None for index in indices)

    def _run(self, name: str, time_ns: int, arguments: Sequence[_Storage], *, is_view: bool) -> int:
        """Append an operator; return its index."""
        operator = len(self.calls)
        self.calls.append(_Call(name, time_ns, is_view))
        if not is_view:
            for storage in arguments:
                note(storage.lifetime.readers, operator)
        return operator

    def _known(self, name: str) -> _Storage:
        if name not in self._names:
            raise InputError(f"names '{name[:40]}', which no earlier line makes, or which one has released")
        return self._names[name]

    def _bind(self, name: str, storage: _Storage) -> None:
        if name in self._names:
            raise InputError(f"makes '{name[:40]}', which exists already and was not released")
        self._names[name] = storage
        storage.n_names += 1

    def _unbind(self, name: str) -> None:
        storage = self._names.pop(name, None)
        if storage is not None:  # else it was made before the log was switched on
            storage.n_names -= 1
            storage.freed_before = None if storage.n_names else len(self.calls)


def looks_like_dtr(start: bytes) -> bool:
    """Whether the start of an unpacked file is that of a DTR log: JSON objects with an instruction of its language."""
    return start.lstrip()[:1] == b"{" and bool(_START.search(start))


def import_dtr(file: TraceFile | Path | str, *, link: Link) -> Problem:
    """Derive a problem from a DTR log; of several steps, each begun by ``ANNOTATE START``, from the last.

    Parameters
    ----------
    file : plain, gzip, or in a tar archive; it is read line by line
    link : the host link; the log says nothing about one

    Returns
    -------
    Problem
        One operator per CALL and MUTATE, one tensor per storage. Views take time and move no bytes.

    Raises
    ------
    InputError
        The file cannot be read or is torn, a line is malformed or names what does not exist, or there is not exactly one
        annotation BACKWARD: with the file and the line.
    """
    trace = as_trace_file(file)
    log = _Log(_instructions(trace))
    try:
        log.follow()
        return _problem(trace.name, log, link)
    except InputError as error:
        raise error.within(trace.source) from None


def _instructions(trace: TraceFile) -> Iterator[tuple[int, _Line]]:
    """Yield the instructions and their lines."""
    for number, line in enumerate(_lines(trace), 1):
        if line.strip():
            yield number, _decode(line, number)


def _lines(trace: TraceFile) -> Iterator[bytes]:
    """Yield line after line with its end; only the last one may have none."""
    rest = b""
    for chunk in trace.chunks():
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line + b"\n" for line in lines)
        if len(rest) > _MAX_LINE_BYTES:
            raise InputError(f"the line after this one has more than {_MAX_LINE_BYTES} bytes: this is no DTR log")
    yield rest


def _decode(line: bytes, number: int) -> _Line:
    place = f"line {number}"
    try:
        return _DECODER.decode(line)
    except msgspec.ValidationError as error:
        raise InputError(f"is no instruction of a DTR log: {error}", place=place) from None
    except (msgspec.DecodeError, RecursionError) as error:
        if not line.endswith(b"\n"):
            raise InputError("is torn: the file ends within its JSON; copy it again", place=place) from None
        raise InputError(f"is not valid JSON: {error}", place=place) from None


def _key(line: _Line, key: str) -> Any:
    value = getattr(line, key)
    if value is None:
        raise InputError(f"{line.instruction} has no {key.upper()}")
    return value


def _whole(value: _Number, what: str, least: int, most: int) -> int:
    """Return a number that is whole and in range; most are strings."""
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    if not _WHOLE.fullmatch(text) or not least <= int(text) <= most:
        raise InputError(f"{what} is a whole number from {least} to {most}, not '{text[:40]}'")
    return int(text)


def _time_ns(line: _Line) -> int:
    return _whole(_key(line, "time"), "a time in nanoseconds", 0, 10**18)


def _problem(file_name: str, log: _Log, link: Link) -> Problem:
    n, n_forward = len(log.calls), log.n_forward
    tensors, temporaries, gradients = list[Lifetime](), list[Lifetime](), list[Lifetime]()
    for storage in log.born:
        lifetime, freed_before = storage.lifetime, storage.freed_before
        if lifetime.later_users and (lifetime.bytes or is_saved(lifetime, n_forward)):
            tensors.append(lifetime)
        elif (lifetime.operator or 0) >= n_forward and (freed_before is None or freed_before >= n):
            gradients.append(lifetime)
        else:
            temporaries.append(lifetime)
    calls = [TimedCall(f"{call.name}.{i}", call.name, call.time_ns / 1e9) for i, call in enumerate(log.calls)]
    operators, records = problem_records(calls, n_forward, tensors, temporaries)
    problem = Problem.from_records(re.sub(r"(\.log|\.jsonl?)?(\.gz)?$", "", file_name), operators, records, link)
    metadata = {
        "source": f"{file_name}, a DTR log",
        "heuristics": _heuristics(log, [lifetime for lifetime in tensors if is_saved(lifetime, n_forward)]),
        "left_out": _left_out(log, gradients),
        KEY: _derivation(log, problem).as_metadata(),
    }
    return replace(problem, metadata=metadata)


def _derivation(log: _Log, problem: Problem) -> Derivation:
    n, n_saved, dropped, warnings = problem.n_operators, int(problem.saved.sum()), [], []
    if log.n_earlier:
        dropped.append(Dropped("operators before the last START", log.n_earlier, log.earlier_ns / 1e9))
    if log.n_constant_writers:
        warnings.append(
            f"{log.n_constant_writers} operators after BACKWARD change constants in place: the log does not say where the"
            " backward pass ends, so an optimizer step counts as backward."
        )
    return Derivation(
        kind="DTR log",
        facts={
            "order": exact(n, "The order of the CALL and MUTATE lines, split at the annotation BACKWARD."),
            "times": exact(n, "TIME of each CALL and MUTATE, host time in nanoseconds."),
            "sizes": exact(n_saved, "MEMORY of each result that is a new storage."),
            "producers": exact(n_saved, "The CALL whose result is a new storage."),
            "readers": exact(n_saved, "ARGS of each CALL and MUTATE, but for views."),
            "first backward use": exact(n_saved, "The first of the readers after the annotation BACKWARD."),
            "rebuild costs": rebuild_costs(problem, "TIME of the operators that make a storage and what they need."),
        },
        dropped=dropped,
        warnings=warnings,
    )


def _heuristics(log: _Log, saved: Sequence[Lifetime]) -> list[str]:
    views_ns = [call.time_ns for call in log.calls if call.is_view]
    n_overwritten = sum(bool(lifetime.writers) for lifetime in saved)
    n_random = sum(is_random(f"aten::{log.calls[lifetime.operator or 0].name}") for lifetime in saved)
    sentences = [
        "TIME is host time, which is an operator's own time if every call waits for the GPU (CUDA_LAUNCH_BLOCKING=1; the log"
        " does not say): launch overhead is included, so small operators are too slow.",
        "TIME of MUTATE includes a copy of what it changes, since DTR changes copies.",
        "Saved tensors are storages made before BACKWARD and read by an operator after it; views are not reads.",
        f"Views take their time, but make, move and rebuild no bytes: {len(views_ns)} operators, {sum(views_ns) / 1e6:.3f} ms.",
        "A rebuild repeats the operator that made a storage, its in-place writers before BACKWARD, and what makes the unsaved"
        " temporaries that these read.",
        "Temporaries and gradients last until their last use, not until their RELEASE.",
        "No blocks: the log does not number the repeated parts of the model.",
    ]
    if n_overwritten:
        sentences.append(
            f"{n_overwritten} saved tensors are changed in place after their producer: the writer is a reader."
        )
    if n_random:
        sentences.append(f"{n_random} saved tensors are random: a rebuild assumes that the generator's state is kept.")
    return sentences


def _left_out(log: _Log, gradients: Sequence[Lifetime]) -> list[str]:
    read = [storage.lifetime for storage in log.constants if storage.lifetime.readers]
    return [
        "GPU, batch size and model are not in the log; neither are workspaces inside of an operator.",
        f"Constants (weights, batch, what existed before): {len(read)} storages ({_mb(read)}) that stay on the device.",
        f"Weight gradients, made after BACKWARD and alive at the end: {len(gradients)} storages ({_mb(gradients)}).",
    ]


def _mb(lifetimes: Sequence[Lifetime]) -> str:
    return f"{sum(lifetime.bytes for lifetime in lifetimes) / 1e6:.3f} MB"
