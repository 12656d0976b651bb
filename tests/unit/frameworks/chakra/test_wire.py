"""Bytes that ASTRA-sim read, and bytes that come back as they went in."""

import json
from pathlib import Path

import pytest
from chakra_traces import packed, read_trace, read_varint, records
from hypothesis import given
from hypothesis import strategies as st

from meshwright.frameworks.chakra.wire import (
    Collective,
    Compute,
    SharedTrace,
    TraceMessage,
    delimited,
    varint,
)
from meshwright.spec.collective import CollectiveKind

GOLDEN = json.loads((Path(__file__).parents[3] / "data" / "chakra_wire.json").read_text())
MIB = 2**20


class Same(dict):
    """Names that stay as they are."""

    def __missing__(self, key):
        return key


def trace(*nodes):
    return SharedTrace(nodes).of(Same(), Same())


def all_reduce(number, name, needs=()):
    return Collective(number, name, CollectiveKind.ALL_REDUCE, MIB, 8, needs=needs)


def golden_programs():
    """Yield the name of each example with the nodes of each of its ranks."""
    yield "all_reduce_1MiB_8ranks", [[all_reduce(rank + 1, "all_reduce")] for rank in range(8)]
    send = TraceMessage(1, "s", 0, 3, MIB, 1, is_send=True)
    receive = TraceMessage(2, "r", 0, 3, MIB, 1, is_send=False)
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
def test_golden_files(name, programs):
    """The same fields with the same values; ours are in the order that compresses best."""
    for nodes, expected in zip(programs, GOLDEN["files_hex"][name], strict=True):
        written, known = trace(*nodes), bytes.fromhex(expected)
        assert len(written) == len(known)
        assert read_trace(written) == read_trace(known)


def protobuf_classes():
    """Return the messages of the schema as protobuf itself makes them, as far as we write them.

    Names, numbers and types of mlcommons/chakra, schema/protobuf/et_def.proto.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    types = descriptor_pb2.FieldDescriptorProto
    one, many = types.LABEL_OPTIONAL, types.LABEL_REPEATED
    messages = {
        "Metadata": [("version", 1, types.TYPE_STRING, one)],
        "Attribute": [
            ("name", 1, types.TYPE_STRING, one), ("int32_val", 7, types.TYPE_INT32, one),
            ("int64_val", 9, types.TYPE_INT64, one), ("uint64_val", 13, types.TYPE_UINT64, one),
            ("bool_val", 27, types.TYPE_BOOL, one), ("string_val", 29, types.TYPE_STRING, one),
        ],
        "Node": [
            ("id", 1, types.TYPE_UINT64, one), ("name", 2, types.TYPE_STRING, one),
            ("type", 3, types.TYPE_INT32, one), ("data_deps", 5, types.TYPE_UINT64, many),
            ("duration_micros", 7, types.TYPE_UINT64, one),
            ("attr", 10, types.TYPE_MESSAGE, many),
        ],
    }  # fmt: skip
    file = descriptor_pb2.FileDescriptorProto(name="et.proto", package="et", syntax="proto3")
    for name, listed in messages.items():
        message = file.message_type.add(name=name)
        for field, number, kind, label in listed:
            of = ".et.Attribute" if kind == types.TYPE_MESSAGE else None
            message.field.add(name=field, number=number, type=kind, label=label, type_name=of)
    found = message_factory.GetMessages([file], pool=descriptor_pool.DescriptorPool())
    return found["et.Metadata"], found["et.Node"]


def as_protobuf_reads(data):
    """Return the version of a trace and its nodes, read by protobuf."""
    metadata, node = protobuf_classes()
    head, *rest = records(data)
    return metadata.FromString(head), [node.FromString(record) for record in rest]


@pytest.mark.parametrize(
    ("name", "programs"), list(golden_programs()), ids=lambda value: str(value)[:12]
)
def test_protobuf_reads_ours_as_it_reads_the_golden_files(name, programs):
    for nodes, expected in zip(programs, GOLDEN["files_hex"][name], strict=True):
        known = bytes.fromhex(expected)
        for ours, theirs in zip(as_protobuf_reads(trace(*nodes)), as_protobuf_reads(known),
                                strict=True):  # fmt: skip
            assert str(ours) == str(theirs)
        for read, written in zip(as_protobuf_reads(trace(*nodes))[1], nodes, strict=True):
            assert (read.id, read.name, tuple(read.data_deps)) == (
                written.number, written.name, written.needs
            )  # fmt: skip


def test_a_shared_trace_is_that_of_the_other_rank():
    def program(group, left, right):
        yield Compute(1, "c", 10, 20, 3)
        yield Collective(2, "g F0", CollectiveKind.ALL_GATHER, MIB, 4, group, (1,))
        yield TraceMessage(3, "s F0", left, right, MIB, 7, is_send=True, needs=(2,))
        yield TraceMessage(4, "r F0", right, left, MIB, 8, is_send=False)
        yield Collective(5, "g F1", CollectiveKind.ALL_GATHER, MIB, 4, group, (1, 4))

    shared = SharedTrace(program(1000, 3, 100))
    assert shared.of({1000: 1000}, {3: 3, 100: 100}) == trace(*program(1000, 3, 100))
    assert shared.of({1000: 1234}, {3: 100, 100: 3}) == trace(*program(1234, 100, 3))
    assert shared.of({1000: 99}, {3: 300, 100: 2}) == trace(*program(99, 300, 2))


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
        st.builds(TraceMessage, number, text, rank, rank, size, rank, st.booleans(), needs),
    ),
    max_size=5,
)


def expected_attributes(node):
    if isinstance(node, Compute):
        if not node.num_ops and not node.tensor_bytes:
            return {}
        return {"num_ops": max(node.num_ops, 1), "tensor_size": node.tensor_bytes}
    if isinstance(node, TraceMessage):
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
        if kind == "tracemessage":
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
