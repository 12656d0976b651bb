"""A reader of Chakra traces that knows the wire format and nothing of the writer."""

from __future__ import annotations

from dataclasses import dataclass, field

NODE_FIELDS = {1: "number", 2: "name", 3: "type", 5: "needs", 7: "duration_us"}
TYPES = {4: "compute", 5: "send", 6: "receive", 7: "collective"}
INT32, INT64, UINT64, BOOL, STRING = 7, 9, 13, 27, 29
EXPECTED_FIELDS = {
    "is_cpu_op": BOOL, "num_ops": INT64, "tensor_size": UINT64, "comm_type": INT64,
    "comm_size": INT64, "comm_src": INT32, "comm_dst": INT32, "comm_tag": INT32,
    "pg_name": STRING,
}  # fmt: skip
"""The field that ASTRA-sim reads each attribute from."""


@dataclass
class ReadNode:
    """A node as it stands in the file."""

    number: int = 0
    name: str = ""
    type: str = ""
    needs: tuple[int, ...] = ()
    duration_us: int = 0
    attributes: dict[str, int | str] = field(default_factory=dict)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and where it ends."""
    value, shift = 0, 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def read_fields(data: bytes):
    """Yield number and value of each field of a message."""
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        if key & 7 == 0:
            value, at = read_varint(data, at)
        else:
            assert key & 7 == 2, "only varints and lengths are used"
            length, at = read_varint(data, at)
            assert at + length <= len(data)
            value, at = data[at : at + length], at + length
        yield key >> 3, value


def records(data: bytes) -> list[bytes]:
    """Return the records of a file."""
    found, at = [], 0
    while at < len(data):
        length, at = read_varint(data, at)
        found.append(data[at : at + length])
        at += length
    assert at == len(data)
    return found


def packed(data: bytes) -> tuple[int, ...]:
    """Return packed numbers."""
    found, at = [], 0
    while at < len(data):
        value, at = read_varint(data, at)
        found.append(value)
    return tuple(found)


def read_node(data: bytes) -> ReadNode:
    """Return one node; an attribute in a field that ASTRA-sim does not read is an error."""
    node = ReadNode()
    for number, value in read_fields(data):
        if number == 10:
            (_, name), (typed, content) = read_fields(value)
            assert EXPECTED_FIELDS[name.decode()] == typed
            shown = content.decode() if typed == STRING else content
            node.attributes[name.decode()] = shown
        elif number == 3:
            node.type = TYPES[value]
        elif number == 5:
            node.needs = packed(value)
        else:
            setattr(node, NODE_FIELDS[number], value.decode() if number == 2 else value)
    return node


def read_trace(data: bytes) -> list[ReadNode]:
    """Return the nodes of a file, whose first record is the version of the schema."""
    head, *nodes = records(data)
    assert list(read_fields(head)) == [(1, b"0.0.4")]
    return [read_node(node) for node in nodes]
