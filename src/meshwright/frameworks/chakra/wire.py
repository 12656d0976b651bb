"""The program of one rank, and its bytes: the Chakra schema in the wire format of protobuf.

Nodes carry the numbers of the nodes that they depend on. Bytes follow the convention of
:class:`~meshwright.spec.collective.CollectiveKind`: those of the full tensor on one rank.

Only what readers use is written. The type of each attribute is part of the format: readers take a
value in another field of the attribute as 0.

Source: mlcommons/chakra, schema/protobuf/et_def.proto; protobuf encoding guide (varints, fields).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from meshwright.spec.collective import CollectiveKind


@dataclass(frozen=True, slots=True)
class Compute:
    """Kernels that run one after another on a device."""

    number: int
    name: str
    num_ops: int = 0
    """FLOPs [FLOP]; 0 for work that only moves data."""
    tensor_bytes: int = 0
    """Bytes that cross the main memory [bytes]."""
    duration_us: int = 0
    """Time without launches, in whole microseconds [us]."""
    needs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of a group that this rank belongs to."""

    number: int
    name: str
    kind: CollectiveKind
    num_bytes: int
    """The full tensor on one rank [bytes]."""
    group_size: int
    group: int | None = None
    """Name of the group; None: all ranks."""
    needs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TraceMessage:
    """One end of a message: a send where the rank is its source, a receive where it is not.

    Both ends name the same source, destination, tag and size.
    """

    number: int
    name: str
    source: int
    destination: int
    num_bytes: int
    tag: int
    is_send: bool
    needs: tuple[int, ...] = ()


Node = Compute | Collective | TraceMessage

Groups = Mapping[int, tuple[int, ...]]
"""Ranks of each group by its name."""


SCHEMA_VERSION = "0.0.4"

_NUMBER, _NAME, _TYPE, _DATA_DEPS, _DURATION, _ATTRIBUTE = 1, 2, 3, 5, 7, 10
"""Fields of a node."""
_INT32, _INT64, _UINT64, _BOOL, _STRING = 7, 9, 13, 27, 29
"""Fields of an attribute, one for each type of value; its name is field 1."""
_COMPUTE, _SEND, _RECEIVE, _COLLECTIVE = 4, 5, 6, 7
"""Types of nodes."""
_KINDS = {
    CollectiveKind.ALL_REDUCE: 0,
    CollectiveKind.ALL_GATHER: 2,
    CollectiveKind.BROADCAST: 5,
    CollectiveKind.ALL_TO_ALL: 6,
    CollectiveKind.REDUCE_SCATTER: 7,
}


@lru_cache(maxsize=1 << 18)
def varint(value: int) -> bytes:
    """Return a number that is not negative in groups of seven bits, lowest first."""
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def delimited(content: bytes) -> bytes:
    """Return bytes behind their length: a record of a trace, or the value of a field."""
    return varint(len(content)) + content


def _number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def _bytes(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + delimited(content)


@lru_cache(maxsize=4096)
def _attribute(name: str, field: int, value: int | str) -> bytes:
    """Return one attribute of a node, with the value in the field of its type."""
    content = _bytes(field, value.encode()) if isinstance(value, str) else _number(field, value)
    return _bytes(_ATTRIBUTE, _bytes(1, name.encode()) + content)


def _head(node: Node) -> bytes:
    """Return the fields that all nodes of one kind and size share."""
    kind, duration, attributes = _described(node)
    parts = [_number(_TYPE, kind)]
    if duration:
        parts.append(_number(_DURATION, duration))
    parts.append(_attribute("is_cpu_op", _BOOL, 0))
    parts += [_attribute(*attribute) for attribute in attributes]
    return b"".join(parts)


def _tail(node: Node) -> bytes:
    """Return name, needs and number: the fields that vary from node to node, in one place.

    Fields may come in any order; this one compresses best.
    """
    needs = node.needs
    return (
        _NAME_KEY + delimited(node.name.encode())
        + (_NEEDS_KEY + delimited(b"".join(map(varint, needs))) if needs else b"")
        + _NUMBER_KEY + varint(node.number)
    )  # fmt: skip


_NAME_KEY, _NEEDS_KEY = varint(_NAME << 3 | 2), varint(_DATA_DEPS << 3 | 2)
_NUMBER_KEY = varint(_NUMBER << 3)


class SharedTrace:
    """The trace of a rank, for all ranks that run the same program in other groups."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._heads: dict[tuple[object, ...], Node] = {}
        """A node with each head that stands in the trace."""
        self._records: list[tuple[tuple[object, ...], bytes]] = []
        for node in nodes:
            if isinstance(node, Compute):
                key: tuple[object, ...] = (node.num_ops, node.tensor_bytes, node.duration_us)
            elif isinstance(node, Collective):
                key = (node.kind, node.num_bytes, node.group_size, node.group)
            else:
                key = (node.source, node.destination, node.num_bytes, node.tag, node.is_send)
            self._heads.setdefault(key, node)
            self._records.append((key, _tail(node)))

    def of(self, groups: Mapping[int, int], ranks: Mapping[int, int]) -> bytes:
        """Return the trace of a rank: the version of the schema, then each node.

        Parameters
        ----------
        groups, ranks
            Groups and partners of the rank, by those of the first rank.
        """
        heads = {key: _head(_of_rank(node, groups, ranks)) for key, node in self._heads.items()}
        parts = [delimited(_bytes(1, SCHEMA_VERSION.encode()))]
        for key, tail in self._records:
            head = heads[key]
            parts += (varint(len(head) + len(tail)), head, tail)
        return b"".join(parts)


def _of_rank(node: Node, groups: Mapping[int, int], ranks: Mapping[int, int]) -> Node:
    """Return a node with the group or the partners of another rank."""
    if isinstance(node, Collective) and node.group is not None:
        return replace(node, group=groups[node.group])
    if isinstance(node, TraceMessage):
        return replace(node, source=ranks[node.source], destination=ranks[node.destination])
    return node


_Attributes = list[tuple[str, int, int | str]]


def _described(node: Node) -> tuple[int, int, _Attributes]:
    """Return type, duration [us] and attributes of a node."""
    if isinstance(node, Compute):
        return _COMPUTE, node.duration_us, _work(node)
    if isinstance(node, Collective):
        return _COLLECTIVE, 0, _exchange(node)
    return _SEND if node.is_send else _RECEIVE, 0, _ends(node)


def _work(node: Compute) -> _Attributes:
    """Return FLOPs and bytes. Readers divide by the FLOPs, so work without any has 1."""
    if not node.num_ops and not node.tensor_bytes:
        return []
    return [
        ("num_ops", _INT64, max(node.num_ops, 1)),
        ("tensor_size", _UINT64, node.tensor_bytes),
    ]


def _exchange(node: Collective) -> _Attributes:
    """Return kind, size and group; the size of an all-gather is that of one shard."""
    is_gather = node.kind is CollectiveKind.ALL_GATHER
    size = round(node.num_bytes / node.group_size) if is_gather else node.num_bytes
    attributes: _Attributes = [
        ("comm_type", _INT64, _KINDS[node.kind]),
        ("comm_size", _INT64, size),
    ]
    if node.group is not None:
        attributes.append(("pg_name", _STRING, str(node.group)))
    return attributes


def _ends(node: TraceMessage) -> _Attributes:
    """Return both ends, tag and size of a message."""
    return [
        ("comm_src", _INT32, node.source),
        ("comm_dst", _INT32, node.destination),
        ("comm_tag", _INT32, node.tag),
        ("comm_size", _INT64, node.num_bytes),
    ]
