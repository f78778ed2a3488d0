"""Real Kineto traces: counts, times and sizes that were read out of each by other programs (the table of published ones)."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import cache, partial
from typing import SupportsIndex

import numpy as np
import pytest
from handwritten_kineto import dropped_by, warnings_of
from instances import MB, MS, PLAIN_LINK
from shared_data import shared_file

from slackswap.models.problem import Problem
from slackswap.models.traces import import_traces
from slackswap.models.traces.json_stream import stream_items
from slackswap.models.traces.memory_timeline import read_memory_timeline
from slackswap.models.traces.pipedream import import_pipedream
from slackswap.models.traces.pytorch import kineto_memory
from slackswap.models.traces.pytorch.execution_trace import Node, RootOperator, outermost_calls
from slackswap.models.traces.pytorch.kineto import read_kineto
from slackswap.models.traces.pytorch.kineto_memory import Block
from slackswap.models.traces.pytorch.kineto_problem import KinetoIteration, read_kineto_iteration
from slackswap.models.traces.pytorch.kineto_step import KinetoSurvey, survey_kineto
from slackswap.models.traces.pytorch.operator_times import dropped_calls
from slackswap.models.traces.pytorch.pair import read_storages
from slackswap.models.traces.pytorch.shape_dataflow import follow_storages
from slackswap.models.traces.trace_file import TraceFile, as_trace_file

RESNET50 = "resnet50_v100_shapes_mem_noaddr.pt.trace.json.gz"
COMPILED = "aot_ddp_v100_mem_addr_noshapes.pt.trace.json.gz"
DDP = "resnet50_v100_float_ts_fwdbwd_noshapes.pt.trace.json.gz"
RESNET18 = "resnet18_mi300x_bf16_shapes_nostep.json.gz"
TOY = "minitoy_mi250_train.json.gz"
RECOMMENDER_A100 = "recmodel_a100_rank3of8_async_cpu_to_gpu.json.gz"
RECOMMENDER_V100 = "recmodel_v100_rank1of2.json.gz"
FORWARD_ONLY = "NEG_alexnet_a100_forward_only.json.gz"
LARGE = 64 << 10


def file_of(name: str) -> TraceFile:
    return as_trace_file(shared_file(f"traces/kineto/{name}"))


@cache
def survey_of(name: str) -> KinetoSurvey:
    return survey_kineto(file_of(name))


@cache
def step_of(name: str, step: str) -> KinetoIteration:
    return read_kineto_iteration(file_of(name), survey_of(name), step)


@cache
def problem_of(name: str, step: str = "") -> Problem:
    return import_traces([shared_file(f"traces/kineto/{name}")], link=PLAIN_LINK, step=step)


# ---- operators, kernels, times --------------------------------------------------------------------------------------


def work_of(read: KinetoIteration, roots: list[RootOperator]) -> tuple[int, dict[str, float]]:
    """Number of kernels, memsets and copies that calls launched, and milliseconds of each kind."""
    work = [item for root in roots for item in read.kineto.launched_within(read.event_of[root.node.id])]
    by_kind: dict[str, float] = defaultdict(float)
    for item in work:
        by_kind[item.kind] += item.duration_us / 1e3
    return len(work), by_kind


def before_backward(read: KinetoIteration) -> list[RootOperator]:
    """Outermost calls of the forward thread before the backward pass, those that a problem leaves out among them."""
    first, thread = read.iteration.backward[0].node.id, read.iteration.forward[0].node.thread
    return [root for root in outermost_calls(read.nodes) if root.node.id < first and root.node.thread == thread]


def by_annotation(roots: list[RootOperator]) -> int:
    """Count calls, all of an annotation of data loading or of the optimizer as one: in 2021 annotations were operators."""
    aside = ("Optimizer.", "enumerate(DataLoader)")
    return len({next((said for said in root.annotations if said.startswith(aside)), root.node.id) for root in roots})


@pytest.mark.parametrize(
    ("name", "step", "forward", "backward", "kernels", "times_ms", "problem_forward"),
    [
        # Before the backward pass run: data loading and zero_grad, two annotations, with 161 fills in the latter.
        (RESNET50, "18", 237, 357, (440, 620), (33.0, 64.5), 235),
        # 404 calls are zero_grad's fills, 2.1 ms; the compiled forward pass is one call.
        (COMPILED, "3", 407, 406, (1339, 2715), (41.3, 77.8), 3),
        (DDP, "101", 397, 342, (466, 583), (29.9, 62.8), 397),
        (RESNET18, "0", 92, 133, (210, 263), (23.6, 48.4), 92),
        (TOY, "1", 9, 6, (8, 7), (0.05, 0.05), 9),
        # Two calls of data loading are not the model's; two of the backward pass run on the forward thread.
        (RECOMMENDER_A100, "1010", 606, 656, (506, 1021), (16.0, 29.5), 604),
        (RECOMMENDER_V100, "1010", 333, 386, (990, 1465), (29.2, 54.4), 331),
    ],
)
def test_operators_kernels_and_times_are_the_published_ones(
    name: str,
    step: str,
    forward: int,
    backward: int,
    kernels: tuple[int, int],
    times_ms: tuple[float, float],
    problem_forward: int,
) -> None:
    read = step_of(name, step)
    before, after = before_backward(read), list(read.iteration.backward)
    assert (by_annotation(before) if name == RESNET50 else len(before), len(after)) == (forward, backward)
    n_forward, forward_ms = work_of(read, before)
    n_backward, backward_ms = work_of(read, after)
    assert (n_forward, n_backward) == kernels
    zeroing_ms = 0.17 if name == RESNET50 else 0.0  # published without the fills
    assert forward_ms["compute"] - zeroing_ms == pytest.approx(times_ms[0], rel=0.01, abs=0.006)
    assert backward_ms["compute"] == pytest.approx(times_ms[1], rel=0.01, abs=0.006)
    assert len(read.iteration.forward) == problem_forward


def test_copies_and_communication_are_apart() -> None:
    _, resnet50 = work_of(step_of(RESNET50, "18"), list(step_of(RESNET50, "18").iteration.forward))
    assert resnet50["host to device"] == pytest.approx(2.9, abs=0.05)
    _, compiled = work_of(step_of(COMPILED, "3"), list(step_of(COMPILED, "3").iteration.backward))
    assert compiled["collective"] == pytest.approx(59.5, abs=0.05)
    _, toy = work_of(step_of(TOY, "1"), list(step_of(TOY, "1").iteration.forward))
    assert toy["host to device"] + toy["compute"] == pytest.approx(0.09, abs=0.005)


def test_every_kernel_of_the_oldest_trace_has_a_launch() -> None:
    """Names of 2021, whole microseconds, thread ids in quotes."""
    whole = read_kineto(file_of(RESNET50))
    assert (sum(map(len, whole.work.values())), whole.orphans.count) == (9258, 0)


def test_kernels_whose_launch_is_missing_are_counted() -> None:
    """The CPU runs ahead: what the device does during a step was in part launched before it, or before the recording."""
    orphans = step_of(RECOMMENDER_V100, "1010").kineto.orphans
    assert orphans.count == 1086
    assert orphans.seconds == pytest.approx(71.9 * MS, rel=0.01)


def test_steps_without_markers_are_found_though_walls_differ_ninefold() -> None:
    survey = survey_of(RESNET18)
    steps = survey.steps()
    assert len(steps) == len(survey.usable_steps()) == 5
    first_us = min(event.start_us for event in step_of(RESNET18, "0").kineto.operators)
    walls_ms = [(steps[0].window[1] - first_us) / 1e3, *(step.wall_us / 1e3 for step in steps[1:])]
    assert walls_ms == pytest.approx([118, 115, 1015, 1068, 1076], abs=0.9)
    sums_ms = []
    for i in (0, 2, 4):
        read = step_of(RESNET18, str(i))
        parts = (read.iteration.forward, read.iteration.backward)
        sums_ms.append(sum(work_of(read, list(part))[1]["compute"] for part in parts))
    assert max(sums_ms) / min(sums_ms) < 1.04


def test_a_last_step_without_a_backward_pass_is_of_no_use() -> None:
    survey = survey_of(TOY)
    assert [step.name for step in survey.steps()] == ["ProfilerStep#1", "ProfilerStep#2"]
    assert [step.name for step in survey.usable_steps()] == ["ProfilerStep#1"]
    assert survey.usable_steps()[0].wall_us == pytest.approx(9300, rel=0.01)


@pytest.mark.parametrize(
    ("name", "n_steps", "first_ms", "last_ms"),
    [
        (RESNET50, 6, 160, 206.5),
        (COMPILED, 5, 345.8, 336.3),
        (DDP, 5, 35, 95.7),
        (RECOMMENDER_A100, 6, 75.5, 81.1),
        (RECOMMENDER_V100, 6, 100.3, 166.3),
    ],
)
def test_steps_are_marked(name: str, n_steps: int, first_ms: float, last_ms: float) -> None:
    steps = survey_of(name).usable_steps()
    assert len(steps) == n_steps
    assert (steps[0].wall_us / 1e3, steps[-1].wall_us / 1e3) == pytest.approx((first_ms, last_ms), rel=0.01)


# ---- links ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "step", "n_links"),
    [(RESNET50, "18", 178), (TOY, "1", 4), (RESNET18, "0", 71), (RECOMMENDER_A100, "1010", 394)],
)
def test_every_backward_node_has_a_forward_call(name: str, step: str, n_links: int) -> None:
    read = step_of(name, step)
    flow = follow_storages(read.nodes, read.iteration, read.event_of, frozenset())
    assert (flow.linked, flow.n_backward_nodes) == (n_links, n_links)


def test_flows_of_the_profiler_agree_with_sequence_numbers() -> None:
    """Recent traces draw arrows from forward to backward calls: all 181 start in the call that starts last of its number."""
    read = step_of(DDP, "101")
    start_us, end_us = read.step.window
    ends: dict[int, dict[str, tuple[int, float]]] = defaultdict(dict)
    for item in stream_items(file_of(DDP)):
        if b'"fwdbwd"' in item.text:
            flow = json.loads(item.text)
            ends[flow["id"]][flow["ph"]] = (flow["tid"], float(flow["ts"]))
    flows = [flow for flow in ends.values() if start_us <= flow["s"][1] <= end_us]
    at: dict[tuple[object, float], list[Node]] = defaultdict(list)
    owner: dict[int, Node] = {}
    for node in read.nodes:
        event = read.event_of[node.id]
        at[event.thread[1], event.start_us].append(node)
        if node.sequence >= 0 and read.iteration.operator_of.get(node.id, len(read.nodes)) < len(
            read.iteration.forward
        ):
            owner[node.sequence] = node
    assert len(flows) == 181
    for flow in flows:
        assert any(owner.get(node.sequence) in at[flow["s"]] for node in at[flow["f"]] if node.sequence >= 0)


# ---- memory ---------------------------------------------------------------------------------------------------------


def by_producer(read: KinetoIteration, blocks: list[Block]) -> dict[str, float]:
    """Megabytes of saved blocks by what made them; the few bytes of the loss left out."""
    sums: dict[str, float] = defaultdict(float)
    for block in blocks:
        sums[read.iteration.forward[block.producer or 0].node.name] += block.bytes / MB
    return {name: round(size) for name, size in sums.items() if size > 1}


def test_without_addresses_the_allocator_gives_totals_and_producers() -> None:
    read = step_of(RESNET50, "18")
    saved = read.saved_blocks()
    assert len(saved.blocks) == 214
    assert saved.bytes / MB == pytest.approx(2738.7, abs=0.05)
    assert sum(block.bytes >= LARGE for block in saved.blocks) == 106
    assert (len(read.kineto.memory), saved.ambiguous_frees) == (1380, 535)
    assert by_producer(read, list(saved.blocks)) == {
        "aten::conv2d": 1427,
        "aten::batch_norm": 1233,
        "aten::max_pool2d": 78,
    }


def test_the_oldest_block_of_a_size_would_give_wrong_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    class Oldest(list[Block]):
        def pop(self, index: SupportsIndex = 0) -> Block:
            return super().pop(index)

    oldest_first = partial(kineto_memory._Pairing, live=defaultdict(Oldest))
    monkeypatch.setattr(kineto_memory, "_Pairing", oldest_first)
    read = step_of(RESNET50, "18")
    blocks = list(read.saved_blocks().blocks)
    assert by_producer(read, blocks) == {"aten::conv2d": 1312, "aten::batch_norm": 1374, "aten::max_pool2d": 52}


def test_with_addresses_no_free_is_ambiguous_and_compiled_code_frees_at_its_end() -> None:
    read = step_of(COMPILED, "3")
    saved = read.saved_blocks()
    assert len(saved.blocks) == 319
    assert saved.bytes / MB == pytest.approx(1333.8, abs=0.05)
    assert saved.ambiguous_frees == 0
    large = [block for block in saved.blocks if block.bytes >= LARGE]
    last = Counter(
        read.iteration.operators[block.last_user].node.name.rpartition(" ")[2]
        for block in large
        if block.last_user is not None
    )
    assert len(large) == 253
    assert last["CompiledFunctionBackward"] == 252


@pytest.mark.parametrize("name", [RESNET18, TOY, DDP, RECOMMENDER_A100])
def test_events_of_the_host_alone_are_no_memory_events(name: str) -> None:
    assert survey_of(name).n_memory == 0


# ---- saved tensors by rule ------------------------------------------------------------------------------------------


def megabytes(problem: Problem, operator_of: Callable[[int], int]) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for t in np.flatnonzero(problem.saved):
        sums[problem.operator_names[operator_of(int(t))].rpartition(".")[0]] += problem.tensor_bytes[t] / MB
    return {name: round(float(size), 1) for name, size in sums.items() if size > 1}


def test_resnet50_by_rules_is_what_an_execution_trace_says() -> None:
    problem = problem_of(RESNET50, "18")
    assert (problem.n_forward, problem.n_operators) == (235, 592)
    assert (problem.forward_s, problem.backward_s) == pytest.approx((33.0 * MS, 64.5 * MS), rel=0.01)
    # 2730.2 MB and the batch of images, 32 x 3 x 224 x 224 floats, which is copied in the step.
    assert problem.saved_bytes / MB == pytest.approx(2730.2 + 19.27, abs=0.05)
    assert int((problem.tensor_bytes[problem.saved] >= LARGE).sum()) == 107
    # An execution trace of the same model: conv 1423, BN 1230, pooling 77.
    made_by = megabytes(problem, lambda t: int(problem.producer[t]))
    assert made_by == {"to": 19.3, "conv2d": 1422.6, "batch_norm": 1230.1, "max_pool2d": 77.1}
    # The batch of images cannot be made again, nor its labels.
    saved = np.flatnonzero(problem.saved)
    assert [
        problem.operator_names[problem.producer[t]].partition(".")[0] for t in saved if not problem.rebuildable[t]
    ] == [
        "to",
        "to",
    ]


def test_first_backward_uses_by_rule_are_those_that_an_execution_trace_records() -> None:
    problem = problem_of(RESNET50, "18")
    by_rule = megabytes(problem, lambda t: int(problem.first_backward_reader[t]))
    trace = read_storages(as_trace_file(shared_file("traces/et/resnet50_ddp_et_only_schema1.1.0.json.gz")))
    n_forward = len(trace.iteration.forward)
    recorded: dict[str, float] = defaultdict(float)
    for lifetime in trace.saved:
        first = min(reader for reader in lifetime.readers if reader >= n_forward)
        recorded[trace.iteration.operators[first].node.name.rpartition(" ")[2]] += lifetime.bytes / MB
    shown = {name: round(size, 1) for name, size in recorded.items() if size > 1}
    assert shown == {
        "CudnnBatchNormBackward0": 1422.8,
        "ConvolutionBackward0": 1140.0,
        "MaxPool2DWithIndicesBackward0": 154.1,
        "ReluBackward0": 12.8,
    }
    # The same by rule, under the names of 2021; the first convolution reads the batch, which is copied in this step.
    assert by_rule == {
        "CudnnBatchNormBackward": 1422.8,
        "CudnnConvolutionBackward": 1159.3,
        "MaxPool2DWithIndicesBackward": 154.1,
        "ReluBackward1": 12.8,
    }


def test_resnet50_is_confirmed_by_its_memory_events() -> None:
    derivation = problem_of(RESNET50, "18").metadata["derivation"]
    assert derivation["facts"]["sizes"]["exact"] >= 212
    assert "214 blocks of 2738.7 MB are left for the backward pass" in warnings_of(problem_of(RESNET50, "18"))
    assert "535 of 690 frees fitted several blocks and took the newest" in warnings_of(problem_of(RESNET50, "18"))


def test_resnet18_in_half_precision_on_amd() -> None:
    problem = problem_of(RESNET18)
    assert problem.metadata["gpu"] == "AMD Instinct MI300X"
    # The batch is resident here: it was made before the first step, 512 x 3 x 224 x 224 numbers of 2 bytes.
    batch_mb = 512 * 3 * 224 * 224 * 2 / MB
    assert problem.saved_bytes / MB + batch_mb == pytest.approx(6089.1, rel=0.001)
    assert "The trace holds 5 training steps" in warnings_of(problem)


def test_a_toy_is_read_to_the_last_tensor() -> None:
    """Linear(128) on 5 rows, ReLU and a mean squared error; input and target come from the host."""
    problem = problem_of(TOY)
    assert (problem.n_forward, problem.n_operators) == (9, 15)
    saved = np.flatnonzero(problem.saved)
    # The copied input, ReLU's output, and the copied target: 5 x 128 floats each.
    assert [int(problem.tensor_bytes[t]) for t in saved] == [2560, 2560, 2560]
    assert int(problem.rebuildable[saved].sum()) == 1
    assert dropped_by(problem)["copies between host and device"] == (2, pytest.approx(38.161))


def test_a_recommender_says_what_it_lacks() -> None:
    read = step_of(RECOMMENDER_A100, "1010")
    flow = follow_storages(read.nodes, read.iteration, read.event_of, frozenset())
    assert flow.unknown == {"All2All_Pooled_ReqBackward": 1, "All2All_Pooled_WaitBackward": 1}
    # The fused optimizer launches its eight kernels itself.
    dropped = {item.what: item.count for item in dropped_calls(read.nodes, read.iteration, read.event_of, read.kineto)}
    assert dropped["device work launched outside of any call (hand-written kernels)"] == 8
    assert read.kineto.device_name("0") == "NVIDIA A100-PG509-200"


def test_autograd_numbers_calls_of_a_forward_pass_alone_too() -> None:
    survey = survey_of(FORWARD_ONLY)
    assert len(survey.numbered_us) > 50
    assert survey.usable_steps() == []


# ---- five sources ---------------------------------------------------------------------------------------------------


def test_five_sources_agree_on_what_resnet50_saves() -> None:
    """ResNet-50, fp32, batch 32, recorded by different people in five formats."""
    execution_trace = read_storages(as_trace_file(shared_file("traces/et/resnet50_ddp_et_only_schema1.1.0.json.gz")))
    recorded_mb = sum(lifetime.bytes for lifetime in execution_trace.saved) / MB
    by_rules_mb = problem_of(RESNET50, "18").saved_bytes / MB - 19.27  # without the batch, which others made before
    layers = import_pipedream(shared_file("traces/pipedream/resnet50.graph.txt"), link=PLAIN_LINK, pool_indices=True)
    by_layers_mb = layers.saved_bytes / MB / 4  # of a batch of 128
    allocated_mb = step_of(RESNET50, "18").saved_blocks().bytes / MB
    timeline = read_memory_timeline(shared_file("traces/memory_timeline/resnet50_b32.memory_timeline.raw.json.gz"))
    measured_mb = timeline.peak_of("ACTIVATION") / MB
    assert recorded_mb == pytest.approx(2730.2, abs=0.05)
    assert by_rules_mb == pytest.approx(2730.2, abs=0.5)
    assert by_layers_mb == pytest.approx(2730.0, abs=0.5)
    # The allocator rounds up to 512 bytes, large blocks to 2 MiB.
    assert allocated_mb == pytest.approx(2738.7, abs=0.05)
    assert measured_mb == pytest.approx(2746.5, abs=0.05)
    assert max(recorded_mb, by_rules_mb, by_layers_mb, allocated_mb, measured_mb) < 1.007 * recorded_mb
