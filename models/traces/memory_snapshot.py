"""CUDA memory snapshots: the bytes that a training step has saved when its backward pass begins.

A snapshot (the pickle that ``torch.cuda.memory._dump_snapshot`` writes) has no operator times, so no problem comes from
it; it says what A is on the device. Nothing in the pickle is executed: it holds containers, numbers and strings only, and
every class in it is refused before it is looked up.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NoReturn

from slackswap.hardware.input_error import InputError
from slackswap.models.traces.trace_file import TraceFile, as_trace_file

_RECORD = (
    'record one training step after warm-up between torch.cuda.memory._record_memory_history(stacks="all") and'
    " torch.cuda.memory._dump_snapshot"
)
_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_KEYS = (b"device_traces", b"segments", b"allocator_settings", b"external_annotations")

# A pickle takes about ten times its size in memory; these bound what a small file can claim.
_MAX_PICKLE_BYTES = 512 << 20
_MAX_CONTAINERS = 1 << 25
_MAX_STRINGS = 1 << 23
# Addresses take nine bytes; any amount of longer numbers can share one hash, and a dictionary of them takes forever.
_MAX_NUMBER_BYTES = 9
# Hashing a tuple of tuples recurses in C without a check: a hundred thousand levels are a segmentation fault.
_MAX_TUPLES = 1000
# Opcodes of fixed length that containers, numbers, pairs of small numbers and the memo need; a memo index is below 2^24.
_PLAIN_OPCODES = re.compile(
    rb"(?:[(}\])suaeN\x88\x89\x94]|[hq].|K.K.\x86|K.|M..|[Jj]....|r...\0|[G\x95].{8})*+", re.DOTALL
)
_TUPLES = frozenset(b"t\x85\x86\x87")
# Opcodes followed by a length and that many bytes: strings, and numbers of more than four bytes.
_LONG1, _STOP = 0x8A, ord(".")
_LENGTH_BYTES = {0x8C: 1, ord("X"): 4, _LONG1: 1}
# GLOBAL, INST, STACK_GLOBAL, PERSID, BINPERSID: the unpickler gets as far, refuses, and knows the name.
_NAMED_CLASSES = frozenset(b"ci\x93PQ")

_CPP = "::"
_ENGINE = "torch::autograd::Engine"
_AUTOCAST = "at::autocast"
_OPTIMIZER_FILE = re.compile(r"(?:/optim(?:izers?)?/|optim)[^/]*$")
_AUTOGRAD_FILE, _CHECKPOINT_FILE = "torch/autograd/__init__.py", "torch/utils/checkpoint.py"
_IN_USE = ("active_allocated", "active_pending_free", "active_awaiting_free")
# Frames of a training step that run inside of an optimizer's step: it was given a closure.
_CLOSURES = frozenset({"closure", "training_step"})


class _Phase(Enum):
    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 3
    OTHER = 4


@dataclass(frozen=True, slots=True)
class Blocks:
    """Number and size of some of the allocator's blocks, in bytes as requested, before the allocator rounds them."""

    count: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """What one device's events say about the last backward pass.

    Attributes
    ----------
    saved : blocks allocated in the forward pass and alive at the first allocation of the backward pass
    outside_forward : those of them allocated outside of any ``forward``: the loss
    never_freed : those of them that the events do not free
    autocast : those of them that autocast allocated, for weights or activations
    pass_bytes : saved bytes of every backward pass of the device, in their order
    device : number of the device; `device_bytes` has the saved bytes of every device with a backward pass
    n_events : events of the device
    n_unmatched_frees : frees of blocks that no event allocated: they are older than the events
    n_lost : blocks in use that were allocated while recording, but not in any event
    """

    saved: Blocks
    outside_forward: Blocks
    never_freed: Blocks
    autocast: Blocks
    pass_bytes: tuple[int, ...]
    device: int
    device_bytes: dict[int, int]
    n_events: int
    n_unmatched_frees: int
    n_lost: int

    @property
    def ring_buffer_full(self) -> bool | None:
        """Whether the oldest events were dropped; None where only a round number of events hints at it."""
        is_round = self.n_events >= 1000 and (self.n_events % 1000 == 0 or self.n_events.bit_count() == 1)
        return True if self.n_lost else None if is_round else False


def looks_like_memory_snapshot(start: bytes) -> bool:
    """Whether a file that starts with these bytes is a pickle with the keys of a snapshot."""
    return _PICKLE.match(start) is not None and any(key in start for key in _KEYS)


def read_memory_snapshot(file: TraceFile | Path | str) -> MemorySnapshot:
    """Measure the saved bytes of the last backward pass, on the device that has most of them.

    Parameters
    ----------
    file : pickle of ``torch.cuda.memory._dump_snapshot``, gzip or not, of at most 512 MiB unpacked

    Raises
    ------
    InputError
        The file is torn, is no snapshot, names a class (which is never looked up), is larger than the limits allow, or
        its events have no stacks, no forward or no backward pass.
    """
    file = as_trace_file(file)
    try:
        return _measured(_unpickle(_content(file)))
    except InputError as error:
        raise error.within(file.source) from None


class _PlainUnpickler(pickle.Unpickler):
    """Unpickles containers, numbers and strings; refuses whatever would have to be looked up."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise InputError(
            f"names the class or function {_shown(f'{module}.{name}')}: classes are never unpacked; a snapshot has none"
        )

    def persistent_load(self, pid: object) -> NoReturn:
        raise InputError(f"has a persistent id ({type(pid).__name__}): these are never looked up; a snapshot has none")


def _content(file: TraceFile) -> bytes:
    chunks, size_bytes = [], 0
    for chunk in file.chunks():
        chunks.append(chunk)
        size_bytes += len(chunk)
        if size_bytes > _MAX_PICKLE_BYTES:
            raise InputError(f"has more than {_MAX_PICKLE_BYTES >> 20} MiB of pickle: {_RECORD}")
    return b"".join(chunks)


def _unpickle(content: bytes) -> object:
    """Unpickle what `_check_opcodes` let through, up to the first class."""
    _check_opcodes(content)
    try:
        return _PlainUnpickler(io.BytesIO(content)).load()
    except InputError:
        raise
    except (
        *(pickle.UnpicklingError, EOFError, ValueError, TypeError, KeyError, IndexError, AttributeError),
        *(OverflowError, MemoryError, RecursionError),
    ) as error:
        raise InputError(f"is a torn or corrupt pickle: {_shown(str(error))}") from None


def _check_opcodes(content: bytes) -> None:
    """Walk the opcodes without building anything, and refuse what the unpickler must not meet.

    Lengths and memo indices can claim memory that the file does not have, and deep tuples can overflow the C stack.
    """
    if _PICKLE.match(content) is None:
        raise InputError("is not a pickle of protocol 2 to 5")
    if sum(content.count(opcode) for opcode in b"}]t\x85\x86\x87") > _MAX_CONTAINERS:
        raise InputError(f"has more than {_MAX_CONTAINERS} containers: {_RECORD}")
    position, n_strings, n_tuples = 2, 0, 0
    while True:
        plain = _PLAIN_OPCODES.match(content, position)
        position = plain.end() if plain else position
        if position >= len(content):
            raise InputError(f"is a torn pickle: it ends at offset {len(content)}")
        opcode = content[position]
        if opcode == _STOP or opcode in _NAMED_CLASSES:
            return
        if opcode in _TUPLES:
            n_tuples, position = n_tuples + 1, position + 1
        else:
            n_strings, position = n_strings + 1, _end_of_counted(content, position)
        if n_tuples > _MAX_TUPLES or n_strings > _MAX_STRINGS:
            raise InputError(f"has more than {_MAX_STRINGS} strings or {_MAX_TUPLES} tuples: no snapshot has")


def _end_of_counted(content: bytes, position: int) -> int:
    """Return where a string or number ends that starts with its length."""
    opcode = content[position]
    start = position + 1 + _LENGTH_BYTES.get(opcode, 0)
    length = int.from_bytes(content[position + 1 : start], "little")
    if opcode not in _LENGTH_BYTES or (opcode == _LONG1 and length > _MAX_NUMBER_BYTES):
        raise InputError(f"has pickle opcode 0x{opcode:02x} at offset {position}, or a torn one: no snapshot has it")
    return start + length


@dataclass(slots=True)
class _Block:
    size_bytes: int
    is_outside: bool
    is_cast: bool
    freed: bool = False


class _Stacks:
    """Tells phases from call stacks; one that many events share is read once, or small files could name endless work."""

    def __init__(self, events: list[Any], place: str) -> None:
        stacks: dict[int, list[tuple[str, str]]] = {}
        for i, event in enumerate(events):
            if not isinstance(event, dict):
                raise InputError("is an event", place=f"{place}[{i}]")
            frames = event.get("frames")
            if event.get("action") == "alloc" and frames is not None and id(frames) not in stacks:
                stacks[id(frames)] = list(_frames(frames, f"{place}[{i}].frames"))
        self._has_cpp = any(_CPP in name for stack in stacks.values() for name, _ in stack)
        self._roles: dict[tuple[str, str], _Phase | None] = {}
        self._phases = {key: self._phase(stack) for key, stack in stacks.items()}
        self._cast = {key for key, stack in stacks.items() if any(_AUTOCAST in name for name, _ in stack)}

    def phase(self, event: dict[str, Any]) -> _Phase:
        return self._phases.get(id(event.get("frames")), _Phase.OTHER)

    def is_cast(self, event: dict[str, Any]) -> bool:
        return id(event.get("frames")) in self._cast

    def _phase(self, frames: list[tuple[str, str]]) -> _Phase:
        innermost = None
        for frame in frames:
            if frame not in self._roles:
                self._roles[frame] = self._role(*frame)
            role = self._roles[frame]
            if role is _Phase.BACKWARD:  # also around a forward: recomputation
                return role
            # A closure's forward lies inside of the optimizer's step.
            innermost = innermost or role
        return innermost or _Phase.OTHER

    def _role(self, name: str, file: str) -> _Phase | None:
        file = file.replace("\\", "/")
        # The root gradient is allocated before the engine runs; checkpoints recompute where no Python frame says backward.
        is_torch_backward = file.endswith(_AUTOGRAD_FILE) or (name == "unpack_hook" and file.endswith(_CHECKPOINT_FILE))
        if _ENGINE in name or is_torch_backward or (name == "backward" and not self._has_cpp):
            return _Phase.BACKWARD
        if name == "step" and _OPTIMIZER_FILE.search(file):
            return _Phase.OPTIMIZER
        if name == "forward":
            return _Phase.FORWARD
        return _Phase.OTHER if name in _CLOSURES else None


class _Replay:
    """Replays the events of one device: what is alive, and what was saved whenever a backward pass began."""

    def __init__(self) -> None:
        self.alive: dict[int, _Block] = {}
        self.saved: list[list[_Block]] = []  # by backward pass
        self.phases: set[_Phase] = set()
        self.n_unmatched_frees = 0
        self._born: dict[int, _Block] = {}  # in the forward pass that is open, and alive
        self._is_open = False

    def allocate(self, address: int, size_bytes: int, phase: _Phase, is_cast: bool) -> None:
        self.phases.add(phase)
        if phase is _Phase.BACKWARD and self._is_open:
            self.saved.append(list(self._born.values()))
            self._is_open = False
        elif phase is _Phase.FORWARD and not self._is_open:
            self._born.clear()
            self._is_open = True
        self._release(address)  # of a block whose free is missing
        block = self.alive[address] = _Block(size_bytes, phase is not _Phase.FORWARD, is_cast)
        # The loss is allocated between the model's forward and the backward pass: not everything saved has a `forward`.
        if self._is_open and phase is not _Phase.OPTIMIZER:
            self._born[address] = block

    def free(self, address: int) -> None:
        self.n_unmatched_frees += not self._release(address)

    def _release(self, address: int) -> bool:
        block = self.alive.pop(address, None)
        if block is not None:
            block.freed = True
            self._born.pop(address, None)
        return block is not None


def _measured(snapshot: object) -> MemorySnapshot:
    traces = snapshot.get("device_traces") if isinstance(snapshot, dict) else None
    if not isinstance(snapshot, dict) or not isinstance(traces, list):
        raise InputError(f"has no list of device_traces, so it is no memory snapshot: {_RECORD}", place="$")
    distinct = {id(trace): device for device, trace in enumerate(traces) if trace}
    replays = {device: _replay(traces[device], f"$.device_traces[{device}]") for device in distinct.values()}
    device_bytes = {device: _sum(replay.saved[-1]).size_bytes for device, replay in replays.items() if replay.saved}
    if not device_bytes:
        phases = {phase for replay in replays.values() for phase in replay.phases}
        raise InputError(f"{_why_nothing_is_saved(phases)}: {_RECORD}", place="$.device_traces")
    device = max(device_bytes, key=lambda number: device_bytes[number])
    replay = replays[device]
    saved = replay.saved[-1]
    return MemorySnapshot(
        saved=_sum(saved),
        outside_forward=_sum(block for block in saved if block.is_outside),
        never_freed=_sum(block for block in saved if not block.freed),
        autocast=_sum(block for block in saved if block.is_cast),
        pass_bytes=tuple(_sum(blocks).size_bytes for blocks in replay.saved),
        device=device,
        device_bytes=device_bytes,
        n_events=len(traces[device]),
        n_unmatched_frees=replay.n_unmatched_frees,
        n_lost=_n_lost(snapshot.get("segments"), device, replay),
    )


def _replay(events: object, place: str) -> _Replay:
    if not isinstance(events, list):
        raise InputError("is a list of events", place=place)
    stacks, replay = _Stacks(events, place), _Replay()
    for i, event in enumerate(events):
        action = event.get("action")
        # A free is recorded when it is asked for and when it happens; the block is in use until then.
        if action == "alloc":
            address, size_bytes = (_whole(event, key, f"{place}[{i}]") for key in ("addr", "size"))
            replay.allocate(address, size_bytes, stacks.phase(event), stacks.is_cast(event))
        elif action == "free_completed":
            replay.free(_whole(event, "addr", f"{place}[{i}]"))
    return replay


def _frames(frames: object, place: str) -> Iterator[tuple[str, str]]:
    """Yield name and file of each frame, innermost first."""
    if not isinstance(frames, list):
        raise InputError("is a list of frames", place=place)
    for i, frame in enumerate(frames):
        name, file = (frame.get("name"), frame.get("filename")) if isinstance(frame, dict) else (None, None)
        if not (isinstance(name, str) and isinstance(file, str)):
            raise InputError("is a frame with a name and a filename", place=f"{place}[{i}]")
        yield name, file


def _whole(event: dict[str, Any], key: str, place: str) -> int:
    value = event.get(key)
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise InputError("is a whole number below 2^64", place=f"{place}.{key}")
    return value


def _why_nothing_is_saved(phases: set[_Phase]) -> str:
    if not phases:
        return "has no allocations"
    if phases == {_Phase.OTHER}:
        return "has no stacks that tell forward from backward"
    if _Phase.FORWARD not in phases:
        return "has no allocation in a module's forward"
    return "has no backward pass after a forward pass"


def _n_lost(segments: object, device: int, replay: _Replay) -> int:
    """Count blocks in use whose stack was recorded, but whose allocation is no event any more."""
    here = (
        [s for s in segments if isinstance(s, dict) and s.get("device") == device] if isinstance(segments, list) else []
    )
    distinct = {id(segment.get("blocks")): segment for segment in here}  # as for stacks
    return sum(
        block.get("state") in _IN_USE and bool(block.get("frames")) and address not in replay.alive
        for segment in distinct.values()
        for address, block in _blocks(segment)
    )


def _blocks(segment: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the blocks of a segment with their addresses: they lie one after the other."""
    address, blocks = segment.get("address"), segment.get("blocks")
    if not isinstance(address, int) or not isinstance(blocks, list):
        return
    for block in blocks:
        if not isinstance(block, dict) or not isinstance(block.get("size"), int):
            return
        yield address, block
        address += block["size"]


def _sum(blocks: Iterable[_Block]) -> Blocks:
    sizes_bytes = [block.size_bytes for block in blocks]
    return Blocks(len(sizes_bytes), sum(sizes_bytes))


def _shown(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text[:120])
