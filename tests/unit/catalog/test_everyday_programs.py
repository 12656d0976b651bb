"""Branches, loops, cells, bags, losses and quantised products of PyTorch, by hand."""

import pytest

from meshwright.base.errors import SpecError
from meshwright.graph.kernels.declared import to_graph
from meshwright.graph.kernels.kernel import Unit

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch._higher_order_ops.scan import scan  # noqa: E402
from torch._higher_order_ops.while_loop import while_loop  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.nn.attention.flex_attention import create_block_mask, flex_attention  # noqa: E402

from meshwright.catalog.graphs.programs import read_program  # noqa: E402
from meshwright.catalog.graphs.torch_export import import_torch  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


class Calls(nn.Module):
    """A function of tensors and of one layer of 4 x 4."""

    def __init__(self, function):
        super().__init__()
        self.layer, self.function = nn.Linear(4, 4), function

    def forward(self, *tensors):
        return self.function(self.layer, *tensors)


def read(function, *tensors, **options):
    """Return the FLOPs of products, and the names of kernels, of a function of a layer."""
    spec = import_torch(Calls(function), tensors, name="net", **options)
    graph = to_graph(spec)
    flops = sum(k.flops(graph.sizes) for k in graph.kernels if k.unit is Unit.MATRIX)
    return flops, [kernel.name for kernel in graph.kernels]


X = torch.zeros(2, 4)
LAYER = 2 * 2 * 4 * 4


def branch(layer, x):
    return torch.cond(x.sum() > 0, lambda x: layer(layer(x)), lambda x: layer(x), (x,))


def loop(layer, x):
    first = torch.zeros((), dtype=torch.int64)
    return while_loop(lambda i, x: i < 7, lambda i, x: (i + 1, layer(x)), (first, x))[1]


def test_the_branch_that_is_stated_is_read() -> None:
    with pytest.raises(SpecError, match=r"--dim cond: runs one of its branches"):
        read(branch, X)
    with pytest.raises(SpecError, match=r"--dim cond: 3 is no branch \(1 to 2\)"):
        read(branch, X, sizes={"cond": 3})
    assert read(branch, X, sizes={"cond": 1})[0] == 2 * LAYER
    assert read(branch, X, sizes={"cond": 2})[0] == LAYER


def test_a_loop_runs_as_often_as_is_stated(tmp_path, monkeypatch) -> None:
    with pytest.raises(SpecError, match=r"--dim while_loop: runs as often as the data decide"):
        read(loop, X)
    assert read(loop, X, sizes={"while_loop": 7})[0] == 7 * LAYER
    assert read(loop, X, sizes={"while_loop": 3, "batch": 10})[0] == 3 * 5 * LAYER
    path = str(tmp_path / "loop.pt2")
    torch.export.save(torch.export.export(Calls(loop), (X,)), path)
    graph = to_graph(read_program(path, sizes={"while_loop": 7}))
    assert sum(k.flops(graph.sizes) for k in graph.kernels if k.unit is Unit.MATRIX) == 7 * LAYER
    monkeypatch.setattr("meshwright.catalog.graphs.exported._MOST_CALLS", 100)
    with pytest.raises(SpecError, match="takes too many steps: more than 100,"):
        read_program(path, sizes={"while_loop": 10**9})


def test_a_scan_runs_once_for_each_place() -> None:
    def scanned(layer, x):
        return scan(lambda state, y: (layer(state) + y, state.sin()), torch.zeros(2, 4), x)

    assert read(scanned, torch.zeros(5, 2, 4))[0] == 5 * LAYER


def test_blocks_under_other_settings_are_read() -> None:
    def narrow(layer, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return layer(x)

    assert read(narrow, X)[0] == LAYER


def test_flex_attention_counts_all_scores() -> None:
    """Two products of 1 x 2 heads x 128 x 128 x 16."""

    def masked(_, q, k, v):
        mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 128, 128, device="cpu")
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + i, block_mask=mask)

    heads = [torch.zeros(1, 2, 128, 16) for _ in range(3)]
    assert read(masked, *heads)[0] == 2 * 2 * 2 * 128 * 128 * 16


@pytest.mark.parametrize(
    ("equation", "shapes", "flops"),
    [
        ("...ij,...jk->...ik", ([2, 3, 4], [2, 4, 5]), 2 * 2 * 3 * 4 * 5),
        ("bij,bjk", ([2, 3, 4], [2, 4, 5]), 2 * 2 * 3 * 4 * 5),
        ("bii,bij->bj", ([2, 4, 4], [2, 4, 5]), 2 * 2 * 4 * 5),  # a diagonal: PyTorch takes it
    ],
)
def test_all_equations_of_einsum_are_read(equation, shapes, flops) -> None:
    tensors = [torch.zeros(shape) for shape in shapes]
    assert read(lambda _, *x: torch.einsum(equation, *x), *tensors)[0] == flops


def test_cells_have_the_products_of_their_gates() -> None:
    """Four gates of 6 from 4 + 6 numbers, then three of 6 from 6 + 6, for 3 rows."""

    class Cells(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.LSTMCell(4, 6), nn.GRUCell(6, 6)

        def forward(self, x):
            return self.second(self.first(x)[0])

    graph = to_graph(import_torch(Cells(), (torch.zeros(3, 4),)))
    flops = sum(k.flops(graph.sizes) for k in graph.kernels if k.unit is Unit.MATRIX)
    assert flops == 2 * 3 * (4 * 6 * (4 + 6) + 3 * 6 * (6 + 6))


def test_a_bag_of_rows_reads_its_rows_and_adds_them() -> None:
    """12 rows of 4 in 3 bags."""
    bag = nn.EmbeddingBag(20, 4)
    graph = to_graph(
        import_torch(bag, (torch.zeros(12, dtype=torch.int64), torch.tensor([0, 4, 8])))
    )
    rows, total = graph.kernels
    assert (rows.unit, total.unit) == (Unit.NONE, Unit.VECTOR)
    assert total.flops(graph.sizes) == 12 * 4
    assert graph.num_parameters == 80


@pytest.mark.parametrize(
    ("loss", "target"),
    [
        ("cross_entropy", torch.zeros(6, dtype=torch.int64)),
        ("nll_loss", torch.zeros(6, dtype=torch.int64)),
        ("mse_loss", torch.zeros(6, 4)),
        ("kl_div", torch.zeros(6, 4)),
        ("binary_cross_entropy_with_logits", torch.zeros(6, 4)),
    ],
)
def test_losses_end_in_one_number(loss, target) -> None:
    def function(layer, x, target):
        return layer(x).sum(0) + getattr(functional, loss)(layer(x), target)

    flops, names = read(function, torch.zeros(6, 4), target)
    assert flops == 2 * 3 * LAYER
    assert any(name.startswith(loss.removesuffix("_loss")) for name in names)


def test_quantised_products_read_their_scales() -> None:
    """32 x 64 x 16 in one byte, a scale for each row and column."""

    def scaled(_, a, b, row, column):
        return torch._scaled_mm(a, b.t(), row, column, out_dtype=torch.bfloat16)

    narrow = [torch.zeros(n, 64).to(torch.float8_e4m3fn) for n in (32, 16)]
    spec = import_torch(Calls(scaled), (*narrow, torch.ones(32, 1), torch.ones(1, 16)))
    (product,) = spec.kernels.values()
    assert len(product.reads) == 4
    assert to_graph(spec).flops == 2 * 32 * 64 * 16


def test_an_operator_without_a_rule_is_read_by_its_parts() -> None:
    """PyTorch takes a Kronecker product apart into elementwise products and reshapes."""
    _, names = read(lambda layer, x: torch.kron(layer(x), torch.ones(3, 3)), X)
    assert len(names) > 1
