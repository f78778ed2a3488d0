"""CUDA memory snapshots: what is saved when the backward pass begins, and pickles that would run code."""

from __future__ import annotations

import collections
import gzip
import io
import os
import pickle
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shared_data import shared_file

from slackswap.hardware.input_error import InputError
from slackswap.models.traces.memory_snapshot import (
    Blocks,
    MemorySnapshot,
    looks_like_memory_snapshot,
    read_memory_snapshot,
)

Stack = list[tuple[str, str]]
MODULE = "slackswap.models.traces.memory_snapshot"

# Call stacks, innermost first, as PyTorch records them with stacks="all".
MAIN = [("<module>", "train.py")]
FORWARD = [("at::empty_cuda", "??"), ("forward", "model.py"), ("_call_impl", "torch/nn/modules/module.py"), *MAIN]
LOSS = [("at::empty_cuda", "??"), ("cross_entropy", "train.py"), *MAIN]
ROOT_GRADIENT = [("at::empty_cuda", "??"), ("_make_grads", "/lib/torch/autograd/__init__.py"), *MAIN]
ENGINE = [("at::empty_cuda", "??"), ("torch::autograd::Engine::thread_main(int)", "??")]
OPTIMIZER = [("at::empty_cuda", "??"), ("step", "/lib/my/optimizer.py"), *MAIN]


def without_cpp(stack: Stack) -> Stack:
    return [(name, file) for name, file in stack if "::" not in name]


def alloc(address: int, size: int, stack: Stack = FORWARD) -> dict[str, Any]:
    frames = [{"name": name, "filename": file, "line": 1} for name, file in stack]
    return {"action": "alloc", "addr": address, "size": size, "stream": 0, "time_us": 1, "frames": frames}


def free(address: int, size: int = 0) -> list[dict[str, Any]]:
    """Both events of a free: asked for, and done."""
    return [
        {"action": action, "addr": address, "size": size, "stream": 0, "time_us": 1, "frames": []}
        for action in ("free_requested", "free_completed")
    ]


def snapshot_of(*traces: list[dict[str, Any]], segments: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {"segments": segments or [], "device_traces": list(traces), "allocator_settings": {}}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "snapshot.pickle"


def measured(file: Path, snapshot: object, protocol: int = 4) -> MemorySnapshot:
    file.write_bytes(pickle.dumps(snapshot, protocol))
    return read_memory_snapshot(file)


def refusal(file: Path, content: bytes) -> str:
    file.write_bytes(content)
    with pytest.raises(InputError) as refused:
        read_memory_snapshot(file)
    assert refused.value.source == str(file)
    assert "\n" not in str(refused.value)
    return f"{refused.value.place}: {refused.value.rule}".removeprefix(": ")


# One step. Saved: a (100), d (400) and the loss e (50): allocated from the first `forward` on, and alive at the root
# gradient. Not: w, older than the forward pass; b, freed in it; g, of the backward pass; the optimizer's state o.
STEP = [
    alloc(1, 7000, MAIN),  # w: the batch, copied before the model runs
    alloc(2, 100),  # a
    alloc(3, 200),  # b
    *free(3),
    alloc(3, 400),  # d, where b was
    alloc(4, 50, LOSS),  # e
    alloc(5, 4, ROOT_GRADIENT),
    alloc(6, 300, ENGINE),  # g
    *free(2),
    *free(3),
    alloc(7, 900, OPTIMIZER),  # o
]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_one_step(file: Path, protocol: int) -> None:
    assert measured(file, snapshot_of(STEP), protocol) == MemorySnapshot(
        saved=Blocks(3, 550),
        outside_forward=Blocks(1, 50),
        never_freed=Blocks(1, 50),
        autocast=Blocks(0, 0),
        pass_bytes=(550,),
        device=0,
        device_bytes={0: 550},
        n_events=14,
        n_unmatched_frees=0,
        n_lost=0,
    )


def test_gzip(file: Path) -> None:
    file.write_bytes(gzip.compress(pickle.dumps(snapshot_of(STEP))))
    assert read_memory_snapshot(file).saved == Blocks(3, 550)


def test_a_block_is_in_use_until_its_free_is_completed(file: Path) -> None:
    # 2 is asked to be freed in the forward pass, but another stream still uses it when the backward pass begins.
    requested, completed = free(2)
    events = [alloc(2, 100), requested, alloc(3, 10), alloc(4, 1, ENGINE), completed]
    assert measured(file, snapshot_of([events[0], completed, *events[1:]])).saved == Blocks(1, 10)
    assert measured(file, snapshot_of(events)).saved == Blocks(2, 110)


def test_both_frees_are_one_free(file: Path) -> None:
    # Counted twice, the second half of the first free of address 2 would free the block that is there next.
    events = [alloc(2, 100), free(2)[0], free(2)[1], alloc(2, 30), alloc(4, 1, ENGINE)]
    measurement = measured(file, snapshot_of(events))
    assert measurement.saved == Blocks(1, 30)
    assert measurement.n_unmatched_frees == 0


def test_a_reused_address_is_another_block(file: Path) -> None:
    # The block of 100 is freed before the backward pass, that of 30 at the same address is alive and never freed.
    # In the backward pass, 3 is freed, and its address reused by what is no saved block.
    events = [alloc(2, 100), *free(2), alloc(2, 30), alloc(3, 5), alloc(4, 1, ENGINE), *free(3), alloc(3, 70, ENGINE)]
    measurement = measured(file, snapshot_of(events))
    assert (measurement.saved, measurement.never_freed) == (Blocks(2, 35), Blocks(1, 30))


def test_an_address_in_use_that_is_allocated_again_lost_its_free(file: Path) -> None:
    events = [alloc(2, 100), alloc(2, 30), alloc(4, 1, ENGINE), alloc(2, 7, ENGINE)]
    measurement = measured(file, snapshot_of(events))
    assert (measurement.saved, measurement.never_freed) == (Blocks(1, 30), Blocks(0, 0))


def test_frees_without_an_allocation_are_counted(file: Path) -> None:
    # 8 is older than the events. The second free of 2 has nothing to free either.
    events = [*free(8), alloc(2, 100), *free(2), *free(2), alloc(3, 30), alloc(4, 1, ENGINE)]
    measurement = measured(file, snapshot_of(events))
    assert (measurement.saved, measurement.n_unmatched_frees) == (Blocks(1, 30), 2)


def test_other_actions_do_not_count(file: Path) -> None:
    others: list[dict[str, Any]] = [
        {"action": action, "addr": 2, "size": 1 << 20, "frames": []}
        for action in ("segment_alloc", "segment_free", "segment_map", "snapshot", "user_defined")
    ]
    events = [alloc(2, 100), *others, {"action": "oom", "size": 5, "device_free": 3}, alloc(4, 1, ENGINE)]
    assert measured(file, snapshot_of(events)).saved == Blocks(1, 100)


# --- Phases ---


def test_recomputation_inside_of_backward_is_backward(file: Path) -> None:
    # A checkpointed forward runs under the engine: it begins no forward pass, and 30 is not saved.
    recomputed = [*FORWARD[:-1], *ENGINE]
    events = [alloc(2, 100), alloc(3, 1, ENGINE), alloc(4, 30, recomputed), alloc(5, 1, ENGINE)]
    assert measured(file, snapshot_of(events)).pass_bytes == (100,)


def test_recomputation_is_backward_without_cpp_frames_as_well(file: Path) -> None:
    # The engine's thread has Python frames from the hook on, and no `backward` among them.
    hook = ("unpack_hook", "C:\\lib\\torch\\utils\\checkpoint.py")
    backward = [("backward", "torch/_tensor.py"), *MAIN]
    events = [
        alloc(2, 100, without_cpp(FORWARD)),
        alloc(3, 1, backward),
        alloc(4, 30, [("forward", "model.py"), ("recompute_fn", "torch/utils/checkpoint.py"), hook]),
        alloc(5, 1, [("backward", "custom.py")]),
    ]
    assert measured(file, snapshot_of(events)).pass_bytes == (100,)


def test_python_backward_counts_only_without_cpp_frames(file: Path) -> None:
    # A trainer's method `backward` computes the loss before it starts the engine: 50 is saved where the engine shows.
    wrapper = [("loss", "train.py"), ("backward", "trainer.py"), *MAIN]
    events = [alloc(2, 100), alloc(3, 50, wrapper), alloc(4, 1, ENGINE)]
    assert measured(file, snapshot_of(events)).saved == Blocks(2, 150)
    python = [alloc(2, 100, without_cpp(FORWARD)), alloc(3, 50, wrapper)]
    assert measured(file, snapshot_of(python)).saved == Blocks(1, 100)


def test_root_gradient_begins_the_backward_pass(file: Path) -> None:
    # It is allocated before the engine runs. 30 is freed between the two; 1 is not saved.
    events = [alloc(2, 100), alloc(3, 30), alloc(4, 1, ROOT_GRADIENT), *free(3), alloc(5, 1, ENGINE)]
    assert measured(file, snapshot_of(events)).saved == Blocks(2, 130)


@pytest.mark.parametrize(
    "where", ["/lib/my/optimizer.py", "/lib/torch/optim/adamw.py", "C:\\apex\\optimizers\\fused_adam.py"]
)
def test_the_optimizer_saves_nothing(file: Path, where: str) -> None:
    # An optimizer between forward and backward passes: its 900 are not saved.
    events = [alloc(2, 100), alloc(3, 900, [("step", where), *MAIN]), alloc(4, 1, ENGINE)]
    assert measured(file, snapshot_of(events)).saved == Blocks(1, 100)


def test_a_step_that_is_no_optimizers(file: Path) -> None:
    events = [alloc(2, 100), alloc(3, 9, [("step", "/optim-study/train.py"), *MAIN]), alloc(4, 1, ENGINE)]
    assert measured(file, snapshot_of(events)).saved == Blocks(2, 109)


def test_a_closure_runs_the_forward_pass_inside_of_the_optimizers_step(file: Path) -> None:
    # As trainers call it: step(closure) runs the model, the loss (in training_step) and the backward pass.
    step = [("closure", "trainer.py"), ("step", "/lib/torch/optim/adamw.py"), *MAIN]
    events = [
        alloc(2, 100, [("forward", "model.py"), ("training_step", "model.py"), *step]),
        alloc(3, 50, [("training_step", "model.py"), *step]),
        alloc(4, 1, [*ENGINE, *step]),
    ]
    assert measured(file, snapshot_of(events)).saved == Blocks(2, 150)


def test_autocast_copies_are_counted_apart(file: Path) -> None:
    cast = [("at::autocast::cached_cast(c10::ScalarType, at::Tensor const&)", "??"), *FORWARD]
    events = [alloc(2, 100), alloc(3, 60, cast), alloc(4, 1, ENGINE)]
    measurement = measured(file, snapshot_of(events))
    assert (measurement.saved, measurement.autocast) == (Blocks(2, 160), Blocks(1, 60))


def test_several_steps(file: Path) -> None:
    # The first step also allocates a workspace of 1000 in forward, which stays. The last step is measured: 20 and 5; the
    # logits of the step before (30), which a Python name still holds, are not its.
    steps = [
        *(alloc(1, 1000), alloc(2, 100), alloc(3, 1, ENGINE), *free(2), *free(3)),
        *(alloc(2, 100), alloc(5, 30), alloc(3, 1, ENGINE), *free(2), *free(3), alloc(9, 8, OPTIMIZER)),
        *(alloc(2, 20), alloc(6, 5), alloc(3, 1, ENGINE), alloc(7, 3, ENGINE)),
    ]
    measurement = measured(file, snapshot_of(steps))
    assert measurement.pass_bytes == (1100, 130, 25)
    assert measurement.saved == Blocks(2, 25)


def test_a_forward_pass_without_its_backward_does_not_count(file: Path) -> None:
    # Out of memory in the second forward pass.
    events = [alloc(2, 100), alloc(3, 1, ENGINE), *free(2), alloc(2, 70)]
    assert measured(file, snapshot_of(events)).pass_bytes == (100,)


def test_several_devices(file: Path) -> None:
    other = [alloc(2, 700), alloc(3, 1, ENGINE)]
    measurement = measured(file, snapshot_of(STEP, other, [], [alloc(2, 9000)]))
    assert (measurement.device, measurement.saved, measurement.n_events) == (1, Blocks(1, 700), 2)
    assert measurement.device_bytes == {0: 550, 1: 700}  # the last one has no backward pass


# --- The ring buffer ---


def segment(device: int, address: int, *blocks: tuple[int, str, bool]) -> dict[str, Any]:
    """A segment whose blocks are (size, state, whether the stack was recorded)."""
    return {
        "device": device,
        "address": address,
        "blocks": [{"size": size, "state": state, "frames": [{}] * framed} for size, state, framed in blocks],
    }


def test_events_lost_to_a_full_ring_buffer(file: Path) -> None:
    # At the end of STEP, 1, 4, 5, 6 and 7 are in use. The block at 8 has a stack but no event: its event was dropped. The
    # one at 10 has no stack: it is older than the recording. 12 is not in use; device 1 is not measured.
    in_use = "active_allocated"
    here = segment(0, 4, (4, in_use, True), (2, in_use, True), (2, in_use, False), (1, "inactive", True))
    measurement = measured(file, snapshot_of(STEP, segments=[here, segment(1, 20, (1, in_use, True))]))
    assert (measurement.n_lost, measurement.ring_buffer_full) == (1, True)
    healthy = segment(0, 4, (1, in_use, True), (1, in_use, True), (2, in_use, True))
    measurement = measured(file, snapshot_of(STEP, segments=[healthy]))
    assert (measurement.n_lost, measurement.ring_buffer_full) == (0, False)


@pytest.mark.parametrize(("n_events", "full"), [(2000, None), (1024, None), (1999, False), (512, False)])
def test_a_round_number_of_events_may_be_a_full_ring_buffer(file: Path, n_events: int, full: bool | None) -> None:
    events = [*STEP, *free(2) * 1000][:n_events]
    assert measured(file, snapshot_of(events)).ring_buffer_full is full


# --- Refusals of snapshots ---


@pytest.mark.parametrize(
    ("snapshot", "rule"),
    [
        ([], "$: has no list of device_traces, so it is no memory snapshot: "),
        ({"segments": []}, "$: has no list of device_traces, so it is no memory snapshot: "),
        (snapshot_of(), "$.device_traces: has no allocations: "),
        (snapshot_of([], []), "$.device_traces: has no allocations: "),
        (snapshot_of(free(2)), "$.device_traces: has no allocations: "),
        (snapshot_of([alloc(2, 1, [])]), "$.device_traces: has no stacks that tell forward from backward: "),
        (snapshot_of([alloc(2, 1, ENGINE)]), "$.device_traces: has no allocation in a module's forward: "),
        (snapshot_of([alloc(2, 1)]), "$.device_traces: has no backward pass after a forward pass: "),
        (snapshot_of([alloc(3, 1, ENGINE), alloc(2, 1)]), "$.device_traces: has no backward pass after a forward"),
        ({"device_traces": [5]}, "$.device_traces[0]: is a list of events"),
        (snapshot_of([alloc(2, 1), 5]), "$.device_traces[0][1]: is an event"),  # type: ignore[list-item]
        (snapshot_of([{**alloc(2, 1), "frames": 5}]), "$.device_traces[0][0].frames: is a list of frames"),
        (snapshot_of([{**alloc(2, 1), "frames": [5]}]), "$.device_traces[0][0].frames[0]: is a frame with a name"),
        (snapshot_of([{**alloc(2, 1), "size": -1}]), "$.device_traces[0][0].size: is a whole number below 2^64"),
        (snapshot_of([{**alloc(2, 1), "addr": 1.5}]), "$.device_traces[0][0].addr: is a whole number below 2^64"),
        (snapshot_of([{**alloc(2, 1), "addr": 1 << 64}]), "$.device_traces[0][0].addr: is a whole number below 2^64"),
        (snapshot_of([{"action": "free_completed"}]), "$.device_traces[0][0].addr: is a whole number below 2^64"),
    ],
)
def test_what_says_nothing_is_refused(file: Path, snapshot: object, rule: str) -> None:
    assert refusal(file, pickle.dumps(snapshot)).startswith(rule)


def test_an_allocation_without_stack_is_of_no_phase(file: Path) -> None:
    bare = {"action": "alloc", "addr": 3, "size": 9}
    assert measured(file, snapshot_of([bare, alloc(2, 100), alloc(4, 1, ENGINE)])).saved == Blocks(1, 100)


# --- Pickles that do more than hold data ---


class Runs:
    """Pickles as a call: unpickling it would create a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch '{self.marker}'",)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_code_is_never_run(file: Path, protocol: int) -> None:
    marker = file.with_name("executed")
    for content in (Runs(marker), {"segments": [], "device_traces": [[Runs(marker)]]}):
        pickled = pickle.dumps(content, protocol)
        assert b"system" in pickled
        assert f"names the class or function {os.system.__module__}.system" in refusal(file, pickled)
    assert not marker.exists()


def test_every_opcode_that_looks_up_a_class(file: Path) -> None:
    named = "names the class or function os.system: classes are never unpacked; a snapshot has none"
    for content in (
        b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R.",  # GLOBAL
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",  # STACK_GLOBAL
        b"\x80\x04\x8c\x02os\x94\x8c\x06system\x94h\x00h\x01\x93)R.",  # its names from the memo
        b"\x80\x02(X\x04\x00\x00\x00trueios\nsystem\n.",  # INST
        b"\x80\x02(cos\nsystem\nX\x04\x00\x00\x00trueo.",  # GLOBAL, for OBJ
    ):
        assert refusal(file, content) == named
    # Calls and states of what no class was named for, and the registry of extensions.
    for opcode in b"Rbo\x81\x92\x82\x83\x84":
        assert f"has pickle opcode 0x{opcode:02x} at offset 3" in refusal(file, b"\x80\x04N" + bytes([opcode]) + b"...")


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (collections.OrderedDict(a=1), "collections.OrderedDict"),
        (Path("x"), "pathlib.PosixPath"),
        (len, "builtins.len"),
        (1j, "builtins.complex"),
    ],
)
def test_harmless_classes_are_refused_as_well(file: Path, value: object, name: str) -> None:
    rule = refusal(file, pickle.dumps({"segments": [], "device_traces": [value]}))
    assert f"names the class or function {name}: classes are never unpacked" in rule


def test_what_a_class_is_called_cannot_break_the_line(file: Path) -> None:
    name = ("\x1b[31m" + "x" * 200).encode()
    content = b"\x80\x04\x8c\x02os\x8c" + bytes([len(name)]) + name + b"\x93."
    rule = refusal(file, content)
    assert "os.?[31mxxx" in rule
    assert len(rule) < 250


def test_persistent_ids_are_refused(file: Path) -> None:
    class Persistent(pickle.Pickler):
        def persistent_id(self, value: object) -> str | None:
            return "storage" if isinstance(value, float) else None

    content = io.BytesIO()
    Persistent(content, 4).dump({"segments": [1.5]})
    assert "has a persistent id (str): these are never looked up" in refusal(file, content.getvalue())
    assert "has a persistent id (str)" in refusal(file, b"\x80\x02Pstorage\n.")


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02}r\xff\xff\xff\xff.",  # LONG_BINPUT: a memo of 2^32 entries
        b"\x80\x02}r\x00\x00\x00\x02.",  # the same of 2^26, which fits into memory
        b"\x80\x02}p4294967295\n.",  # PUT, the same in text
        b"\x80\x02X\xff\xff\xff\xffabc.",  # BINUNICODE of 4 GiB
        b"\x80\x04\x8d" + b"\xff" * 7 + b"\x0fabc.",  # BINUNICODE8
        b"\x80\x04\x8e" + b"\xff" * 7 + b"\x0fabc.",  # BINBYTES8
        b"\x80\x05\x96" + b"\xff" * 7 + b"\x0fabc.",  # BYTEARRAY8
        b"\x80\x02\x8b\xff\xff\xff\x7fabc.",  # LONG4
        b"\x80\x02\x8a\x0a0123456789.",  # a number longer than any address
        b"\x80\x04\x95" + b"\xff" * 7 + b"\x7f}.",  # FRAME
        b"\x80\x02L" + b"9" * 5000 + b"L\n.",  # LONG in text
    ],
)
def test_claims_that_the_file_cannot_keep(file: Path, content: bytes) -> None:
    tracemalloc.start()
    try:
        rule = refusal(file, content)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "pickle" in rule
    assert peak_bytes < 4 << 20


def test_deep_tuples_do_not_overflow_the_stack(file: Path) -> None:
    # Hashing 200,000 levels, as a key of a dictionary, ends the interpreter.
    depth = 200_000
    assert "or 1000 tuples: no snapshot has" in refusal(file, b"\x80\x02})" + b"\x85" * depth + b"Ns.")
    assert "or 1000 tuples: no snapshot has" in refusal(file, b"\x80\x02}" + b"(" * depth + b"t" * depth + b"Ns.")
    # The exception for pairs of small numbers does not take a pair for another: BINGET 75, then an empty tuple.
    pairs = b"\x80\x02})qK" + b"hKhK\x86qK" * depth + b"Ns."
    assert "or 1000 tuples: no snapshot has" in refusal(file, pairs)


def test_pairs_of_numbers_are_no_deep_tuples(file: Path) -> None:
    # Every segment names its pool by one.
    segments = [{"device": 0, "segment_pool_id": (i % 256, 0)} for i in range(3000)]
    assert measured(file, snapshot_of(STEP, segments=segments)).saved == Blocks(3, 550)


def test_deep_lists_are_refused_or_ignored(file: Path) -> None:
    depth = 200_000
    assert refusal(file, b"\x80\x02" + b"]" * depth + b"a" * (depth - 1) + b".").startswith("$: has no list of")
    nested = b"\x80\x02}X\x0d\x00\x00\x00device_traces" + b"]" * depth + b"a" * (depth - 1) + b"s."
    assert refusal(file, nested).startswith("$.device_traces[0][0]: is an event")


def test_small_files_that_name_endless_work(file: Path) -> None:
    # Thirty lists, each of twice the one before: written out, a thousand million words. Wherever it stands, it is skipped.
    bomb: list[Any] = ["x"]
    for _ in range(30):
        bomb = [bomb, bomb]
    block = {"size": 1, "state": bomb, "frames": bomb}
    segments: list[dict[str, Any]] = [{"device": bomb}, {"device": 0, "address": 0, "blocks": [block]}]
    events = [*STEP, {"action": bomb, "frames": bomb}]
    assert measured(file, snapshot_of(events, segments=segments)).saved == Blocks(3, 550)
    assert refusal(file, pickle.dumps(snapshot_of([{**alloc(2, 1), "size": bomb}]))).endswith("below 2^64")
    # One list of blocks is counted once, by however many segments it is named.
    shared = [{"size": 1, "state": "active_allocated", "frames": [{}]}]
    segments = [{"device": 0, "address": 99, "blocks": shared} for _ in range(3)]
    assert measured(file, snapshot_of(STEP, segments=segments)).n_lost == 1


def test_a_list_that_holds_itself(file: Path) -> None:
    events: list[Any] = []
    events.append(events)
    assert refusal(file, pickle.dumps({"device_traces": events})) == "$.device_traces[0][0]: is an event"


@pytest.mark.parametrize(
    ("limit", "value", "rule"),
    [
        ("_MAX_PICKLE_BYTES", 1 << 10, "has more than 0 MiB of pickle: record one training step"),
        ("_MAX_CONTAINERS", 10, "has more than 10 containers: record one training step"),
        ("_MAX_STRINGS", 10, "has more than 10 strings"),
    ],
)
def test_size_limits(file: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, rule: str) -> None:
    monkeypatch.setattr(f"{MODULE}.{limit}", value)
    assert refusal(file, gzip.compress(pickle.dumps(snapshot_of(STEP)))).startswith(rule)


@pytest.mark.parametrize(
    "content",
    [
        *(b"{}", b"\x80", b"\x80\x01}.", b"\x80\x06}."),  # no pickle, or of another protocol
        *(b"\x80\x04", b"\x80\x04}", b"\x80\x04J12", b"\x80\x04\x8c", b"\x80\x04\x8c\x05abc"),  # torn
        *(b"\x80\x04.", b"\x80\x04a.", b"\x80\x04h\x07.", b"\x80\x04]Ns.", b"\x80\x04}]Ns."),  # nonsense
    ],
)
def test_what_is_no_pickle_is_refused(file: Path, content: bytes) -> None:
    assert "pickle" in refusal(file, content)


# --- Fuzzing ---

SMALL = {protocol: pickle.dumps(snapshot_of(STEP), protocol) for protocol in (2, 4)}
DATA = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), 1 << 64) | st.floats(allow_nan=False) | st.text(max_size=300),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner) | st.tuples(inner),
    max_leaves=20,
)


@given(extra=DATA, protocol=st.sampled_from([2, 3, 4, 5]))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_else_a_snapshot_holds_is_let_through(file: Path, extra: object, protocol: int) -> None:
    assert measured(file, {"extra": extra, **snapshot_of(STEP), "more": extra}, protocol).saved == Blocks(3, 550)


def refused_or_measured(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    try:
        assert read_memory_snapshot(file).saved.size_bytes >= 0
    except InputError as error:
        assert error.source == str(file)
        assert str(error).isprintable()


@given(seed=st.integers(0, 1 << 32), protocol=st.sampled_from([2, 4]))
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_pickles(file: Path, seed: int, protocol: int) -> None:
    chance = random.Random(seed)
    content = bytearray(SMALL[protocol])
    for _ in range(chance.randint(1, 4)):
        content[chance.randrange(2, len(content))] ^= 1 << chance.randrange(8)
    if chance.random() < 0.3:
        del content[chance.randrange(len(content)) :]
    refused_or_measured(file, bytes(content) or b"\x80")


@given(st.lists(st.sampled_from([bytes([i]) for i in range(256)] + [b"\x8c\x02ab", b"K\x01", b"h\x00", b"q\x00"] * 8)))
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_opcodes(file: Path, opcodes: list[bytes]) -> None:
    refused_or_measured(file, b"\x80\x04" + b"".join(opcodes) + b".")


# --- Recognition, and real files ---


def test_recognition() -> None:
    for protocol in (2, 3, 4, 5):
        assert looks_like_memory_snapshot(pickle.dumps(snapshot_of(STEP), protocol)[:4096])
    assert not looks_like_memory_snapshot(pickle.dumps({"model": 1}))
    assert not looks_like_memory_snapshot(b'{"device_traces": []}')
    assert not looks_like_memory_snapshot(b"")


@pytest.mark.parametrize(
    ("name", "count", "saved_gb", "cast", "events"),
    [
        # The loss is 41.0 and 163.9 MB; logits and loss (20.5 and 41.0 MB) are kept by Python names.
        ("medium24L_ctx128", 538, 1.782, Blocks(0, 0), 19136),
        ("medium24L_ctx512", 779, 7.208, Blocks(534, 4_982_947_840), 22332),
    ],
)
def test_real_snapshots(name: str, count: int, saved_gb: float, cast: Blocks, events: int) -> None:
    snapshot = read_memory_snapshot(shared_file(f"traces/snapshot/{name}_training.pickle.gz"))
    assert snapshot.saved.count == count
    assert snapshot.saved.size_bytes == pytest.approx(saved_gb * 1e9, rel=1e-3)
    assert (snapshot.autocast, snapshot.n_events, len(snapshot.pass_bytes)) == (cast, events, 1)
    assert (snapshot.outside_forward.count, snapshot.never_freed.count) == (5, 2)
    assert snapshot.n_unmatched_frees == 438
    assert snapshot.ring_buffer_full is False
