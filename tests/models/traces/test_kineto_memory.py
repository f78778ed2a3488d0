"""Allocator events of a Kineto step: which blocks the forward pass leaves, who made them, who uses them last."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from handwritten_kineto import Call, Recording, conv_net, imported, iteration_of, recorded, refused, warnings_of

from slackswap.models.traces.pytorch.kineto_memory import SavedBlocks

Memory = list[tuple[int, int | None]]


def net(*memory: Memory) -> list[Call]:
    """conv_net with allocator events in its operators, by index: 0 to 3 are forward, 4 to 7 backward."""
    return [replace(call, memory=events) for call, events in zip(conv_net(), [*memory, *[[]] * 8], strict=False)]


def blocks_of(calls: list[Call] | Recording, folder: Path) -> SavedBlocks:
    return iteration_of(calls, folder).saved_blocks()


def shown(saved: SavedBlocks) -> list[tuple[int | None, int, int | None]]:
    """Producer, bytes and last user of each block."""
    return [(block.producer, block.bytes, block.last_user) for block in saved.blocks]


# ---- without addresses ----------------------------------------------------------------------------------------------


def test_without_addresses_a_free_takes_the_newest_block_of_its_size(tmp_path: Path) -> None:
    """The second operator's 512 bytes are its workspace: the oldest block would leave it, and lose the first's output."""
    saved = blocks_of(net([(512, None)], [(512, None), (-512, None)], [], [], [], [(-512, None)]), tmp_path)
    assert shown(saved) == [(0, 512, 5)]
    # The first free had two blocks to choose from.
    assert (saved.frees, saved.ambiguous_frees) == (2, 1)
    assert saved.bytes == 512


def test_without_addresses_other_sizes_are_other_blocks(tmp_path: Path) -> None:
    saved = blocks_of(net([(512, None)], [(1024, None), (-512, None)], [], [], [(-1024, None)]), tmp_path)
    assert shown(saved) == [(1, 1024, 4)]
    assert saved.ambiguous_frees == 0


# ---- with addresses -------------------------------------------------------------------------------------------------


def test_with_addresses_a_free_takes_the_block_of_its_address(tmp_path: Path) -> None:
    """By size it would be the newest: the first operator's block would stay."""
    saved = blocks_of(net([(512, 0xA0)], [(512, 0xB0), (-512, 0xA0)], [], [], [(-512, 0xB0)]), tmp_path)
    assert shown(saved) == [(1, 512, 4)]
    assert (saved.frees, saved.ambiguous_frees) == (2, 0)


def test_an_address_names_one_block_after_the_other(tmp_path: Path) -> None:
    memory: list[Memory] = [[(512, 7)], [(-512, 7), (2048, 7)], [(-2048, 7), (1024, 7)], [], [], [], [(-1024, 7)]]
    assert shown(blocks_of(net(*memory), tmp_path)) == [(2, 1024, 6)]


def test_an_address_in_use_again_ends_the_block_whose_free_was_not_recorded(tmp_path: Path) -> None:
    assert shown(blocks_of(net([(512, 7)], [(2048, 7)]), tmp_path)) == [(1, 2048, None)]


def test_addresses_of_two_devices_are_not_the_same(tmp_path: Path) -> None:
    recording = recorded(*net([(512, 7)], [(1024, 7)]))
    recording.named("[memory]")[1]["args"]["Device Id"] = 1
    assert shown(blocks_of(recording, tmp_path)) == [(0, 512, None), (1, 1024, None)]


def test_addresses_use_all_64_bits(tmp_path: Path) -> None:
    top = 2**64 - 512
    saved = blocks_of(net([(512, top), (512, top + 256)], [(-512, top)]), tmp_path)
    assert shown(saved) == [(0, 512, None)]
    assert saved.ambiguous_frees == 0


# ---- what counts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("device_type", "n_blocks"), [(1, 1), (6, 1), (0, 0)])
def test_devices_are_of_cuda_or_hip_and_the_host_does_not_count(
    tmp_path: Path, device_type: int, n_blocks: int
) -> None:
    recording = recorded(*net([(512, 7)]))
    recording.named("[memory]")[0]["args"]["Device Type"] = device_type
    read = iteration_of(recording, tmp_path)
    assert len(read.kineto.memory) == n_blocks
    assert len(read.saved_blocks().blocks) == n_blocks


def test_a_block_belongs_to_the_passes_it_was_born_in(tmp_path: Path) -> None:
    """Saved is what is born in a forward operator and not freed before the first backward one."""
    recording = recorded(*net([], [(512, 1)], [], [(-512, 1), (1024, 2)], [(2048, 3)], [(-1024, 2)]))
    recording.memory(4096, -5, address=4)  # before the first operator
    recording.memory(64, 1, address=5, thread=99)  # by a thread that loads data
    recording.memory(-8192, 2, address=6)  # allocated before the recording
    saved = blocks_of(recording, tmp_path)
    assert shown(saved) == [(3, 1024, 5)]
    assert saved.frees == 3


def test_a_free_between_two_backward_operators_is_the_earlier_ones(tmp_path: Path) -> None:
    recording = recorded(*net([(512, 1)], [(1024, 2)]))
    fifth = recording.named("autograd::engine::evaluate_function: ReluBackward0")[0]
    recording.memory(-512, fifth["ts"] - 0.5, address=1)
    recording.memory(-1024, 1e7, address=2)  # after the backward pass: the optimizer's time, or the end of `loss`
    assert shown(blocks_of(recording, tmp_path)) == [(0, 512, 5), (1, 1024, 7)]


def test_sizes_that_no_memory_has_are_refused(tmp_path: Path) -> None:
    assert "args.Bytes: a block has at most" in refused(net([(10**400, 7)]), tmp_path)


def test_memory_events_confirm_what_the_rules_say(tmp_path: Path) -> None:
    """The allocator gives 2,560 bytes for the first convolution's 2,048, and nothing that fits the second's 4,096."""
    problem = imported(net([(2560, 1)], [], [(512, 2)]), tmp_path)
    sizes = problem.metadata["derivation"]["facts"]["sizes"]
    assert (sizes["exact"], sizes["by_rule"]) == (1, 1)
    assert (
        "Memory events: 2 blocks of 0.0 MB are left for the backward pass, as the allocator rounds; the rules give 0.0 MB and"
        " explain 0.0 MB of them." in warnings_of(problem)
    )
    assert "No addresses" not in warnings_of(problem)
    unnamed = imported(net([(2560, None)], [(2560, None), (-2560, None)]), tmp_path)
    assert "No addresses in the memory events: 1 of 1 frees fitted several blocks and took the newest." in warnings_of(
        unnamed
    )
