"""Graphs that once ended in a traceback, wrote to the terminal, or had a price that is too low."""

import json
from pathlib import Path

import pytest
from tests.exported_programs import named, program, tensor, written

from meshwright.base.errors import SpecError
from meshwright.cli.main import main
from meshwright.dataflow.question import load_graph

FOLDER = Path(__file__).parent / "dataflow"


def run(capsys, *words):
    """Return the exit status, what is written, and what is said."""
    status = main([str(FOLDER / word) if (FOLDER / word).exists() else word for word in words])
    return status, *capsys.readouterr()


def test_a_move_that_reads_one_dim_as_two_passes_in_tiles(capsys) -> None:
    """8 tokens read as 2 x 4: of two tiles each has one of the outer dim, and all of the inner."""
    status, out, _ = run(capsys, "fuse", "passing.yaml", "--on", "SN10", "--json")
    assert status == 0
    found = json.loads(out)
    # 16 bytes in and 16 out; nothing else passes between DRAM and chip
    assert sum(part["moved_bytes"] for part in found["partitions"]) == 2 * 8 * 2


def test_a_kernel_takes_at_least_its_launch(capsys) -> None:
    """5 us on an H100: 64 passes in flight share it, one that is alone does not.

    Once it was 8.76 ns a pass in two kernels. Two kernels in one have one launch.
    """
    for many, least_s in ((1, 5e-6), (64, 5e-6 / 64)):
        asked = ["passing.yaml", "--on", "H100", "--micro-batch", str(many)]
        _, out, _ = run(capsys, "fuse", *asked, "--json")
        found = json.loads(out)
        assert len(found["partitions"]) == 1
        assert found["time_s"] == pytest.approx(least_s)
        assert found["latency_s"] == pytest.approx(5e-6)
        assert found["partitions"][0]["limit"] == "launch"
    _, out, _ = run(
        capsys, "fuse", "passing.yaml", "--on", "H100", "--kernel-by-kernel",
        "--micro-batch", "1", "--json",
    )  # fmt: skip
    assert json.loads(out)["time_s"] == pytest.approx(10e-6)


@pytest.mark.parametrize("verb", [["show", "graph"], ["fuse"], ["map"]])
def test_a_name_that_would_write_to_the_terminal_is_refused(capsys, verb) -> None:
    on = [] if verb[0] == "show" else ["--on", "SN10" if verb[0] == "fuse" else "2xH100"]
    status, out, err = run(capsys, *verb, "escaped.yaml", *on)
    assert status == 2
    assert "has a sign that cannot be printed" in err
    assert not {"\x1b", "\a", "\u202e"} & set(out + err)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("asserts", "torch.export: AssertionError"),
        ("raises", "torch.export: ArithmeticError"),
        ("ends", "SystemExit: 3"),
        ("fails", "silent.py:fails: ValueError"),
    ],
)
def test_an_error_without_words_is_named_by_its_kind(capsys, function, said) -> None:
    pytest.importorskip("torch")
    status, _, err = run(capsys, "read", f"{FOLDER}/silent.py:{function}")
    assert status == 2
    assert said in err
    assert err.startswith(f"note: {FOLDER}/silent.py:{function} is code; it runs now")


def test_a_file_says_nothing_of_code(capsys, tmp_path) -> None:
    path = written(tmp_path / "net.pt2", program())
    status, _, err = run(capsys, "read", path, "--dim", "batch=8")
    assert (status, err) == (0, "")


@pytest.mark.parametrize("kind", [0, 99])
def test_elements_of_no_known_type_are_refused(capsys, tmp_path, kind) -> None:
    onnx = pytest.importorskip("onnx")
    values = [onnx.helper.make_tensor_value_info(n, 1, [4, 8]) for n in ("x", "y")]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "net",
                                   values[:1], values[1:])  # fmt: skip
    graph.input[0].type.tensor_type.elem_type = kind
    path = tmp_path / "net.onnx"
    path.write_bytes(onnx.helper.make_model(graph).SerializeToString())
    status, _, err = run(capsys, "read", str(path))
    assert status == 2
    assert "net.onnx: cannot be read" in err


def test_stages_pay_for_a_tensor_that_fusion_would_keep(capsys) -> None:
    """k1 alone adds two tensors of 8 MiB and writes one: 24 MiB through 3.35 TB/s, 7.5 us."""
    from meshwright.catalog.calibration import load_calibration
    from meshwright.catalog.systems import load_system
    from meshwright.dataflow.price import Residency, SplitTimes
    from meshwright.dataflow.roofline import CalibratedSystem
    from meshwright.dataflow.stages import cut_stages

    system = CalibratedSystem(load_system("2xH100"), load_calibration("default"))
    graph = load_graph(str(FOLDER / "added.yaml"))
    tables = SplitTimes(graph, system, 1, Residency()).tables()
    apart = cut_stages([tables], 2, lambda num_bytes: 0.0)
    second = [stage for stage in apart.stages if stage.kernels == (1,)]
    for stage in second:
        assert stage.busy >= 3 * 8 * 2**20 / 3.35e12
    together = tables.costs[1][0]
    assert tables.cut_cost(1, tables.splits[1][0], 1, 3) + together >= 3 * 8 * 2**20 / 3.35e12
    assert tables.cut_cost(0, tables.splits[0][0], 0, 1) >= 0.0
    assert tables.cut_cost(1, tables.splits[1][0], 0, 3) == 0.0


def einsum(equation, shapes):
    """Return a program of one einsum."""
    tree = program()
    graph = tree["graph_module"]["graph"]
    names = [f"x{number}" for number in range(len(shapes))]
    graph["tensor_values"] = {n: tensor(*s) for n, s in zip(names, shapes, strict=True)}
    graph["tensor_values"]["out"] = tensor(4, 8, 12)
    operands = {"as_tensors": [{"name": name} for name in names]}
    given = {"equation": {"as_string": equation}, "operands": operands}
    graph["nodes"] = [
        {"target": "torch.ops.aten.einsum.default", "name": "out", "outputs": [named("out")],
         "metadata": {}, "inputs": [{"name": k, "arg": a, "kind": 1} for k, a in given.items()]}
    ]  # fmt: skip
    tree["graph_module"]["signature"] = {
        "input_specs": [{"user_input": {"arg": named(name)}} for name in names],
        "output_specs": [{"user_output": {"arg": named("out")}}],
    }
    return tree


def test_an_einsum_of_three_is_two_products(tmp_path) -> None:
    """2 x (4 x 8 x 16 x 8 + 4 x 8 x 8 x 12) FLOP; one sum over all letters has 98,304."""
    path = written(tmp_path / "e.pt2", einsum("bij,bjk,kl->bil", [(4, 8, 16), (4, 16, 8), (8, 12)]))
    graph = load_graph(path)
    assert graph.flops == 14_336
    assert [kernel.name for kernel in graph.kernels] == ["out.0", "out"]


def test_the_order_of_an_einsum_is_the_cheapest(tmp_path) -> None:
    """(bc,cd) first: 2 x (400 + 400) FLOP; (ab,bc) first has 100 x 2 x 100 points in each."""
    path = written(tmp_path / "e.pt2", einsum("ab,bc,cd->ad", [(100, 2), (2, 100), (100, 2)]))
    graph = load_graph(path)
    assert graph.flops == 2 * (2 * 100 * 2 + 100 * 2 * 2)
    assert [kernel.name for kernel in graph.kernels] == ["out.0", "out"]
    long = ",".join(f"{chr(97 + n)}{chr(98 + n)}" for n in range(12)) + "->am"
    path = written(tmp_path / "l.pt2", einsum(long, [(3, 3)] * 12))
    assert len(load_graph(path).kernels) == 11


def linear(weight, activation, made=13):
    """Return a product whose weight, input and result are of some types (numbers of ScalarType)."""
    tree = program(batch=4096)
    values = tree["graph_module"]["graph"]["tensor_values"]
    for name, shape, kind in (
        ("p_weight", (4096, 4096), weight), ("x", (4096, 4096), activation),
        ("linear", (4096, 4096), made), ("relu", (4096, 4096), made),
    ):  # fmt: skip
        values[name] = tensor(*shape, dtype=kind)
    return tree


def test_a_product_runs_at_the_rate_of_its_own_numbers(capsys, tmp_path) -> None:
    """An int8 weight beside bf16 activations is stored in bytes, and multiplied in bf16."""
    bf16, fp32, int8 = 13, 7, 2
    seconds = {}
    cases = {"packed": (int8, bf16), "plain": (bf16, bf16), "cast": (bf16, fp32)}
    for name, kinds in cases.items():
        path = written(tmp_path / f"{name}.pt2", linear(*kinds))
        graph = load_graph(path)
        (product,) = [k for k in graph.kernels if k.unit == "matrix"]
        assert graph.product_bytes(product) == 2.0
        assert graph.tensor_bytes(product.weights[0]) == (1 if name == "packed" else 2) * 4096**2
        status, out, err = run(capsys, "map", path, "--on", "1xH100", "--json")
        assert status == 0, out + err
        seconds[name] = json.loads(out)["best"]["kernels"][0]["time_s"]
    assert seconds["packed"] == pytest.approx(seconds["plain"], rel=0.01)
    # 2 x 4096^3 FLOP at 989 TFLOP/s
    assert seconds["packed"] >= 2 * 4096**3 / 989.4e12


def test_the_screen_says_what_passes_in_flight_share(capsys, tmp_path) -> None:
    status, out, _ = run(capsys, "fuse", "added.yaml", "--on", "SN10")
    assert status == 0
    text = " ".join(out.split())
    assert "64 passes in flight" in text
    assert "for one pass alone" in text
    assert "weights stay in the SRAM" in text
    # those of twelve repetitions, 384 MiB, are more than the SRAM
    repeated = tmp_path / "repeated.yaml"
    repeated.write_text((FOLDER / "added.yaml").read_text() + "repeats: 12\n")
    _, out, _ = run(capsys, "fuse", str(repeated), "--on", "SN10")
    shared = "of it waits for weights, which 64 in flight share (--micro-batch)"
    assert shared in " ".join(out.split())
    one, many = (
        json.loads(run(capsys, "fuse", str(repeated), "--on", "SN10", "--json", *more)[1])
        for more in (["--micro-batch", "1"], [])
    )
    # 32 MiB of weights through 200 GB/s are 168 us, which 64 passes share
    one_s, shared_s = (found["parts_s"]["exposed_setup_s"] for found in (one, many))
    assert one_s == pytest.approx(32 * 2**20 / 200e9, rel=1e-12)
    assert shared_s == pytest.approx(one_s / 64, rel=1e-12)
    assert many["time_s"] < one["time_s"]
    assert one["latency_s"] == pytest.approx(12 * one["time_s"], rel=1e-12)
    assert many["latency_s"] >= one["latency_s"] * (1 - 1e-12)


def test_the_dim_that_a_graph_states_is_not_the_only_one_that_is_tiled(capsys, tmp_path) -> None:
    """Two images of many tokens: a whole image does not stay on the chip, its tokens do."""
    times = {}
    for tiled in ("batch", "tokens"):
        text = (FOLDER / "stated.yaml").read_text().replace("tiled: batch", f"tiled: {tiled}")
        (tmp_path / f"{tiled}.yaml").write_text(text)
        path = str(tmp_path / f"{tiled}.yaml")
        status, out, _ = run(capsys, "fuse", path, "--on", "SN10", "--json")
        assert status == 0
        times[tiled] = json.loads(out)["time_s"], json.loads(out)["tiled"]
    assert times["batch"] == times["tokens"]
    assert times["batch"][1] == "tokens"


def test_what_a_move_writes_at_the_end_leaves_in_every_pass(capsys, tmp_path) -> None:
    """A move that gathers what passes is no sum over tiles: 32 numbers come and 32 go in a pass."""
    text = """
name: gathered
tiled: t
dims: {t: 8, a: 4, u: 8, v: 4}
inputs: {x: [t, a]}
outputs: [k2]
kernels:
  k1: {unit: vector, reads: ["x[t, a]"], writes: [t, a]}
  k2: {unit: none, reads: ["k1[t, a]"], writes: [u, v]}
"""
    (tmp_path / "gathered.yaml").write_text(text)
    path = str(tmp_path / "gathered.yaml")
    status, out, _ = run(capsys, "fuse", path, "--on", "SN10", "--json")
    assert status == 0
    assert sum(p["moved_bytes"] for p in json.loads(out)["partitions"]) == 2 * 8 * 4 * 2


def test_an_unread_kind_of_file_is_one_error(tmp_path) -> None:
    (tmp_path / "text.pt2").write_text("no archive")
    with pytest.raises(SpecError, match="it is not a readable archive"):
        load_graph(str(tmp_path / "text.pt2"))
