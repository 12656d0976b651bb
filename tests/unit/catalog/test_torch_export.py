"""Modules of PyTorch as graphs: FLOPs against its own counter, dims that can be split, refusals."""

import math
from itertools import pairwise

import pytest

from meshwright.base.errors import SpecError, UnsupportedError
from meshwright.catalog.graphs.files import checked, graph_of_text, graph_yaml
from meshwright.catalog.models import load_model
from meshwright.dataflow.layouts import splits_of
from meshwright.graph.kernels.backward import with_backward
from meshwright.graph.kernels.declared import to_graph, to_spec
from meshwright.graph.kernels.kernel import Unit
from meshwright.graph.kernels.models import model_graphs
from meshwright.graph.op import Phase

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from meshwright.catalog.graphs.torch_export import import_torch  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


class LlamaBlock(nn.Module):
    """Grouped queries, rotary positions, gated network, RMS norms."""

    def __init__(self, hidden, heads, kv_heads, ffn, length):
        super().__init__()
        size = hidden // heads
        self.norm1, self.norm2 = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key = nn.Linear(hidden, kv_heads * size, bias=False)
        self.value = nn.Linear(hidden, kv_heads * size, bias=False)
        self.output = nn.Linear(hidden, hidden, bias=False)
        self.gate = nn.Linear(hidden, ffn, bias=False)
        self.up = nn.Linear(hidden, ffn, bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)
        self.heads, self.kv_heads = heads, kv_heads
        self.register_buffer("cos", torch.zeros(length, size))
        self.register_buffer("sin", torch.zeros(length, size))

    def rotated(self, x):
        first, second = x.chunk(2, -1)
        return x * self.cos + torch.cat((-second, first), -1) * self.sin

    def forward(self, x):
        batch, length, hidden = x.shape
        y = self.norm1(x)
        query = self.query(y).view(batch, length, self.heads, -1).transpose(1, 2)
        key = self.key(y).view(batch, length, self.kv_heads, -1).transpose(1, 2)
        value = self.value(y).view(batch, length, self.kv_heads, -1).transpose(1, 2)
        heads = functional.scaled_dot_product_attention(
            self.rotated(query), self.rotated(key), value, is_causal=True, enable_gqa=True
        )
        x = x + self.output(heads.transpose(1, 2).reshape(batch, length, hidden))
        y = self.norm2(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class ConvNet(nn.Module):
    """Strided, grouped and padded convolutions, norms, pooling, a head."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 32, 5, padding=4), nn.GroupNorm(4, 32), nn.ReLU(inplace=True),
            nn.Conv2d(32, 32, 3, padding=1, groups=32), nn.Conv2d(32, 64, 1), nn.MaxPool2d(2),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(), nn.Linear(64, 10),
        )  # fmt: skip

    def forward(self, x):
        return functional.log_softmax(self.body(x), -1)


class Mixed(nn.Module):
    """A recommendation model in small: tables, dense layers, an einsum of all pairs."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(50 + n, 8) for n in range(3))
        self.bottom = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 8))
        self.top = nn.Linear(8 + 16, 1)

    def forward(self, dense, ids):
        x = self.bottom(dense)
        rows = [table(ids[:, n]) for n, table in enumerate(self.tables)]
        stacked = torch.stack([x, *rows], dim=1)
        pairs = torch.einsum("bte,bse->bts", stacked, stacked)
        return torch.sigmoid(self.top(torch.cat([x, pairs.flatten(1)], dim=-1)))


class Patches(nn.Module):
    """A vision transformer: patches by reshape, a class token, attention written out."""

    def __init__(self, width=32, heads=4):
        super().__init__()
        self.embed, self.qkv = nn.Linear(48, width), nn.Linear(width, 3 * width)
        self.out, self.norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.token, self.heads = nn.Parameter(torch.zeros(1, 1, width)), heads

    def forward(self, image):
        batch = image.shape[0]
        patches = image.reshape(batch, 3, 4, 4, 4, 4).permute(0, 2, 4, 1, 3, 5).flatten(3)
        x = self.embed(patches.flatten(1, 2))
        x = self.norm(torch.cat([self.token.expand(batch, -1, -1), x], dim=1))
        qkv = self.qkv(x).reshape(batch, -1, 3, self.heads, 8).permute(2, 0, 3, 1, 4)
        query, key, value = qkv[0], qkv[1], qkv[2]
        scores = (query @ key.transpose(-2, -1)) / math.sqrt(8)
        mixed = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
        return self.out(mixed)[:, 0].mean(-1, keepdim=True)


class Moves(nn.Module):
    """Parts, rows and orders: what computes nothing, around one product."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(8, 4, bias=False)

    def forward(self, x):
        y = self.out(x.clone())
        y[:, :2] = 0.0
        first, second = y.swapaxes(0, 1).unbind(0)[0], y.select(1, 3)
        best, places = torch.topk(y, 2, dim=-1)
        rows = y.gather(-1, places) + best
        some = y[torch.tensor([0, 1]), torch.tensor([2, 3])]
        steps = y.diff(dim=1).cumsum(1).roll(1, 1).mean(1)
        return rows.sum((1, 2)) + (first + second + some + steps).mean(-1)


def on_meta(build, *shapes):
    with torch.device("meta"):
        return build().eval(), tuple(torch.zeros(shape) for shape in shapes)


CASES = {
    "llama": on_meta(lambda: LlamaBlock(64, 4, 2, 96, 32), (2, 32, 64)),
    "conv": on_meta(ConvNet, (2, 3, 32, 32)),
    "patches": on_meta(Patches, (2, 3, 16, 16)),
    "mixed": (Mixed().eval(), (torch.zeros(4, 5), torch.zeros(4, 3, dtype=torch.int64))),
    "moves": (Moves().eval(), (torch.zeros(2, 5, 8),)),
    "encoder": on_meta(lambda: nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), (2, 8, 32)),
}


def counted_flops(module, arguments):
    with FlopCounterMode(display=False) as counter:
        module(*arguments)
    return counter.get_total_flops()


def product_flops(graph):
    return sum(k.flops(graph.sizes) for k in graph.kernels if k.unit is Unit.MATRIX)


@pytest.mark.parametrize("name", CASES)
def test_products_have_the_flops_that_torch_counts(name) -> None:
    module, arguments = CASES[name]
    graph = to_graph(import_torch(module, arguments))
    assert product_flops(graph) == counted_flops(module, arguments)
    assert graph.num_parameters == sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("name", CASES)
def test_imported_graphs_have_a_backward_pass_and_a_file(name) -> None:
    spec = import_torch(*CASES[name])
    assert graph_of_text(graph_yaml(spec)) == spec
    graph = to_graph(spec)
    training = with_backward(graph)
    checked(to_spec(training))
    made = [kernel for kernel in training.kernels if kernel.phase is Phase.WEIGHT_GRADIENT]
    assert len(made) == sum(len(kernel.weights) for kernel in graph.kernels)
    assert all(edge.producer < edge.consumer for edge in training.edges)
    assert product_flops(graph) < product_flops(training) <= 3 * product_flops(graph)


def split_over(graph, name, size):
    """Return the splits of a kernel over dims of one size."""
    kernel = graph.kernels[graph.number[name]]
    return [split for split in splits_of(kernel) if graph.sizes.get(split.dim) == size]


def test_heads_split_from_the_projection_to_the_output_without_a_layout_change() -> None:
    block, arguments = on_meta(lambda: LlamaBlock(72, 9, 3, 96, 32), (1, 32, 72))
    graph = to_graph(import_torch(block, arguments))
    core = "scaled_dot_product_attention"
    sizes = {"query": 72, "mul": 9, "add": 9} | dict.fromkeys(
        (f"{core}.scores", f"{core}.softmax", f"{core}.values", "output"), 3
    )
    for before, after in pairwise(sizes):
        written = {split.writes for split in split_over(graph, before, sizes[before])}
        assert written & {split.reads[0] for split in split_over(graph, after, sizes[after])}
    assert any(split.writes.is_partial for split in split_over(graph, "output", 3))


def test_named_dims_run_through_the_whole_graph() -> None:
    module, arguments = CASES["llama"]
    names = {"x": ("sequences", "tokens", "hidden")}
    graph = to_graph(import_torch(module, arguments, dims=names, tiled="tokens", repeats=3))
    last = graph.kernels[-1]
    assert last.dims == ("sequences", "tokens", "hidden")
    assert (graph.tiled, graph.repeats) == ("tokens", 3)
    scores = graph.kernels[graph.number["scaled_dot_product_attention.scores"]]
    assert scores.dims[-2:] == ("tokens", "keys")
    assert len(scores.dims) == 5


def test_dims_are_named_by_what_they_are_used_for() -> None:
    graph = to_graph(import_torch(*CASES["conv"]))
    assert graph.inputs["x"] == ("batch", "channels", "height", "width")
    assert graph.tiled == "batch"
    first, second = (graph.kernels[graph.number[name]] for name in ("body.0", "body.3"))
    assert first.dims == ("batch", "body.0.channels", "body.0.height", "body.0.width")
    assert second.weights[0].dims == (
        "body.3.channels", "body.0.channels", "body.3.kernel_height", "body.3.kernel_width",
    )  # fmt: skip
    graph = to_graph(import_torch(*CASES["llama"]))
    assert {"batch", "tokens", "keys", "heads", "head_dim"} < graph.sizes.keys()


def test_layers_share_the_names_of_their_dims() -> None:
    """Dims of weights that no kernel has both of; tokens keep apart, for they pass in tiles."""
    block, arguments = on_meta(
        lambda: nn.Sequential(*(LlamaBlock(64, 4, 2, 96, 32) for _ in range(3))), (2, 32, 64)
    )
    one, three = (to_graph(import_torch(m, arguments)) for m in (block[0], block))
    assert len(three.kernels) == 3 * len(one.kernels)
    held = [{d for k in g.kernels for w in k.weights for d in w.dims} for g in (one, three)]
    assert {tuple(sorted(dims)) for dims in held} == {tuple(sorted(held[0]))}


def test_a_graph_without_anything_to_learn_has_no_backward_pass() -> None:
    graph = to_graph(import_torch(Function(torch.relu), (torch.zeros(4, 8),)))
    with pytest.raises(SpecError, match=r"has a gradient.*let an input be no constant"):
        with_backward(graph)


@pytest.mark.slow
def test_only_inputs_that_ask_for_a_gradient_get_one() -> None:
    """A block of several does, an image does not: its convolution costs twice, not three times."""
    module, arguments = CASES["conv"]
    graph = with_backward(to_graph(import_torch(module, arguments)))
    assert "body.0.grad.x" not in graph.number
    forward, backward = (
        sum(k.flops(graph.sizes) for k in graph.kernels if k.name in names)
        for names in ({"body.0"}, {"body.0.grad.weight", "body.0.grad.x"})
    )
    assert backward == forward > 0
    asked = (arguments[0].clone().requires_grad_(),)
    for spec in (import_torch(module, asked), import_torch(module, arguments, repeats=2)):
        assert "body.0.grad.x" in with_backward(to_graph(spec)).number


def test_a_block_of_405_billion_parameters_takes_no_memory() -> None:
    module, arguments = on_meta(
        lambda: LlamaBlock(16384, 128, 8, 53248, 8192).to(torch.bfloat16), (1, 8192, 16384)
    )
    graph = to_graph(import_torch(module, (arguments[0].to(torch.bfloat16),), repeats=126))
    catalog = model_graphs(load_model("llama3.1-405b"), 8192)[1]
    assert graph.num_parameters == catalog.num_parameters
    assert product_flops(graph) == product_flops(catalog)
    assert (graph.word_bytes, graph.repeats) == (2.0, catalog.repeats)


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *arguments):
        return self.function(*arguments)


def read_function(function, *shapes):
    arguments = tuple(torch.zeros(shape, requires_grad=True) for shape in shapes)
    return to_graph(import_torch(Function(function), arguments))


FUNCTIONS = {
    # 5 N log2 N for each of 3 rows of 32, or the whole of 4 x 8 points; half of it for real numbers
    "fft": (lambda x: torch.fft.fft(x).abs(), (3, 32), 3 * 5 * 32 * 5 + 3 * 32),
    "fft2": (lambda x: torch.fft.fft2(x).real + 0.0, (3, 4, 8), 3 * 5 * 32 * 5 + 3 * 32),
    "rfft": (lambda x: torch.fft.irfft(torch.fft.rfft(x)), (3, 32), 2 * 3 * 2.5 * 32 * 5),
    # each element is looked at once for the values, once for their places
    "topk": (lambda x: torch.topk(x, 4)[0], (3, 32), 3 * 32),
    "topk-places": (lambda x: sum(torch.topk(x, 4)), (3, 32), 2 * 3 * 32 + 2 * 3 * 4),
    # four products and three sums for each point of the output; a repeat is no kernel
    "bilinear": (
        lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear"),
        (1, 3, 5, 7), 7 * 3 * 10 * 14,
    ),
    "bilinear-uneven": (
        lambda x: functional.interpolate(x, size=(8, 9), mode="bilinear"),
        (1, 3, 5, 7), 7 * 3 * 8 * 9,
    ),
    "nearest": (
        lambda x: functional.interpolate(x, scale_factor=2).relu(), (1, 3, 5, 7), 3 * 10 * 14
    ),
    "repeat-flat": (lambda x: x.repeat_interleave(3).relu(), (4, 5), 60),
    "repeat": (lambda x: x.repeat(2, 3).relu(), (4, 5), 120),
    "scatter": (
        lambda x: x.scatter_add(1, torch.zeros(3, 4, dtype=torch.int64), x[:, :4]),
        (3, 32), 3 * 32,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_have_the_flops_that_follow_by_hand(name) -> None:
    function, shape, flops = FUNCTIONS[name]
    graph = read_function(function, shape)
    assert sum(k.flops(graph.sizes) for k in graph.kernels) == pytest.approx(flops, rel=1e-12)
    checked(to_spec(with_backward(graph)))


def test_a_repeated_element_is_read_once() -> None:
    graph = read_function(lambda x: functional.interpolate(x, scale_factor=2).relu(), (1, 3, 5, 7))
    (kernel,) = graph.kernels
    (edge,) = kernel.inputs
    assert math.prod(graph.sizes[dim] for dim in edge.dims) == 3 * 5 * 7


@pytest.mark.parametrize(("stride", "window", "padding"), [(2, 2, 0), (2, 4, 1), (1, 3, 1)])
def test_transposed_convolutions_have_a_window_for_each_point(stride, window, padding) -> None:
    module = nn.ConvTranspose2d(8, 6, window, stride, padding, groups=2)
    arguments = (torch.zeros(2, 8, 5, 7),)
    graph = to_graph(import_torch(module, arguments))
    assert product_flops(graph) == counted_flops(module, arguments)
    assert product_flops(graph) == 2 * 2 * 4 * 3 * 2 * 5 * 7 * window**2
    assert len(graph.kernels) == (1 if stride == window else 2)


@pytest.mark.slow
def test_norms_that_overwrite_statistics_are_read_on_the_cpu() -> None:
    """In training a norm needs the whole batch, in inference it is a function of each element."""
    layers = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True)
    module, arguments = nn.Sequential(*layers), (torch.zeros(4, 3, 6, 6),)
    split = {}
    for trains in (True, False):
        graph = to_graph(import_torch(module.train(trains), arguments))
        norm = next(k for k in graph.kernels if any(w.name == "1.weight" for w in k.weights))
        split[trains] = {graph.sizes[s.dim] for s in splits_of(norm) if s.dim}
        assert product_flops(graph) == 2 * 4 * 36 * 8 * 27
    assert split == {True: {8}, False: {4, 8, 6}}


def test_recurrent_layers_by_hand() -> None:
    """Four gates for each of 20 states, from 32 numbers of the layer below and 64 of before."""
    module = nn.LSTM(32, 64, 2, batch_first=True)
    graph = to_graph(import_torch(module, (torch.zeros(2, 10, 32),)))
    assert product_flops(graph) == 20 * 2 * 4 * 64 * ((32 + 64) + (64 + 64))
    again = graph.kernels[graph.number["lstm.0.recurrent"]]
    assert {graph.sizes[split.dim] for split in splits_of(again) if split.dim} == {2}


def test_unknown_operators_are_refused_all_by_name() -> None:
    class Sorted(nn.Module):
        def forward(self, x):
            return torch.linalg.eig(x).eigenvalues.real + torch.linalg.matrix_exp(x)

    with pytest.raises(UnsupportedError, match=r"eig.*matrix_exp.*known operators: .*linear"):
        import_torch(Sorted(), (torch.zeros(4, 4),))


def test_names_for_inputs_are_checked() -> None:
    module, arguments = CASES["conv"]
    with pytest.raises(SpecError, match=r"2 faults(.|\n)*inputs: x"):
        import_torch(module, arguments, dims={"y": ("a",), "x": ("a", "b")})


def test_a_module_that_cannot_be_traced_is_refused() -> None:
    class Forked(nn.Module):
        def forward(self, x):
            return x + 1 if x.sum() > 0 else x

    with pytest.raises(SpecError, match=r"torch.export: "):
        import_torch(Forked(), (torch.zeros(4),))
