"""Aligns the call tree of an execution trace with the nested events of a Kineto trace, where no common ids were recorded.

Siblings are anchored at calls whose name and autograd sequence number are unique in both lists; between the anchors they
are matched by name. Names alone would not do: a model of equal layers looks the same when it is shifted by one layer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher

from slackswap.models.traces.pytorch.call_tree import Call, nest_calls
from slackswap.models.traces.pytorch.execution_trace import STEP_MARKER, Node
from slackswap.models.traces.pytorch.kineto_events import CpuOperator, Thread

# Pairs of equal names between two anchors; more of them stay unlinked, since comparing them takes minutes.
_MAX_COMPARISONS = 25_000_000
_Key = tuple[str, int]


def align_calls(nodes: Sequence[Node], operators: Sequence[CpuOperator], offset: int) -> dict[int, CpuOperator]:
    """Return the Kineto event of each node that has one.

    Parameters
    ----------
    nodes : all nodes of the execution trace, the threads' included
    operators : all CPU events of the Kineto trace
    offset : Kineto sequence number minus the execution trace's
    """
    children: dict[int, list[Node]] = defaultdict(list)
    for node in nodes:
        children[node.parent].append(node)
    threads: dict[Thread, list[CpuOperator]] = defaultdict(list)
    for operator in operators:
        threads[operator.thread].append(operator)
    tops = {thread: _without_steps(calls) for thread, calls in nest_calls(operators).items()}
    numbered = {thread: {(event.name, event.sequence) for event in events} for thread, events in threads.items()}
    linked: dict[int, CpuOperator] = {}
    for thread_node in [node for node in nodes if node.is_container]:
        wanted = {(n.name, n.sequence + offset) for n in nodes if n.thread == thread_node.thread and n.sequence >= 0}
        best = max(tops, key=lambda thread: len(wanted & numbered[thread]), default=None)
        if best is not None and wanted:
            top_nodes = _without_step_nodes(children[thread_node.id], children)
            calls = _window(tops[best], wanted, len(top_nodes))
            _match([node for node in top_nodes if not node.is_container], calls, children, offset, linked)
    return linked


def _without_steps(calls: list[Call]) -> list[Call]:
    """Replace step markers by what is inside: only one of the two files may have them."""
    return [inner for call in calls for inner in (call.children if call.event.name.startswith(STEP_MARKER) else [call])]


def _without_step_nodes(nodes: list[Node], children: Mapping[int, list[Node]]) -> list[Node]:
    return [inner for node in nodes for inner in (children[node.id] if node.name.startswith(STEP_MARKER) else [node])]


def _window(calls: list[Call], wanted: set[_Key], margin: int) -> list[Call]:
    """Cut a thread's outermost calls down to the iteration that holds the wanted numbered calls, and a margin."""
    hits = [i for i, call in enumerate(calls) if any((event.name, event.sequence) in wanted for event in call.events())]
    if not hits:
        return []
    # Calls without a number before the first hit and after the last one belong to the iteration too, as many as fit.
    spare = max(0, margin - len(hits))
    return calls[max(0, hits[0] - spare) : hits[-1] + spare + 1]


def _match(
    nodes: list[Node],
    calls: list[Call],
    children: Mapping[int, list[Node]],
    offset: int,
    linked: dict[int, CpuOperator],
) -> None:
    """Match two lists of siblings, then what is inside of each matched pair."""
    stack = [(nodes, calls)]
    while stack:
        some_nodes, some_calls = stack.pop()
        node_keys = [_node_key(node, children, offset) for node in some_nodes]
        for i, j in _pairs(node_keys, [_call_key(call) for call in some_calls]):
            linked[some_nodes[i].id] = some_calls[j].event
            stack.append((children[some_nodes[i].id], some_calls[j].children))


def _node_key(node: Node, children: Mapping[int, list[Node]], offset: int) -> _Key:
    """Name and sequence number of a call; an engine call has its number on the node that it evaluates."""
    number = next((call.sequence + offset for call in (node, *children[node.id][:1]) if call.sequence >= 0), -1)
    return node.name, number


def _call_key(call: Call) -> _Key:
    inside = (inner.event for inner in call.children[:1])
    return call.event.name, next((event.sequence for event in (call.event, *inside) if event.sequence >= 0), -1)


def _pairs(node_keys: list[_Key], call_keys: list[_Key]) -> list[tuple[int, int]]:
    """Pair two lists of siblings in order: at the anchors, and between them by name."""
    node_names = [name for name, _ in node_keys]
    call_names = [name for name, _ in call_keys]
    if node_names == call_names:
        return [(i, i) for i in range(len(node_names))]
    anchors = _anchors(node_keys, call_keys)
    pairs = list(anchors)
    before_i, before_j = 0, 0
    for n, (i, j) in enumerate([*anchors, (len(node_keys), len(call_keys))]):
        # Before the first anchor the nearest match is the last one.
        pairs += _by_name(
            node_names, call_names, range(before_i, i), range(before_j, j), from_end=not n and bool(anchors)
        )
        before_i, before_j = i + 1, j + 1
    return pairs


def _anchors(node_keys: list[_Key], call_keys: list[_Key]) -> list[tuple[int, int]]:
    """Find the numbered calls that are unique in both lists and stand in the same order."""
    node_counts, call_counts = Counter(node_keys), Counter(call_keys)
    call_index = {key: j for j, key in enumerate(call_keys)}
    anchors: list[tuple[int, int]] = []
    for i, key in enumerate(node_keys):
        if (
            key[1] >= 0
            and node_counts[key] == 1 == call_counts[key]
            and (not anchors or call_index[key] > anchors[-1][1])
        ):
            anchors.append((i, call_index[key]))
    return anchors


def _by_name(
    node_names: list[str], call_names: list[str], nodes: range, calls: range, *, from_end: bool
) -> list[tuple[int, int]]:
    """Pair two stretches by the longest runs of equal names."""
    if from_end:
        nodes, calls = nodes[::-1], calls[::-1]
    some_nodes, some_calls = [node_names[i] for i in nodes], [call_names[j] for j in calls]
    called = Counter(some_calls)
    if not 0 < sum(called[name] for name in some_nodes) <= _MAX_COMPARISONS:
        return []
    blocks = SequenceMatcher(None, some_nodes, some_calls, autojunk=False).get_matching_blocks()
    return [(nodes[block.a + k], calls[block.b + k]) for block in blocks for k in range(block.size)]
