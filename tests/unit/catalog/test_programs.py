"""Programs by name: files, functions, bound dims, shapes of inputs, and what is refused."""

import textwrap

import pytest

from meshwright.base.errors import SpecError, UnknownNameError
from meshwright.catalog.graphs.programs import is_program, read_program
from meshwright.dataflow.question import load_graph
from meshwright.graph.kernels.declared import to_graph
from meshwright.graph.kernels.kernel import Unit

torch = pytest.importorskip("torch")
from meshwright.catalog.graphs.torch_export import graph_of_program  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

SOURCE = """
import torch
from torch import nn
from meshwright.catalog.graphs.files import catalog_graph


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8)
        self.relu, self.head = nn.ReLU(inplace=True), nn.Linear(8, 10)

    def forward(self, x):
        return self.head(self.relu(self.norm(self.conv(x))).mean((2, 3)))


def net(size: int = 32):
    return Net().eval(), (torch.zeros(1, 3, size, size),)


def keywords():
    return nn.Linear(8, 4), {"input": torch.zeros(5, 6, 8)}


def tensor():
    return nn.Linear(8, 4), torch.zeros(5, 8)


def counted():
    width = int(torch.ones(3).sum())  # no number on the meta device
    return nn.Linear(width, 4), torch.zeros(5, width)


def spec():
    return catalog_graph("dlrm-a")


def number():
    return 7


def asks(argument):
    return argument


def dynamic():
    batch, height = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("h", min=8)
    shapes = {"x": {0: batch, 2: height}}
    return torch.export.export(Net().eval(), (torch.zeros(2, 3, 32, 32),), dynamic_shapes=shapes)


linear = nn.Linear(8, 4)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("programs")
    (path / "nets.py").write_text(textwrap.dedent(SOURCE))
    return path


def read(folder, function, **options):
    return to_graph(read_program(f"{folder}/nets.py:{function}", **options))


def product_flops(graph):
    return sum(k.flops(graph.sizes) for k in graph.kernels if k.unit is Unit.MATRIX)


def net_flops(batch, height, width=32):
    """Return the FLOPs of the convolution and the head, by hand."""
    points = -(-height // 2) * -(-width // 2)
    return 2 * batch * (points * 8 * 3 * 9 + 8 * 10)


def test_names_of_programs() -> None:
    programs = ("a.pt2", "b.ONNX", "package.module:function", "some/file.py:made.by")
    assert all(map(is_program, programs))
    assert not any(map(is_program, ("llama3-8b", "graph.yaml", "hpl-4x4", "deepseek-v3.whole")))


@pytest.mark.parametrize(
    ("function", "options", "flops"),
    [
        ("net", {}, net_flops(1, 32)),
        ("net", {"sizes": {"size": 64}}, net_flops(1, 64, 64)),
        ("net", {"sizes": {"batch": 8}}, net_flops(8, 32)),
        ("net", {"sizes": {"x.0": 8, "height": 64}}, net_flops(8, 64)),
        ("Net", {"inputs": ["4x3x32x32"]}, net_flops(4, 32)),
        ("Net", {"inputs": ["x=4x3x32x32:float32"]}, net_flops(4, 32)),
        ("Net", {"inputs": ["4x3x32x32"], "sizes": {"batch": 2}}, net_flops(2, 32)),
        ("dynamic", {"sizes": {"batch": 8, "height": 64}}, net_flops(8, 64)),
        ("dynamic", {"sizes": {"x.0": 8, "x.2": 30}}, net_flops(8, 30)),
        ("keywords", {"sizes": {"tokens": 12}}, 2 * 5 * 12 * 32),
        ("tensor", {}, 2 * 5 * 32),
        ("counted", {}, 2 * 5 * 12),
        ("linear", {"inputs": ["5x8"]}, 2 * 5 * 32),
    ],
)
def test_functions_make_graphs(folder, function, options, flops) -> None:
    graph = read(folder, function, **options)
    assert product_flops(graph) == flops
    assert graph.name == function.lower()


def test_a_function_may_return_a_declaration(folder) -> None:
    assert read(folder, "spec") == load_graph("dlrm-a")


@pytest.fixture(scope="module")
def exported(folder):
    path = folder / "net.pt2"
    spec = {}
    exec(textwrap.dedent(SOURCE), spec)
    torch.export.save(spec["dynamic"](), path)
    return path


@pytest.mark.slow
def test_exported_files_are_read_with_their_dynamic_dims(exported) -> None:
    graph = load_graph(str(exported), sizes={"batch": 4, "height": 64}, precision="bf16")
    assert graph.inputs["x"] == ("batch", "channels", "height", "width")
    assert product_flops(graph) == net_flops(4, 64)
    assert (graph.name, graph.word_bytes) == ("net", 2.0)
    training = load_graph(str(exported), sizes={"batch": 4, "height": 64}, training=True)
    assert product_flops(training) == 3 * net_flops(4, 64) - (net_flops(4, 64) - 2 * 4 * 80)
    repeated = load_graph(str(exported), sizes={"batch": 4, "height": 64}, training=True, repeats=2)
    assert product_flops(repeated) == 3 * net_flops(4, 64)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"batch": 4}, r"--dim height: has no size \(such as --dim height=8\)"),
        ({}, r"2 faults(.|\n)*--dim (batch|height)(.|\n)*--dim (batch|height)"),
        ({"batch": 80, "height": 32}, r"80 is out of range \(from 2 to 64\)"),
        ({"batch": 4, "height": 4}, r"4 is out of range \(at least 8\)"),
        ({"batch": 4, "height": 32, "width": 64}, r"--dim x.3: is 32 in this program"),
        ({"depth": 4}, r"--dim depth: is not a dim of an input \(one of .*height"),
    ],
)
def test_dims_that_do_not_fit_are_refused(exported, sizes, message) -> None:
    with pytest.raises(SpecError, match=message):
        load_graph(str(exported), sizes=sizes)


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        ("Net", {}, "states no inputs"),
        ("Net", {"inputs": ["4x3xwide"]}, "'4x3xwide' is not a shape"),
        ("Net", {"inputs": ["4x3x32x32:short_float"]}, "is not a shape"),
        ("net", {"inputs": ["4x3x32x32"]}, "states its inputs"),
        ("net", {"sizes": {"depth": 4}}, "--dim depth: is not a dim of an input"),
        ("number", {}, "makes a int"),
        ("asks", {}, "missing 1 required positional argument"),
    ],
)
def test_functions_that_make_no_graph_are_refused(folder, function, options, message) -> None:
    with pytest.raises(SpecError, match=message):
        read(folder, function, **options)


def test_names_that_are_not_there(folder) -> None:
    with pytest.raises(UnknownNameError, match=r"'nett'; did you mean net"):
        read(folder, "nett")
    with pytest.raises(SpecError, match="there is no such file"):
        read_program("nothing.py:net")
    with pytest.raises(SpecError, match="there is no such file"):
        read_program("nothing.pt2")
    with pytest.raises(SpecError, match="No module named 'no_such_module'"):
        read_program("no_such_module:net")
    (folder / "wrong.py").write_text("def net(:")
    with pytest.raises(SpecError, match="cannot be imported: SyntaxError"):
        read_program(f"{folder}/wrong.py:net")
    (folder / "ends.py").write_text("import sys\ndef net(): sys.exit(3)")
    with pytest.raises(SpecError, match=r"ends.py:net: SystemExit: 3"):
        read_program(f"{folder}/ends.py:net")
    (folder / "ended.py").write_text("import sys\nsys.exit(3)")
    with pytest.raises(SpecError, match="cannot be imported: SystemExit: 3"):
        read_program(f"{folder}/ended.py:net")
    (folder / "other.py").write_text("from nets import net as made")
    assert product_flops(to_graph(read_program(f"{folder}/other.py:made"))) == net_flops(1, 32)
    (folder / "text.pt2").write_text("no program")
    with pytest.raises(SpecError, match="cannot be read"):
        read_program(f"{folder}/text.pt2")
    with pytest.raises(SpecError, match="bind dims with --dim"):
        read_program(f"{folder}/text.pt2", inputs=["1x2"])


def test_a_dim_that_follows_from_another_is_solved_for() -> None:
    half = torch.export.Dim("half", min=2)
    program = torch.export.export(
        torch.nn.Linear(8, 4), (torch.zeros(6, 8),), dynamic_shapes={"input": {0: 2 * half}}
    )
    bound = to_graph(graph_of_program(program, name="even", sizes={"batch": 20}))
    assert product_flops(bound) == 2 * 20 * 32
    with pytest.raises(SpecError, match=r"--dim input.0: is 2\*s\w+ in this program"):
        graph_of_program(program, name="even", sizes={"batch": 21})
    with pytest.raises(SpecError, match="--dim batch: has no size"):
        graph_of_program(program, name="even")


def test_dims_of_graph_files_are_bound_too(folder) -> None:
    small, large = (load_graph("dlrm-a", sizes={"samples": n}) for n in (1024, 2048))
    assert 2 * product_flops(small) == product_flops(large) > 0
    with pytest.raises(SpecError, match=r"--dim sample: .*did you mean samples"):
        load_graph("dlrm-a", sizes={"sample": 8})
    with pytest.raises(SpecError, match="--dim: applies only with a program"):
        load_graph("llama3-8b", sizes={"tokens": 8})
    with pytest.raises(SpecError, match="--input: applies only with a program"):
        load_graph("dlrm-a", inputs=["8x8"])
