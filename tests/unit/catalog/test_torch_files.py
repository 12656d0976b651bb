"""Programs of ``torch.export`` as data: same graphs as PyTorch's loader gives, and nothing runs."""

import pickle
import subprocess
import sys
import zipfile

import pytest
from tests.exported_programs import SYMBOL, named, program, sizes, tensor, written

from meshwright.base.errors import MeshwrightError, SpecError
from meshwright.catalog.graphs.programs import read_program
from meshwright.dataflow.question import load_graph

READ = {"sizes": {"batch": 32}}


class Touches:
    """Makes a file where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_a_program_is_read_by_hand(tmp_path) -> None:
    path = written(tmp_path / "net.pt2", program())
    graph = load_graph(path, sizes={"batch": 32})
    assert graph.sizes == {"batch": 32, "x.features": 16, "head.features": 8}
    assert graph.flops == 2 * 32 * 16 * 8 + 32 * 8
    assert graph.num_parameters == 128
    with pytest.raises(SpecError, match=r"--dim batch: has no size"):
        load_graph(path)
    with pytest.raises(SpecError, match=r"2000 is out of range \(from 2 to 1024\)"):
        load_graph(path, sizes={"batch": 2000})


@pytest.mark.parametrize("way", ["samples", "constants", "weights"])
def test_a_pickle_beside_a_program_is_not_opened(tmp_path, way) -> None:
    """PyTorch's loader unpickles samples, constants and weights of this kind."""
    touched = tmp_path / "PWNED"
    pickled = pickle.dumps(Touches(touched))
    place = {"samples": "data/sample_inputs/model.pt", "constants": "data/constants/opaque_obj_0",
             "weights": "data/weights/weight_0"}[way]  # fmt: skip
    path = written(tmp_path / "net.pt2", program(), **{place: pickled})
    read = load_graph(path, **READ)
    assert read == load_graph(written(tmp_path / "net.pt2", program()), **READ)
    assert not touched.exists()


def test_a_compiled_library_beside_a_program_is_not_loaded(tmp_path) -> None:
    """PyTorch's loader starts what stands in ``data/aotinductor``."""
    members = {
        "data/aotinductor/model/a.wrapper.so": b"\x7fELF",
        "data/aotinductor/model/b.cpp": b"",
    }
    path = written(tmp_path / "net.pt2", program(), **members)
    assert load_graph(path, **READ).num_parameters == 128


@pytest.mark.parametrize(
    "size",
    [
        "open({path!r}, 'w') and Symbol('s77', positive=True, integer=True)",
        "Symbol(open({path!r}, 'w').name)",
        "[open({path!r}, 'w') for _ in (1,)]",
        "Integer(3) if open({path!r}, 'w') else Integer(4)",
    ],
)
def test_code_in_the_place_of_a_size_is_refused(tmp_path, size) -> None:
    """PyTorch's loader gives sizes to the parser of sympy, which runs them as Python."""
    touched = tmp_path / "PWNED"
    tree = program(batch=size.format(path=str(touched)))
    with pytest.raises(SpecError, match="is not arithmetic of whole numbers and symbols"):
        load_graph(written(tmp_path / "net.pt2", tree), **READ)
    assert not touched.exists()


@pytest.mark.slow
def test_pytorch_is_not_imported(tmp_path) -> None:
    path = written(tmp_path / "net.pt2", program())
    for words in (["read", path, "--dim", "batch=8"], ["show", "graph", path, "--dim", "batch=8"]):
        code = f"""
import sys
from meshwright.cli.main import main
code = main({words!r})
print(code, *({{"torch", "sympy"}} & sys.modules.keys()))
"""
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert found.stdout.splitlines()[-1] == "0", found.stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": {"major": 7, "minor": 3}}, r"version 7\.3 of the schema; version 8 is"),
        ({"schema_version": {"major": 9, "minor": 0}}, r"version 9\.0 of the schema; version 8 is"),
        ({"schema_version": None}, "is damaged"),
        ({"graph_module": []}, "is damaged"),
        ({"range_constraints": 3}, "is damaged"),
    ],
)
def test_other_schemas_and_damage_are_refused(tmp_path, change, message) -> None:
    with pytest.raises(SpecError, match=message):
        load_graph(written(tmp_path / "net.pt2", program(**change)), **READ)


def test_a_later_schema_of_the_same_kind_is_read(tmp_path) -> None:
    tree = program(schema_version={"major": 8, "minor": 99}, what_is_new=[1, 2])
    assert load_graph(written(tmp_path / "net.pt2", tree), **READ).num_parameters == 128


@pytest.mark.slow
def test_bombs_are_refused_before_they_take_memory(tmp_path) -> None:
    """What is packed a thousand times, nested, of too many values, or has too long a directory."""
    zeros = written(tmp_path / "zeros.pt2", " " * 80 * 2**20)
    with pytest.raises(SpecError, match="unpacks to more than is read"):
        load_graph(zeros)
    nested = written(tmp_path / "nested.pt2", "[" * 100_000)
    with pytest.raises(SpecError, match="nests too deeply"):
        load_graph(nested)
    many = written(tmp_path / "many.pt2", "[" + "0," * 6_000_000 + "0]")
    with pytest.raises(SpecError, match="has more than 5,000,000 values"):
        load_graph(many)
    with zipfile.ZipFile(tmp_path / "wide.pt2", "w") as archive:
        for number in range(70):
            archive.writestr(f"{number}{'a' * 65_000}", b"")
    with pytest.raises(SpecError, match="its directory has more than 4 MiB"):
        load_graph(str(tmp_path / "wide.pt2"))
    with zipfile.ZipFile(tmp_path / "none.pt2", "w") as archive:
        archive.writestr("net/models/one.json", "{}")
        archive.writestr("net/models/two.json", "{}")
    with pytest.raises(SpecError, match=r"should hold one program.*one.json, net/models/two.json"):
        load_graph(str(tmp_path / "none.pt2"))


def test_names_that_would_write_to_the_terminal_are_refused(tmp_path) -> None:
    tree = program()
    weight = tree["graph_module"]["signature"]["input_specs"][0]["parameter"]
    weight["parameter_name"] = "\x1b[31mhead"
    with pytest.raises(MeshwrightError, match=r"cannot be a name") as caught:
        load_graph(written(tmp_path / "net.pt2", tree), **READ)
    assert "\x1b" not in str(caught.value)


def overwriting(*calls):
    """Return a program whose calls overwrite tensors, of shape (4, 6)."""
    tree = program(batch=4)
    graph = tree["graph_module"]["graph"]
    graph["nodes"], graph["tensor_values"] = [], {"x": tensor(4, 6)}
    for operator, name, shape, given in calls:
        inputs = [
            {"name": key, "arg": named(value) if isinstance(value, str) else {"as_int": value}}
            for key, value in given.items()
        ]
        graph["nodes"].append(
            {"target": f"torch.ops.aten.{operator}.default", "inputs": inputs, "name": name,
             "outputs": [named(name)], "metadata": {}}
        )  # fmt: skip
        graph["tensor_values"][name] = tensor(*shape)
    signature = tree["graph_module"]["signature"]
    signature["input_specs"] = [{"user_input": {"arg": named("x")}}]
    signature["output_specs"] = [{"user_output": {"arg": named(calls[-1][1])}}]
    return tree


def test_what_is_overwritten_is_read_as_it_was_written_last(tmp_path) -> None:
    """Row 1 of y is set to zero through a view; what reads y later reads that too."""
    tree = overwriting(
        ("relu", "y", (4, 6), {"self": "x"}),
        ("select", "row", (6,), {"self": "y", "dim": 0, "index": 1}),
        ("zero_", "zero_", (6,), {"self": "row"}),
        ("exp", "late", (4, 6), {"self": "y"}),
    )
    graph = load_graph(written(tmp_path / "net.pt2", tree))
    assert [kernel.name for kernel in graph.kernels] == ["y", "zero", "select_scatter", "late"]
    assert [read.source for read in graph.kernels[-1].inputs] == ["select_scatter"]
    assert [read.source for read in graph.kernels[2].inputs] == ["y", "zero"]


def test_views_of_what_was_overwritten_are_made_again(tmp_path) -> None:
    tree = overwriting(
        ("relu", "y", (4, 6), {"self": "x"}),
        ("transpose", "turned", (6, 4), {"self": "y", "dim0": 0, "dim1": 1}),
        ("neg_", "neg_", (4, 6), {"self": "y"}),
        ("exp", "late", (6, 4), {"self": "turned"}),
    )
    graph = load_graph(written(tmp_path / "net.pt2", tree))
    assert [kernel.name for kernel in graph.kernels] == ["y", "neg", "late"]
    assert graph.kernels[-1].inputs[0].source == "neg"
    assert graph.kernels[-1].dims == tuple(reversed(graph.kernels[0].dims))


def test_a_copy_is_not_overwritten_with_its_source(tmp_path) -> None:
    tree = overwriting(
        ("relu", "y", (4, 6), {"self": "x"}),
        ("clone", "kept", (4, 6), {"self": "y"}),
        ("neg_", "neg_", (4, 6), {"self": "y"}),
        ("exp", "late", (4, 6), {"self": "kept"}),
    )
    graph = load_graph(written(tmp_path / "net.pt2", tree))
    assert [kernel.name for kernel in graph.kernels] == ["y", "late"]


@pytest.mark.slow
def test_views_that_are_made_again_without_end_are_refused(tmp_path) -> None:
    """400 writes, each followed by a read through 250 views: 100,000 calls of operators."""
    chain = [("slice", "v0", (4, 6), {"self": "y"})]
    chain += [("slice", f"v{n}", (4, 6), {"self": f"v{n - 1}"}) for n in range(1, 250)]
    writes = [
        call
        for n in range(420)
        for call in (
            ("neg_", f"neg__{n}", (4, 6), {"self": "y"}),
            ("exp", f"exp_{n}", (4, 6), {"self": "v249"}),
        )
    ]
    tree = overwriting(("relu", "y", (4, 6), {"self": "x"}), *chain, *writes)
    with pytest.raises(SpecError, match=r"takes too many steps|nested too deep"):
        load_graph(written(tmp_path / "net.pt2", tree))


def test_sizes_are_written_in_both_ways(tmp_path) -> None:
    """As sympy's representation (PyTorch 2.9 and later) and as arithmetic (before)."""
    graphs = [
        load_graph(written(tmp_path / "net.pt2", program(batch=batch)), **READ)
        for batch in (SYMBOL, "s77", f"Mul(Integer(2), {SYMBOL})", "2*s77")
    ]
    assert all(graph == graphs[0] for graph in graphs)
    assert sizes("s77")[0]["as_expr"]["expr_str"] == "s77"


# against PyTorch itself


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def same_as_traced(torch, tmp_path, module, arguments, sizes=None, **options):
    """Return the graph of a saved file, once it is that of the program before it was saved."""
    from meshwright.catalog.graphs.torch_export import graph_of_program

    exported = torch.export.export(module, arguments, **options)
    path = tmp_path / "net.pt2"
    torch.export.save(exported, path)
    read = read_program(str(path), sizes=sizes)
    assert read == graph_of_program(exported, name="net", sizes=sizes)
    return read


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_saved_programs_have_the_graphs_of_traced_ones(torch, tmp_path) -> None:
    nn = torch.nn

    class Nested(nn.Module):
        """Nested tuples, a dict, a number, a buffer that does not persist, a lifted constant."""

        def __init__(self):
            super().__init__()
            self.out = nn.Linear(8, 4)
            self.register_buffer("held", torch.ones(8))
            self.register_buffer("passing", torch.ones(8), persistent=False)

        def forward(self, pair, named, scale):
            (first, second), third = pair
            x = first * self.held + second * self.passing + named["third"] * scale + third
            x = self.out(x) + torch.tensor([1.0, 2.0, 3.0, 4.0])
            x[:, 0] = 0
            return {"out": (x, [x.relu_().split(2, -1)[1]])}

    x = torch.zeros(3, 8)
    read = same_as_traced(torch, tmp_path, Nested().eval(), (((x, x), x), {"third": x}, 2.0))
    assert sum("linear" in name or name == "out" for name in read.kernels) == 1
    layers = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True)
    for mode in (True, False):
        module = nn.Sequential(*layers).train(mode)
        same_as_traced(torch, tmp_path, module, (torch.zeros(4, 3, 6, 6),))
    batch = torch.export.Dim("batch", min=2)
    for shapes in ({0: batch}, {0: 2 * batch}, {0: 3 * batch - 1}):
        example = torch.zeros(8 if shapes[0] is not batch else 4, 16)
        same_as_traced(
            torch, tmp_path, nn.Linear(16, 4), (example,), sizes={"batch": 20},
            dynamic_shapes={"input": shapes},
        )  # fmt: skip
    same_as_traced(torch, tmp_path, nn.LSTM(8, 16, 2), (torch.zeros(5, 2, 8),))
    encoder = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    same_as_traced(torch, tmp_path, encoder, (torch.zeros(2, 8, 32),))
