"""Every walk: what it says that members hold is what its messages carry, and ends as it should.

The replay here knows nothing of how a walk is made. It starts from what the first frame holds and
carries the messages; what members make themselves it reads from the frame.
"""

from collections import Counter
from itertools import pairwise
from math import prod

import pytest
from oracles.collective_data import starting_data, wanted_data
from sampled import one_in, sampled

from meshwright.catalog.models import load_model
from meshwright.collectives.registry import collective_algorithms, least_sent_bytes
from meshwright.sharding.derivation import derive_calls
from meshwright.sharding.strategy import PlanOptions, Streamed
from meshwright.show.walks.block import block_walk
from meshwright.show.walks.collective import (
    can_be_followed,
    collective_walk,
    group_of,
    runs_on,
)
from meshwright.show.walks.named import dense_layer, usual_shape
from meshwright.show.walks.stream import Layer, stream_walk
from meshwright.spec.collective import CollectiveKind
from meshwright.streams.forms import streams

SHAPES = [*[(n,) for n in range(2, 9)], (2, 2), (3, 2), (2, 3), (4, 2), (3, 3), (2, 2, 2)]
FULL_BYTES = 2.0**20
LAYER = Layer("layer", 64, 32, 128)
GPT3 = load_model("gpt3-175b")
MIB = 2.0**20


PIPELINED = ((4,), (2, 2), (4, 2))
QUICK = ((4,), (4, 2))


def case(name, shape):
    """Return a collective on a group; of those in many pieces, and of most groups, not at once."""
    is_slow = shape not in QUICK or "pipelined" in name
    marks = [pytest.mark.slow] if is_slow else []
    return pytest.param(name, shape, id=f"{name}-{'x'.join(map(str, shape))}", marks=marks)


COLLECTIVES = [
    case(name, shape)
    for name in collective_algorithms
    for shape in SHAPES
    if (runs_on(collective_algorithms[name], shape) if "pipelined" not in name
        else shape in PIPELINED and can_be_followed(name, shape))
]  # fmt: skip


def contents(held):
    """Return (tensor, part) -> terms of what one member holds."""
    return {
        (group.tensor, part): frozenset(group.terms_of) for group in held for part in group.parts
    }


def replayed(walk):
    """Carry the messages from frame to frame and compare; yield what was held before and after."""
    before = [contents(held) for held in walk.frames[0].held]
    for frame in walk.frames[1:]:
        now = [contents(held) for held in frame.held]
        arrived = {}
        for message in frame.messages:
            assert message.num_bytes == len(message.parts) * walk.tensor(message.tensor).part_bytes
            for part in message.parts:
                key = (message.tensor, part)
                assert key in before[message.source], f"{frame.title}: {message} is not there"
                arrived.setdefault((message.destination, key), []).append(
                    (before[message.source][key], message.adds)
                )
        for (member, key), what in arrived.items():
            if key not in now[member]:
                continue
            terms = frozenset().union(*(terms for terms, _ in what))
            assert sum(len(terms) for terms, _ in what) == len(terms)
            if any(adds for _, adds in what):
                there = before[member].get(key, frozenset())
                assert terms <= now[member][key] <= terms | there | {member}
            else:
                assert now[member][key] == terms
        yield frame, before, now, arrived
        before = now


def test_replay_finds_a_message_of_what_is_not_there():
    walk = collective_walk("ring_all_gather", (4,), FULL_BYTES)
    late = type(walk)(**{**vars(walk), "frames": (walk.frames[0], *walk.frames[2:])})
    with pytest.raises(AssertionError, match="is not there"):
        list(replayed(late))


def test_every_algorithm_has_a_group_on_which_it_can_be_followed():
    assert [n for n in collective_algorithms if not can_be_followed(n, usual_shape(n))] == []


@pytest.mark.parametrize(("name", "shape"), COLLECTIVES)
def test_a_collective_ends_as_its_registry_asks(name, shape):
    algorithm, walk = collective_algorithms[name], collective_walk(name, shape, FULL_BYTES)
    size, tensor = prod(shape), walk.tensors[0]
    is_per_member = algorithm.kind in (CollectiveKind.ALL_TO_ALL, CollectiveKind.SEND)
    num_chunks = tensor.num_parts // (size if is_per_member else 1)

    def places(frame):
        return {
            (member, part): terms
            for member, held in enumerate(frame.held)
            for (_, part), terms in contents(held).items()
        }

    is_sum = algorithm.kind in (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER)
    first = starting_data(algorithm.kind, size, num_chunks)
    assert places(walk.frames[0]) == {
        place: terms if is_sum else frozenset() for place, terms in first.items()
    }
    for _, before, now, arrived in replayed(walk):
        for member, held in enumerate(now):
            for key, terms in held.items():
                assert (member, key) in arrived or before[member][key] == terms
    last, wanted = places(walk.frames[-1]), wanted_data(algorithm.kind, size, num_chunks)
    assert {place: last.get(place) for place in wanted} == {
        place: terms if is_sum else frozenset() for place, terms in wanted.items()
    }


@pytest.mark.parametrize(("name", "shape"), COLLECTIVES)
def test_a_collective_sends_the_bytes_of_its_algorithm(name, shape):
    algorithm, walk = collective_algorithms[name], collective_walk(name, shape, FULL_BYTES)
    kind, size = runs_on(algorithm, shape), prod(shape)
    messages = [message for frame in walk.frames for message in frame.messages]
    sent = sum(message.num_bytes for message in messages)
    listed = sum(t.num_bytes for t in algorithm.transfers(FULL_BYTES, group_of(shape, kind)))
    assert sent == pytest.approx(listed)
    assert sum(walk.frames[-1].sent_bytes) == pytest.approx(sent)
    assert walk.frames[-1].sent_bytes == pytest.approx(
        [
            sum(m.num_bytes for m in messages if m.source == member)
            for member in range(len(walk.members))
        ]
    )
    least = size * least_sent_bytes(algorithm.kind, FULL_BYTES, float(size))
    assert sent >= least * (1 - 1e-12) or algorithm.kind is CollectiveKind.SEND
    if name.startswith(("ring", "line", "bucket", "hierarchical_a", "hierarchical_r", "cycle")):
        assert sent == pytest.approx(least) or "all_to_all" in name


@pytest.mark.parametrize(("name", "shape"), COLLECTIVES)
def test_on_a_grid_messages_go_to_neighbours(name, shape):
    kind = runs_on(collective_algorithms[name], shape)
    if kind == "switch":
        return
    place = [
        tuple(rank // prod(shape[:k]) % side for k, side in enumerate(shape))
        for rank in range(prod(shape))
    ]
    for frame in collective_walk(name, shape, FULL_BYTES).frames:
        for message in frame.messages:
            apart = [
                (abs(a - b), side)
                for a, b, side in zip(
                    place[message.source], place[message.destination], shape, strict=True
                )
                if a != b
            ]
            assert len(apart) == 1
            ((distance, side),) = apart
            assert distance == 1 or (kind == "torus" and distance == side - 1)
            assert message.num_hops == 1


# ------------------------------------------------------------------------------------ streams

STREAMS = one_in(3, [
    pytest.param(form, n, streamed)
    for form in streams
    for n in range(2, 9)
    for streamed in (Streamed.WEIGHTS, Streamed.INPUTS)
])  # fmt: skip


def phase_of(walk, name):
    return [frame for frame in walk.frames if frame.phase == name]


@pytest.mark.parametrize(("form", "n", "streamed"), STREAMS)
def test_a_stream_makes_the_layer(form, n, streamed):
    """Each device makes its part of Y, dX and dW once, from what it then holds."""
    walk = stream_walk("tatp", form, n, LAYER, streamed)
    travels, stays = ("W", "X") if streamed is Streamed.WEIGHTS else ("X", "W")
    num_parts = walk.tensor(travels).num_parts // n
    uses = streams[form].uses(n)
    for phase, first in (("forward", 1), ("backward", 1)):
        frames = phase_of(walk, phase)
        for turn, used in enumerate(uses):
            for member, items in enumerate(used):
                held = contents(frames[first + turn - 1].held[member])
                assert {(travels, item) for item in items} <= held.keys()
    for _ in replayed(walk):
        pass
    done = phase_of(walk, "forward")[-1]
    tiles = [{part for tensor, part in contents(held) if tensor == "Y"} for held in done.held]
    assert set().union(*tiles) == set(range(walk.tensor("Y").num_parts))
    assert sum(map(len, tiles)) == walk.tensor("Y").num_parts
    everybody = frozenset(range(n))
    for member, held in enumerate(walk.frames[-1].held):
        own = range(member * num_parts, (member + 1) * num_parts)
        assert contents(held) == {
            **{(travels, item): frozenset() for item in own},
            **{(f"d{travels}", item): everybody for item in own},
            (stays, member): frozenset(),
            (f"d{stays}", member): frozenset(),
        }


@pytest.mark.parametrize(("form", "n", "streamed"), STREAMS)
def test_a_stream_sends_and_holds_its_closed_forms(form, n, streamed):
    walk = stream_walk("tatp", form, n, LAYER, streamed)
    travels = "W" if streamed is Streamed.WEIGHTS else "X"
    num_parts = walk.tensor(travels).num_parts // n
    sub_tensor = walk.tensor(travels).num_bytes / n
    assert num_parts == streams[form].num_parts(n)
    for phase, passes in (("forward", 1), ("backward", 2)):
        messages = [m for frame in phase_of(walk, phase) for m in frame.messages]
        crossed = sum(m.num_bytes * m.num_hops for m in messages)
        assert crossed == pytest.approx(passes * streams[form].transfers(n) * sub_tensor)
        assert max(m.num_hops for m in messages) == streams[form].num_hops(n)
    resident = incoming = 0
    frames = phase_of(walk, "forward")
    for before, frame in pairwise(frames):
        for member in range(n):
            foreign = [
                part
                for tensor, part in contents(before.held[member])
                if tensor == travels and part // num_parts != member
            ]
            arrives = sum(m.destination == member for m in frame.messages)
            resident = max(resident, len(foreign))
            incoming = max(incoming, len(foreign) + arrives)
    buffers = streams[form].buffers(n)
    assert (resident / num_parts, incoming / num_parts) == (buffers.resident, buffers.with_incoming)


# ------------------------------------------------------------------------------------- blocks


MODELS = (
    "gpt3-175b", "llama3-8b", "gemma2-2b", "olmo2-7b", "deepseek-v3", "falcon-40b", "bloom-176b",
    "mpt-7b", "qwen3-8b", "phi3-mini", "opt-125m", "glm4-9b", "gemma3-4b", "pythia-1b",
    "gpt-neox-20b", "olmo2-1b", "deepseek-v2-lite",
)  # fmt: skip
"""One of each kind: norms before and after, parallel branches, latent attention, biases."""


def block(size, *, sequence_parallel, model=GPT3, num_tokens=6144):
    return block_walk(
        "tp", dense_layer(model), model.name, size, num_tokens, sequence_parallel=sequence_parallel
    )


def kinds(walk, phase):
    return [(e.kind, e.tensor) for e in walk.exchanges if e.phase == phase]


@pytest.mark.parametrize("size", [2, 3, 4, 6, 8])
def test_tensor_parallelism_reduces_once_in_attention_and_once_in_the_network(size):
    walk = block(size, sequence_parallel=False)
    assert kinds(walk, "forward") == [("all-reduce", "O"), ("all-reduce", "D")]
    assert kinds(walk, "backward") == [("all-reduce", "dM"), ("all-reduce", "dN")]
    assert kinds(walk, "once a step") == []


@pytest.mark.parametrize("size", [2, 3, 4, 6, 8])
def test_sequence_parallelism_gathers_and_scatters_the_same_bytes(size):
    walk, plain = (block(size, sequence_parallel=split) for split in (True, False))
    assert kinds(walk, "forward") == [
        ("all-gather", "N"), ("reduce-scatter", "O"), ("all-gather", "M"), ("reduce-scatter", "D"),
    ]  # fmt: skip
    last = phase_of(walk, "forward")[-1].sent_bytes
    assert last == pytest.approx(phase_of(plain, "forward")[-1].sent_bytes)


def test_bytes_of_gpt3_by_hand():
    """A token has 2 x 12,288 bytes, so that 2,048 of them have 48 MiB; a layer has 12 h^2 weights.

    A ring of four sends 3/4 of that for a gather or a scatter, and twice as much for an all-reduce.
    """
    stream, weights = 48 * MIB, 12 * 12288**2 * 2.0
    for sequence_parallel, share in ((True, 4), (False, 1)):
        walk = block(4, sequence_parallel=sequence_parallel, num_tokens=2048)
        start = walk.frames[0]
        assert start.held_bytes == (weights / 4 + stream / share,) * 4
        assert phase_of(walk, "forward")[-1].sent_bytes == (4 * 36 * MIB,) * 4
    assert {e.num_bytes for e in walk.exchanges} == {stream}
    assert walk.frames[-1].sent_bytes == (8 * 36 * MIB,) * 4


def test_what_gpt3_keeps_by_hand():
    """Q, K, V and A of 48 MiB are always split, as are U and G of four times that.

    X, N, R, M and Y are split by tokens only. Statistics of attention are 2,048 x 96 numbers of
    four bytes.
    """
    weights, split, statistics = 864 * MIB, (4 + 2 * 4) * 48 * MIB / 4, 2048 * 96 * 4 / 4
    for sequence_parallel, share in ((True, 4), (False, 1)):
        walk = block(4, sequence_parallel=sequence_parallel, num_tokens=2048)
        kept = weights + split + statistics + 5 * 48 * MIB / share
        assert walk.kept_bytes("forward") == kept


@pytest.mark.parametrize("size", [2, 4, 8])
def test_nothing_at_rest_is_held_twice_under_sequence_parallelism(size):
    """Only what is gathered is, until the product that needs it is done."""
    walk = block(size, sequence_parallel=True)
    gathered = {e.tensor for e in walk.exchanges if e.kind == "all-gather"}
    for frame in walk.frames:
        held = [key for member in frame.held for key in contents(member)]
        terms = {key for member in frame.held for key, of in contents(member).items() if of}
        twice = {tensor for tensor, part in held if held.count((tensor, part)) > 1}
        open_sums = {tensor for tensor, _ in terms}
        assert twice <= gathered | open_sums
        if "step" not in frame.title:
            assert not twice & gathered
    for phase in ("forward", "backward"):
        ends = phase_of(walk, phase)
        for frame in (ends[0], ends[-1]):
            held = [key for member in frame.held for key in contents(member)]
            assert len(held) == len(set(held))
    alone = block(1, sequence_parallel=False)
    assert sum(walk.frames[0].held_bytes) == alone.frames[0].held_bytes[0]


def test_plain_tensor_parallelism_holds_the_residual_stream_on_every_device():
    start = block(4, sequence_parallel=False).frames[0]
    assert all(("X", 0) in contents(held) for held in start.held)


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("name", sampled(MODELS, 6))
def test_a_block_has_the_collectives_that_are_priced(name, sequence_parallel):
    model, options = load_model(name), PlanOptions(sequence_parallel=sequence_parallel)
    walk = block(2, sequence_parallel=sequence_parallel, model=model)
    calls = derive_calls(dense_layer(model), options, {"tp"})
    priced = Counter(str(call.kind) for call in calls if call.axis == "tp")
    assert Counter(e.kind.replace("-", "_") for e in walk.exchanges) == priced
    for exchange in walk.exchanges:
        kind = CollectiveKind(exchange.kind.replace("-", "_"))
        least = least_sent_bytes(kind, exchange.num_bytes, 2.0)
        assert exchange.sent_bytes == pytest.approx(least)


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("name", sampled(MODELS, 6))
def test_every_dense_model_has_its_walk(name, sequence_parallel):
    """Each member ends with its weights and their gradients and that of the input, no more."""
    model = load_model(name)
    walk = block(2, sequence_parallel=sequence_parallel, model=model)
    for _ in replayed(walk):
        pass
    weights = {t.name for t in walk.tensors if t.role == "weight"}
    everybody = frozenset(range(2))
    for held in walk.frames[-1].held:
        assert set(contents(held).values()) <= {frozenset(), everybody}
        assert {tensor for tensor, _ in contents(held)} == {
            *weights, *(f"d{name}" for name in weights), "dX",
        }  # fmt: skip
    assert walk.most_held_bytes <= walk.alone_bytes
