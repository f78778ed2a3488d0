"""Reads PipeDream's ``graph.txt``: the layers of a network in execution order, and what feeds each one.

The file holds lines ``node5 -- Conv2d(64, 192, ...) -- forward_compute_time=3.128, backward_compute_time=5.612,
activation_size=143327232.000, parameter_size=1229568.000`` (milliseconds and bytes, in no order) and indented lines
``node4 -- node5``. The description may hold commas and parentheses; a layer with several outputs has the activation
size ``[a; b; c]``; a partitioned graph has `` -- stage_id=0`` at the end.
"""

from __future__ import annotations

import heapq
import math
import re
from dataclasses import dataclass

from slackswap.hardware.input_error import InputError

_SNIFFED_BYTES = 1 << 16
_NODE = re.compile(r"node([0-9]{1,9}) -- (.*)")
_EDGE = re.compile(r"\s*node([0-9]{1,9}) -- node([0-9]{1,9})\s*")
_COLUMNS = re.compile(
    r"forward_compute_time=([^,]*), backward_compute_time=([^,]*), activation_size=(\[[^\[\],]*\]|[^\[\],]*), "
    r"parameter_size=([^,]*?)(?: -- stage_id=[0-9]{1,9})?"
)
_FIRST_COLUMN = " -- forward_compute_time="


@dataclass(frozen=True, slots=True)
class Node:
    """One line of the file; `line` is its number, times are in seconds, sizes in bytes, one per output."""

    number: int
    line: int
    description: str
    forward_s: float
    backward_s: float
    output_bytes: tuple[int, ...]
    parameter_bytes: int

    @property
    def name(self) -> str:
        """``Conv2d.5`` for ``node5 -- Conv2d(3, 64, ...)``."""
        return f"{self._word or 'node'}.{self.number}"

    @property
    def layer(self) -> str:
        """``Conv`` for ``Conv2d(3, 64, ...)``."""
        return re.sub(r"[1-3]d$", "", self._word)

    @property
    def _word(self) -> str:
        found = re.match(r"\w+", self.description)
        return found[0] if found else ""

    @property
    def in_place(self) -> bool:
        """Whether it overwrites its input."""
        plain = re.fullmatch(r"\w+\(([^()]*)\)", self.description)  # not a layer inside a module
        return bool(plain and re.search(r"\binplace\b(?!=False)", plain[1]))

    @property
    def random(self) -> bool:
        """Whether it drops a share of its values, itself or in a layer inside it."""
        return self.layer == "Dropout" or bool(re.search(r"Dropout(?:[1-3]d)?\(p=[0.]*[1-9]", self.description))


def looks_like_pipedream(content: bytes) -> bool:
    """Whether unpacked file content is a PipeDream ``graph.txt``."""
    start = content[:_SNIFFED_BYTES]
    return bool(re.match(rb"\s*node[0-9]+ -- ", start)) and _FIRST_COLUMN.encode() in start


def read_graph(content: bytes) -> tuple[list[Node], dict[int, list[int]]]:
    """Return the nodes in execution order, and the numbers of the nodes that each one reads.

    The order is topological; of the nodes that are ready, the lowest number runs first.

    Raises
    ------
    InputError
        A line is malformed, a node stands twice or is missing, or the edges form a cycle; the place is the line.
    """
    nodes, edges = _read_lines(content)
    producers: dict[int, dict[int, None]] = {number: {} for number in nodes}  # in order, each once
    for source, target, line in edges:
        for end in (source, target):
            if end not in nodes:
                raise InputError(f"the edge names node{end}, which has no line of its own", place=f"line {line}")
        producers[target][source] = None
    sources = {number: list(found) for number, found in producers.items()}
    return _execution_order(nodes, sources), sources


def _read_lines(content: bytes) -> tuple[dict[int, Node], list[tuple[int, int, int]]]:
    """Return the nodes by number, and each edge with its line."""
    try:
        lines = content.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"is not text: byte {error.start} is not UTF-8") from None
    nodes: dict[int, Node] = {}
    edges: list[tuple[int, int, int]] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        if edge := _EDGE.fullmatch(line):
            edges.append((int(edge[1]), int(edge[2]), number))
            continue
        node = _read_node(line.rstrip(), number)
        if node.number in nodes:
            raise InputError(
                f"node{node.number} stands on line {nodes[node.number].line} already", place=f"line {number}"
            )
        nodes[node.number] = node
    return nodes, edges


def _read_node(line: str, number: int) -> Node:
    place = f"line {number}"
    # The description is free text; the columns after it are not.
    head, separator, tail = line.rpartition(_FIRST_COLUMN)
    node, columns = _NODE.fullmatch(head), _COLUMNS.fullmatch(separator.removeprefix(" -- ") + tail)
    if not (node and columns):
        raise InputError("is neither a PipeDream node nor an edge, `nodeA -- nodeB`", place=place)
    sizes = [_number(size, "activation_size", place) for size in columns[3].strip("[]").split(";")]
    parameter_bytes = _number(columns[4], "parameter_size", place)
    for size in (*sizes, parameter_bytes):
        if not size.is_integer():
            raise InputError(f"a size is a whole number of bytes, not {size}", place=place)
    return Node(
        number=int(node[1]),
        line=number,
        description=node[2],
        forward_s=_number(columns[1], "forward_compute_time", place) / 1000,
        backward_s=_number(columns[2], "backward_compute_time", place) / 1000,
        output_bytes=tuple(map(int, sizes)),
        parameter_bytes=int(parameter_bytes),
    )


def _number(text: str, column: str, place: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise InputError(f"{column} is a finite number, at least 0, not '{text.strip()[:40]}'", place=place)
    return value


def _execution_order(nodes: dict[int, Node], producers: dict[int, list[int]]) -> list[Node]:
    consumers: dict[int, list[int]] = {number: [] for number in nodes}
    for number, sources in producers.items():
        for source in sources:
            consumers[source].append(number)
    missing = {number: len(sources) for number, sources in producers.items()}
    ready = [number for number, count in missing.items() if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        number = heapq.heappop(ready)
        order.append(nodes[number])
        for consumer in consumers[number]:
            missing[consumer] -= 1
            if not missing[consumer]:
                heapq.heappush(ready, consumer)
    if len(order) < len(nodes):
        node = nodes[_on_a_cycle(missing, producers)]
        raise InputError(f"the edges form a cycle through node{node.number}", place=f"line {node.line}")
    return order


def _on_a_cycle(missing: dict[int, int], producers: dict[int, list[int]]) -> int:
    """Walk back among the nodes that never became ready: each has such a producer, so the walk meets itself."""
    number, seen = next(number for number, count in missing.items() if count), set[int]()
    while number not in seen:
        seen.add(number)
        number = next(source for source in producers[number] if missing[source])
    return number
