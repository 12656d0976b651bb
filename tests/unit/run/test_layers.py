"""Each layer alone on a few processes: what it sends, by hand, and what it computes."""

import doctest
from functools import partial
from math import inf, log
from multiprocessing import get_context

import pytest
import torch
import torch.distributed as dist

from meshwright.catalog.models import load_model
from meshwright.graph.op import Phase
from meshwright.run.layers import cuts, streams
from meshwright.run.layers.attention import attention
from meshwright.run.layers.column import Column
from meshwright.run.layers.elementwise import gate, rotated
from meshwright.run.layers.embedding import VocabularyEmbedding
from meshwright.run.layers.experts import dispatch_and_combine
from meshwright.run.layers.linear import SplitLinear
from meshwright.run.layers.loss import cross_entropy
from meshwright.run.layers.norm import SplitNorm
from meshwright.run.layers.online_softmax import merged
from meshwright.run.layers.products import Product
from meshwright.run.layers.row import Row
from meshwright.run.layers.streamed_tokens import StreamedTokens
from meshwright.run.layers.streamed_weights import StreamedWeights
from meshwright.run.layers.streams import Stream
from meshwright.run.layers.tokens import Tokens
from meshwright.run.layers.ulysses import tokens_to_heads
from meshwright.run.mesh import Axis
from meshwright.run.model import Bank, Experts, draw, gated, norm_of
from meshwright.run.processes import HOST, free_port
from meshwright.run.recorder import Recorder
from meshwright.show.walks.named import WalkQuestion, walk_of
from meshwright.spec.choices import Streamed
from meshwright.spec.model import ExpertSpec
from meshwright.streams.forms import CycleStream, LineStream, RingStream

B, S, H = 1, 8, 8
"""Sequences, tokens of each, width: the numbers of the docstrings."""
IDS = torch.tensor([[1, 9, 4, 5, 0, 7, 2, 9]])


def drawn(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)


def own(x, axis, dim):
    """Return the part of a rank, as a leaf with a gradient of its own."""
    return x.detach().chunk(axis.size, dim)[axis.index].clone().requires_grad_()


def column(axis):
    x, weight = drawn(B, S, H), drawn(12, H, seed=1)
    expected = x @ weight.T
    part = own(x, axis, 1)
    layer = SplitLinear(Column, own(weight, axis, 0), None, (Tokens(axis, True), Product(), "one"))
    return layer(part), expected.chunk(axis.size, -1)[axis.index]


def row(axis):
    x, weight = drawn(B, S, 12), drawn(H, 12, seed=1)
    part = own(x, axis, 2)
    layer = SplitLinear(Row, own(weight, axis, 1), None, (Tokens(axis, True), Product(), "one"))
    return layer(part), (x @ weight.T).chunk(axis.size, 1)[axis.index]


def embedding(axis):
    table = drawn(10, H)  # 3, 3, 3 and 1 rows
    layer = VocabularyEmbedding(own(table, axis, 0), 3 * axis.index, ((axis, True),))
    return layer(IDS), table[IDS].chunk(axis.size, 1)[axis.index]


def loss(axis):
    logits = drawn(B, S, 10)
    made = cross_entropy(own(logits, axis, 2), IDS, 3 * axis.index, [axis])
    expected = torch.nn.functional.cross_entropy(logits[0], IDS[0], reduction="none")
    return made, expected[None]


def ring_attention(axis):
    q, k, v = drawn(B, S, 2, 4), drawn(B, S, 1, 4, seed=1), drawn(B, S, 1, 4, seed=2)
    parts = [own(x, axis, 1) for x in (q, k, v)]
    positions = torch.arange(S).chunk(axis.size)
    made = attention(
        *parts,
        [Stream(axis, RingStream())],
        lambda owner: positions[axis.index][:, None] >= positions[owner[0]],
    )
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (q, k, v)), is_causal=True, enable_gqa=True
    )
    return made, expected.transpose(1, 2).chunk(axis.size, 1)[axis.index]


def ulysses(axis):
    x = drawn(B, S, 4, 8)
    return tokens_to_heads(own(x, axis, 1), axis, "one"), x.chunk(axis.size, 2)[axis.index]


def experts(axis):
    spec = ExpertSpec(num_experts=4, top_k=4, ffn_size=3)
    x = drawn(B, S, H)
    layer, bank = Experts(H, spec).double(), Bank(H, spec)
    for name, weight in layer.named_parameters():
        draw(weight, name, 0)
    whole = layer(x)
    for name, weight in layer.bank.named_parameters():
        setattr(bank, name, torch.nn.Parameter(own(weight, axis, 0)))
    layer.visit = partial(dispatch_and_combine, bank, axis)
    return layer(own(x, axis, 1)), whole.chunk(axis.size, 1)[axis.index]


def streamed_weights(axis):
    x, weight = drawn(B, S, H), drawn(8, H, seed=1)
    tokens = Tokens(Axis("tp", (0,), 0, axis.recorder), False)
    product = StreamedWeights(Stream(axis, LineStream(inf)), 8)
    layer = SplitLinear(Column, own(weight, axis, 0), None, (tokens, product, "one"))
    return layer(own(x, axis, 1)), (x @ weight.T).chunk(4, 1)[axis.index]


def streamed_inputs(axis):
    x, weight = drawn(B, S, H), drawn(8, H, seed=1)
    tokens = StreamedTokens(
        Axis("tp", (0,), 0, axis.recorder), False, Stream(axis, LineStream(inf))
    )
    layer = SplitLinear(Column, own(weight, axis, 0), None, (tokens, Product(), "one"))
    return layer(own(x, axis, 1)), (x @ weight.T).chunk(axis.size, 2)[axis.index]


CASES = (column, row, embedding, loss, ring_attention, ulysses, experts, streamed_weights,
         streamed_inputs)  # fmt: skip


def forms_of(size):
    lines = [LineStream(float(held)) for held in range((size + 1) // 2 + 1)]
    return [RingStream(), RingStream(is_folded=True), *lines, *([CycleStream()] * (size % 2 == 0))]


def is_right(axis, form):
    """Return whether items are right after a pass, sums on the way back, and buffers at most."""
    stream = Stream(axis, form)
    x = torch.arange(3.0 * axis.size * stream.num_parts)
    items = list(x.split(3))
    first = axis.index * stream.num_parts
    own = items[first : first + stream.num_parts]
    shapes = [(3,)] * len(items)
    found = dict(stream.gather(own, shapes, "", Phase.FORWARD))
    mine = axis.index + 1
    sums = stream.scatter_sum(lambda item: items[item] * mine, x, shapes, "", Phase.FORWARD)
    number = axis.size * (axis.size + 1) // 2
    is_there = all(torch.equal(found[item], items[item]) for item in range(len(items)))
    pairs = zip(sums, own, strict=True)
    held = torch.tensor(axis.recorder.passes[-2].most_held)
    dist.all_reduce(held, dist.ReduceOp.MAX)
    room = form.buffers(float(axis.size)).with_incoming * stream.num_parts
    is_there = is_there and int(held) == room
    return is_there and all(torch.equal(total, item * number) for total, item in pairs)


def work(rank, size, port, there):
    """Run the cases of a number of processes: differences, elements by phase, sends of passes."""
    torch.set_num_threads(1)
    where = f"tcp://{HOST}:{port}"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=size)
    alone = Axis("one", tuple(range(size)), rank, Recorder(), dist.group.WORLD)
    found = {"wrong": [form for form in forms_of(size) if not is_right(alone, form)]}
    for case in CASES if size == 4 else ():
        axis = Axis("one", tuple(range(size)), rank, Recorder(), dist.group.WORLD)
        with axis.recorder:
            made, expected = case(axis)[:2]
            made.sum().backward()
        elements = [(c.phase, str(c.kind), n / 8) for c, n in axis.recorder.num_bytes.items()]
        sends = [[send for send, _ in one.sends] for one in axis.recorder.passes]
        found[case.__name__] = (float((made - expected).abs().max()), sorted(elements), sends)
    there.send(found)
    dist.destroy_process_group()


def results(size):
    context = get_context("forkserver")
    context.set_forkserver_preload(["meshwright.run.real"])
    pairs = [context.Pipe(duplex=False) for _ in range(size)]
    port = free_port()
    processes = [context.Process(target=work, args=(rank, size, port, pairs[rank][1]))
                 for rank in range(size)]  # fmt: skip
    for process in processes:
        process.start()
    found = [here.recv() for here, _ in pairs]
    for process in processes:
        process.join()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("size", [3, 5, 6, 7, 8])
def test_every_form_carries_every_item_there_and_back(size):
    assert [one["wrong"] for one in results(size)] == [[]] * size


@pytest.fixture(scope="module")
def four():
    return results(4)


FORWARD, INPUT, WEIGHT = map(str, (Phase.FORWARD, Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT))
BY_HAND = {
    # b s h = 1 x 8 x 8 elements gathered, reduced, and gathered again
    "column": [(FORWARD, "all_gather", 64), (INPUT, "reduce_scatter", 64),
               (WEIGHT, "all_gather", 64)],
    "row": [(FORWARD, "reduce_scatter", 64), (INPUT, "all_gather", 64)],
    "embedding": [(FORWARD, "reduce_scatter", 64), (WEIGHT, "all_gather", 64)],
    # maximum, sum and target of eight tokens
    "loss": [(FORWARD, "all_reduce", 8)] * 3,
    # keys and values of one head of size 4: 8 x (4 + 4)
    "ring_attention": [(FORWARD, "all_gather", 64), (INPUT, "all_gather", 64),
                       (INPUT, "reduce_scatter", 64)],
    # a rank holds 2 tokens x 4 heads x 8
    "ulysses": [(FORWARD, "all_to_all", 64), (INPUT, "all_to_all", 64)],
    # 2 tokens of a rank x 4 choices x 8, there and back
    "experts": [(FORWARD, "all_to_all", 64)] * 2 + [(INPUT, "all_to_all", 64)] * 2,
}  # fmt: skip


@pytest.mark.parametrize("name", BY_HAND)
def test_a_layer_sends_what_its_docstring_says(name, four):
    for rank in range(4):
        difference, elements, _ = four[rank][name]
        assert difference < 1e-12
        assert elements == sorted(BY_HAND[name])


def test_streams_send_what_their_docstrings_say(four):
    found = four
    assert [one["wrong"] for one in found] == [[]] * 4
    weights, inputs = (
        [found[rank][name] for rank in range(4)] for name in ("streamed_weights", "streamed_inputs")
    )
    assert max(one[0] for one in (*weights, *inputs)) < 1e-12
    # Weights: 8 x 8 elements, three passes, N (N - 1) = 12 sends each. Inputs: 8 x 8, three too.
    for ranks in (weights, inputs):
        assert [sum(map(len, passes)) for passes in zip(*(r[2] for r in ranks), strict=True)] == [
            12
        ] * 3
    assert weights[0][1] == [(FORWARD, "all_gather", 64), (INPUT, "all_gather", 64),
                             (WEIGHT, "reduce_scatter", 64)]  # fmt: skip
    assert inputs[0][1] == [(FORWARD, "all_gather", 64), (INPUT, "reduce_scatter", 64),
                            (WEIGHT, "all_gather", 64)]  # fmt: skip
    question = WalkQuestion(
        "tatp", (4,), load_model("gpt3-175b"), 2048, 0.0, "hold", Streamed.INPUTS
    )
    rounds = [frame for frame in walk_of(question).frames
              if frame.phase == "forward" and frame.title.startswith("round")]  # fmt: skip
    shown = {(turn, m.source, m.destination, m.parts[0])
             for turn, frame in enumerate(rounds) for m in frame.messages}  # fmt: skip
    assert {tuple(send) for one in inputs for send in one[2][0]} == shown
    assert len(shown) == 12


@pytest.mark.parametrize("module", [streams, cuts])
def test_the_examples_of_docstrings_are_true(module):
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0


@pytest.mark.parametrize("kind", ["rms", "layer", "layer_unweighted"])
def test_a_norm_by_hand_has_the_gradients_of_torch(kind):
    dense = norm_of(kind, H).double()
    x = drawn(B, S, H)
    made, expected = SplitNorm(dense)(x), dense(x)
    assert torch.allclose(made, expected, atol=1e-12)
    inputs = [x, *dense.parameters()]
    grads = [torch.autograd.grad(y.square().sum(), inputs) for y in (made, expected)]
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(*grads, strict=True))


def test_a_norm_by_hand():
    """Tokens (3, 4): the root of the mean square is sqrt(12.5), so 3 becomes 0.8485."""
    made = SplitNorm(norm_of("rms", 2))(torch.tensor([[[3.0, 4.0]]]))
    assert made[0, 0].tolist() == pytest.approx([3 / 12.5**0.5, 4 / 12.5**0.5], rel=1e-5)


def test_two_pieces_of_a_softmax_by_hand():
    """Scores (0, 0) with outputs 6, and (0) with output 3: 6 x 2/3 + 3 x 1/3 = 5, l = log 3."""
    pieces = [(torch.full((1, 1, 1, 1, 1), y), torch.full((1, 1, 1, 1), count).log())
              for y, count in ((6.0, 2.0), (3.0, 1.0))]  # fmt: skip
    out, log_sum = merged(*pieces)
    assert float(out) == pytest.approx(5.0)
    assert float(log_sum) == pytest.approx(log(3.0))


def test_a_gate_and_a_rotation_have_the_gradients_of_torch():
    inner = drawn(B, S, 6)
    assert torch.autograd.gradcheck(lambda x: gate(*x.chunk(2, -1)), inner)
    heads = drawn(B, S, 1, 4)
    assert torch.autograd.gradcheck(lambda x: rotated(x, torch.arange(S)), heads)
    assert torch.allclose(gate(*inner.chunk(2, -1)), gated(*inner.chunk(2, -1)))


def test_cuts_by_hand():
    """Ten rows over four members: 3, 3, 2, 2; two parts each of a cycle: 2 1, 2 1, 1 1, 1 1."""
    assert cuts.cuts(10, 4) == [(0, 3), (3, 6), (6, 8), (8, 10)]
    assert [stop - start for start, stop in cuts.cuts(10, 4, 2)] == [2, 1, 2, 1, 1, 1, 1, 1]
