"""Bytes that ASTRA-sim read, and bytes that come back as they went in."""

import json
from pathlib import Path

import pytest
from chakra_traces import packed, read_trace, read_varint
from hypothesis import given
from hypothesis import strategies as st

from meshwright.frameworks.chakra.wire import (
    Collective,
    Compute,
    Message,
    delimited,
    encoded_trace,
    varint,
)
from meshwright.spec.collective import CollectiveKind

GOLDEN = json.loads((Path(__file__).parents[3] / "data" / "chakra_wire.json").read_text())
MIB = 2**20


def trace(*nodes):
    return b"".join(encoded_trace(nodes))


def all_reduce(number, name, needs=()):
    return Collective(number, name, CollectiveKind.ALL_REDUCE, MIB, 8, needs=needs)


def golden_programs():
    """Yield the name of each example with the nodes of each of its ranks."""
    yield "all_reduce_1MiB_8ranks", [[all_reduce(rank + 1, "all_reduce")] for rank in range(8)]
    send = Message(1, "s", 0, 3, MIB, 1, is_send=True)
    receive = Message(2, "r", 0, 3, MIB, 1, is_send=False)
    yield "p2p_0_to_3_1MiB_8ranks", [[send], [], [], [receive], [], [], [], []]
    steps = [
        Compute(1, "c", duration_us=10),
        all_reduce(2, "ar", (1,)),
        Compute(3, "c", duration_us=10, needs=(2,)),
    ]
    yield "compute10us_allreduce_compute10us_8ranks", [steps] * 8


@pytest.mark.parametrize(
    ("name", "programs"), list(golden_programs()), ids=lambda value: str(value)[:12]
)
def test_golden_bytes(name, programs):
    expected = GOLDEN["files_hex"][name]
    assert [trace(*nodes).hex() for nodes in programs] == expected


def test_all_golden_files_are_rebuilt():
    assert {name for name, _ in golden_programs()} == set(GOLDEN["files_hex"])


@pytest.mark.parametrize(
    ("value", "expected"), [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02")]
)
def test_varints_by_hand(value, expected):
    assert varint(value).hex() == expected


@given(st.integers(0, 2**64 - 1))
def test_varints_come_back(value):
    assert read_varint(varint(value), 0) == (value, len(varint(value)))


def test_a_long_record_has_a_length_of_two_bytes():
    assert delimited(bytes(200))[:2].hex() == "c801"


CODES = {"all_reduce": 0, "all_gather": 2, "broadcast": 5, "all_to_all": 6, "reduce_scatter": 7}

size = st.integers(0, 2**50)
needs = st.lists(st.integers(1, 2**20), max_size=4).map(tuple)
text = st.text(max_size=20)
number = st.integers(1, 2**40)
rank = st.integers(0, 2**20)
nodes = st.lists(
    st.one_of(
        st.builds(Compute, number, text, size, size, st.integers(0, 2**30), needs),
        st.builds(
            Collective,
            number,
            text,
            st.sampled_from([CollectiveKind(kind) for kind in CODES]),
            size,
            st.integers(1, 64),
            st.one_of(st.none(), rank),
            needs,
        ),
        st.builds(Message, number, text, rank, rank, size, rank, st.booleans(), needs),
    ),
    max_size=5,
)


def expected_attributes(node):
    if isinstance(node, Compute):
        if not node.num_ops and not node.tensor_bytes:
            return {}
        return {"num_ops": max(node.num_ops, 1), "tensor_size": node.tensor_bytes}
    if isinstance(node, Message):
        return {
            "comm_src": node.source, "comm_dst": node.destination, "comm_tag": node.tag,
            "comm_size": node.num_bytes,
        }  # fmt: skip
    shards = node.group_size if node.kind == "all_gather" else 1
    group = {} if node.group is None else {"pg_name": str(node.group)}
    return {"comm_type": CODES[node.kind], "comm_size": round(node.num_bytes / shards)} | group


@given(nodes)
def test_nodes_come_back(written):
    for node, read in zip(written, read_trace(trace(*written)), strict=True):
        assert (read.number, read.name, read.needs) == (node.number, node.name, node.needs)
        assert read.duration_us == getattr(node, "duration_us", 0)
        assert read.attributes == {"is_cpu_op": 0} | expected_attributes(node)
        kind = type(node).__name__.lower()
        if kind == "message":
            kind = "send" if node.is_send else "receive"
        assert read.type == kind


@given(nodes)
def test_official_classes_read_the_same(written):
    schema = pytest.importorskip("chakra.schema.protobuf.et_def_pb2")
    data, at = trace(*written), 0
    length, at = read_varint(data, at)
    assert schema.GlobalMetadata.FromString(data[at : at + length]).version == "0.0.4"
    for node in read_trace(data):
        at += length
        length, at = read_varint(data, at)
        official = schema.Node.FromString(data[at : at + length])
        assert (official.id, official.name) == (node.number, node.name)
        assert tuple(official.data_deps) == node.needs
        values = {entry.name: getattr(entry, entry.WhichOneof("value")) for entry in official.attr}
        assert values == node.attributes
    assert at + length == len(data)


def test_packed_numbers():
    assert packed(bytes.fromhex("ac0201")) == (300, 1)
