"""ONNX files as graphs: FLOPs by hand, views without kernels, refusals."""

from pathlib import Path

import pytest

from meshwright.base.errors import MeshwrightError, SpecError, UnsupportedError
from meshwright.graph.kernels.backward import with_backward
from meshwright.graph.kernels.declared import to_graph
from meshwright.graph.kernels.kernel import Unit

onnx = pytest.importorskip("onnx")
import numpy as np  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from meshwright.catalog.graphs.onnx_files import (  # noqa: E402
    FLOW,
    REASONS,
    RULES,
    import_onnx,
)

pytestmark = pytest.mark.filterwarnings("ignore")


def model_of(nodes, inputs, outputs, weights=(), name="small"):
    """Return a model of nodes; inputs and outputs are names with shapes, weights are arrays."""
    infos = [
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in ends.items()]
        for ends in (inputs, outputs)
    ]
    held = [numpy_helper.from_array(array, key) for key, array in dict(weights).items()]
    graph = helper.make_graph(nodes, name, *infos, initializer=held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def zeros(*shape):
    return np.zeros(shape, dtype=np.float32)


def ints(*numbers):
    return np.array(numbers, dtype=np.int64)


def node(kind, reads, writes, **attributes):
    return helper.make_node(kind, reads.split(), writes.split(), name=kind.lower(), **attributes)


def product_flops(graph):
    return sum(k.flops(graph.sizes) for k in graph.kernels if k.unit is Unit.MATRIX)


def attention_model():
    """Return attention with fused projections, by reshape, split and transpose."""
    nodes = [
        node("LayerNormalization", "x gain shift", "n", axis=-1),
        node("MatMul", "n qkv", "p"),
        node("Reshape", "p shape", "h"),
        node("Transpose", "h", "t", perm=[2, 0, 3, 1, 4]),
        node("Split", "t", "q0 k0 v0", axis=0, num_outputs=3),
        *(
            helper.make_node("Squeeze", [f"{part}0", "zero"], [part], name=f"{part}_flat")
            for part in "qkv"
        ),
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "kt"], ["s"], name="scores"),
        helper.make_node("Mul", ["s", "scale"], ["scaled"], name="scaled"),
        node("Softmax", "scaled", "w", axis=-1),
        helper.make_node("MatMul", ["w", "v"], ["o"], name="mixed"),
        helper.make_node("Transpose", ["o"], ["ot"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["ot", "back"], ["flat"]),
        helper.make_node("MatMul", ["flat", "out"], ["y0"], name="out_proj"),
        node("Add", "y0 x", "y"),
    ]
    weights = {
        "gain": zeros(24), "shift": zeros(24), "qkv": zeros(24, 72), "out": zeros(24, 24),
        "shape": ints(2, 10, 3, 4, 6), "zero": ints(0), "back": ints(2, 10, 24),
        "scale": zeros(1),
    }  # fmt: skip
    return model_of(nodes, {"x": [2, 10, 24]}, {"y": [2, 10, 24]}, weights, "attention")


def test_attention_has_its_flops_and_no_kernel_for_views() -> None:
    spec = import_onnx(attention_model(), dims={"x": ("batch", "tokens", "hidden")})
    graph = to_graph(spec)
    rows, hidden, tokens = 2 * 10, 24, 10
    by_hand = 2 * rows * hidden * (3 * hidden + hidden) + 2 * 2 * rows * tokens * hidden
    assert product_flops(graph) == by_hand
    assert len(graph.kernels) == 1 + 1 + 3 + 4 + 1 + 1
    assert graph.kernels[-1].dims == ("batch", "tokens", "hidden")
    assert graph.num_parameters == 4 * hidden**2 + 2 * hidden
    training = with_backward(graph)
    assert product_flops(training) == 3 * by_hand


def test_convolution_and_dense_layers_have_their_flops(tmp_path) -> None:
    nodes = [
        node("Conv", "x kernel bias", "c", strides=[2, 2], pads=[1, 1, 1, 1]),
        node("BatchNormalization", "c g b m v", "n"),
        node("Relu", "n", "r"),
        node("MaxPool", "r", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("GlobalAveragePool", "p", "a"),
        node("Flatten", "a", "f"),
        node("Gemm", "f head shift", "y", transB=1),
    ]
    weights = {key: zeros(8) for key in ("bias", "g", "b", "m", "v")}
    weights |= {"kernel": zeros(8, 3, 3, 3), "head": zeros(5, 8), "shift": zeros(5)}
    path = tmp_path / "net.onnx"
    model = model_of(nodes, {"x": [4, 3, 32, 32]}, {"y": [4, 5]}, weights)
    onnx.save(model, str(path))
    graph = to_graph(import_onnx(path, repeats=2))
    assert product_flops(graph) == 2 * 4 * 8 * 16 * 16 * 27 + 2 * 4 * 8 * 5
    assert [kernel.name for kernel in graph.kernels] == [
        "conv", "batchnormalization", "relu", "maxpool", "globalaveragepool", "gemm"
    ]  # fmt: skip
    assert graph.repeats == 2


def test_rows_are_looked_up_joined_and_summed() -> None:
    nodes = [
        node("Gather", "table ids", "rows"),
        node("Concat", "rows rows", "both", axis=-1),
        node("ReduceMean", "both axes", "y", keepdims=0),
    ]
    infos = [
        helper.make_tensor_value_info("ids", TensorProto.INT64, [4, 7]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 16]),
    ]
    held = [numpy_helper.from_array(zeros(100, 8), "table")]
    held.append(numpy_helper.from_array(ints(1), "axes"))
    made = helper.make_graph(nodes, "rows", infos[:1], infos[1:], initializer=held)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)])
    graph = to_graph(import_onnx(model, dims={"ids": ("samples", "pooling")}))
    lookup, joined, mean = graph.kernels
    assert (lookup.unit, lookup.dims[:2]) == (Unit.NONE, ("samples", "pooling"))
    assert joined.dims[:2] == ("samples", "pooling")
    assert mean.contracted == ("pooling",)


def test_unknown_operators_are_refused_by_name() -> None:
    unknown = helper.make_node("Frobnicate", ["x"], ["y"], name="own", domain="user")
    model = model_of([unknown], {"x": [2, 3]}, {"y": [2, 3]})
    model.opset_import.append(helper.make_opsetid("user", 1))
    with pytest.raises(UnsupportedError, match=r"'Frobnicate'; known operators: .*MatMul"):
        import_onnx(model)


def test_shapes_that_are_not_fixed_are_refused() -> None:
    model = model_of([node("Relu", "x", "y")], {"x": ["batch", 3]}, {"y": ["batch", 3]})
    with pytest.raises(SpecError, match=r"x: its shape is \['batch', 3\]"):
        import_onnx(model)


def test_what_is_no_onnx_file_is_refused(tmp_path) -> None:
    path = tmp_path / "text.onnx"
    path.write_text("hello")
    with pytest.raises(SpecError, match="cannot be read"):
        import_onnx(path)
    with pytest.raises(SpecError, match="cannot be read"):
        import_onnx(tmp_path / "nowhere.onnx")


def graph_of(model, **options):
    return to_graph(import_onnx(model, **options))


def test_dynamic_dims_are_bound_by_their_names_or_places() -> None:
    weights = {"w": zeros(8, 4)}
    ends = {"x": ["batch", "tokens", 8]}, {"y": ["batch", "tokens", 4]}
    model = model_of([node("MatMul", "x w", "y")], *ends, weights)
    for sizes in ({"batch": 3, "tokens": 5}, {"x.0": 3, "tokens": 5}, {"x.0": 3, "x.1": 5}):
        graph = graph_of(model, sizes=sizes)
        assert product_flops(graph) == 2 * 3 * 5 * 8 * 4
    assert graph.inputs["x"] == ("batch", "tokens", "x.features")
    for sizes, message in (
        ({"batch": 3}, r"its shape is .*such as --dim tokens=8"),
        ({"rows": 3, "batch": 3, "tokens": 5}, r"--dim rows: is not a dynamic dim of an input"),
        ({"x.2": 3, "batch": 3, "tokens": 5}, r"--dim x.2: is 8 in this file"),
    ):
        with pytest.raises(SpecError, match=message):
            graph_of(model, sizes=sizes)
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"


def test_recurrent_layers_in_both_directions() -> None:
    """Both directions of 4 gates with 6 states for 7 steps of 3 sequences of 5 numbers."""
    weights = {"w": zeros(2, 24, 5), "r": zeros(2, 24, 6), "b": zeros(2, 48)}
    nodes = [
        node("LSTM", "x w r b", "y h c", hidden_size=6, direction="bidirectional"),
        node("Relu", "h", "z"),
    ]
    model = model_of(nodes, {"x": (7, 3, 5)}, {"y": (7, 2, 3, 6), "z": (2, 3, 6)}, weights)
    graph = graph_of(model)
    assert product_flops(graph) == 2 * 2 * 7 * 3 * 24 * (5 + 6)
    assert graph.num_parameters == 2 * (24 * 5 + 24 * 6 + 48)
    assert [graph.sizes[dim] for dim in graph.kernels[graph.number["lstm.gates"]].dims] == [
        7, 2, 3, 6,
    ]  # fmt: skip


OTHERS = {
    # half of 5 N log2 N for each of 3 rows of 32 real numbers
    "DFT": (node("DFT", "x", "y", axis=1), (3, 32, 1), (3, 32, 2), {}, 3 * 2.5 * 32 * 5),
    "TopK": (node("TopK", "x k", "y i"), (3, 32), (3, 4), {"k": ints(4)}, 3 * 32),
    "Resize": (
        node("Resize", "x none scales", "y", mode="linear"), (1, 3, 5, 7), (1, 3, 10, 14),
        {"none": zeros(0), "scales": np.array([1, 1, 2, 2], np.float32)}, 7 * 3 * 10 * 14,
    ),
    "ConvTranspose": (
        node("ConvTranspose", "x w", "y", strides=[2, 2], kernel_shape=[2, 2]),
        (1, 8, 5, 7), (1, 6, 10, 14), {"w": zeros(8, 6, 2, 2)}, 2 * 8 * 6 * 5 * 7 * 4,
    ),
    "GatherND": (node("GatherND", "x i", "y"), (6, 5, 8), (4, 8), {"i": ints(*[[0, 1]] * 4)}, 0),
    "ScatterND": (
        node("ScatterND", "x i s", "y"), (6, 5), (6, 5), {"i": ints([0], [3]), "s": zeros(2, 5)}, 0
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_other_operators_have_the_flops_that_follow_by_hand(name) -> None:
    made, before, after, weights, flops = OTHERS[name]
    graph = graph_of(model_of([made], {"x": before}, {"y": after}, weights))
    assert sum(k.flops(graph.sizes) for k in graph.kernels) == pytest.approx(flops, rel=1e-12)


def test_every_operator_of_onnx_has_a_rule_a_function_or_a_reason() -> None:
    """203 operators of ONNX 1.23: 180 rules and branches or loops, 7 functions, 16 reasons."""
    known = {*RULES, *FLOW}
    schemas = {s.name: s for s in onnx.defs.get_all_schemas() if not s.domain}
    functions = {
        name for name, schema in schemas.items()
        if name not in known and (schema.has_function or schema.has_context_dependent_function)
    }  # fmt: skip
    assert schemas.keys() <= known | functions | REASONS.keys()


def test_a_sequence_is_refused_with_its_reason() -> None:
    model = model_of([node("SequenceConstruct", "x", "s"), node("SequenceAt", "s zero", "y")],
                     {"x": [2, 3]}, {"y": [2, 3]}, {"zero": ints(0)})  # fmt: skip
    with pytest.raises(UnsupportedError, match="a sequence of tensors has no shape"):
        import_onnx(model)


def test_attention_of_onnx_is_read_by_its_function() -> None:
    """Two products of 2 x 4 heads x 16 x 16 x 8."""
    ends = {name: [2, 4, 16, 8] for name in "qkv"}
    model = model_of([node("Attention", "q k v", "y")], ends, {"y": [2, 4, 16, 8]})
    model.opset_import[0].version = 23
    assert product_flops(to_graph(import_onnx(model))) == 2 * 2 * 2 * 4 * 16 * 16 * 8


def test_weights_behind_a_restored_scale_are_read() -> None:
    model = model_of(
        [node("DequantizeLinear", "w scale zero", "r", axis=1), node("MatMul", "x r", "y")],
        {"x": [6, 4]}, {"y": [6, 5]},
        {"w": np.zeros((4, 5), np.int8), "scale": zeros(5), "zero": np.zeros(5, np.int8)},
    )  # fmt: skip
    graph = to_graph(import_onnx(model))
    assert product_flops(graph) == 2 * 6 * 4 * 5
    assert {w.name for k in graph.kernels for w in k.weights} == {"w", "scale"}


def branches(**ends):
    """Return a branch with two products on one side and one on the other."""
    out = [helper.make_tensor_value_info("o", TensorProto.FLOAT, [4, 4])]
    twice = [helper.make_node("MatMul", ["x", "w"], ["a"]),
             helper.make_node("MatMul", ["a", "w"], ["o"])]  # fmt: skip
    first = helper.make_graph(twice, "first", [], out)
    out = [helper.make_tensor_value_info("p", TensorProto.FLOAT, [4, 4])]
    once = [helper.make_node("MatMul", ["x", "w"], ["p"])]
    second = helper.make_graph(once, "second", [], out)
    return node("If", "c", "y", then_branch=first, else_branch=second, **ends)


def test_a_branch_on_data_is_stated_and_one_on_shapes_is_folded() -> None:
    one = 2 * 4 * 4 * 4
    model = model_of([branches()], {"x": [4, 4], "c": []}, {"y": [4, 4]}, {"w": zeros(4, 4)})
    model.graph.input[1].type.tensor_type.elem_type = TensorProto.BOOL
    with pytest.raises(SpecError, match=r"--dim if: runs one of its branches"):
        import_onnx(model)
    assert product_flops(to_graph(import_onnx(model, sizes={"if": 1}))) == 2 * one
    assert product_flops(to_graph(import_onnx(model, sizes={"if": 2}))) == one
    nodes = [node("Shape", "x", "s"), node("ReduceProd", "s", "n", keepdims=0),
             helper.make_node("Greater", ["n", "limit"], ["c"]), branches()]  # fmt: skip
    weights = {"w": zeros(4, 4), "limit": np.array(10, dtype=np.int64)}
    folded = model_of(nodes, {"x": ["rows", 4]}, {"y": ["rows", 4]}, weights)
    assert product_flops(to_graph(import_onnx(folded, sizes={"rows": 4}))) == 2 * one
    assert product_flops(to_graph(import_onnx(folded, sizes={"rows": 2}))) == one / 2


def test_a_loop_and_a_scan_run_as_often_as_the_file_says() -> None:
    one = 2 * 4 * 4 * 4
    info = helper.make_tensor_value_info
    ends = [info("i", TensorProto.INT64, []), info("c", TensorProto.BOOL, []),
            info("h", TensorProto.FLOAT, [4, 4])]  # fmt: skip
    outs = [info("k", TensorProto.BOOL, []), info("g", TensorProto.FLOAT, [4, 4])]
    body = helper.make_graph([helper.make_node("Identity", ["c"], ["k"]),
                              helper.make_node("MatMul", ["h", "w"], ["g"])],
                             "body", ends, outs)  # fmt: skip
    weights = {"w": zeros(4, 4), "n": np.array(5, dtype=np.int64), "go": np.array(True)}
    model = model_of([node("Loop", "n go x", "y", body=body)], {"x": [4, 4]}, {"y": [4, 4]},
                     weights)  # fmt: skip
    assert product_flops(to_graph(import_onnx(model))) == 5 * one
    ends = [info("h", TensorProto.FLOAT, [4, 4]), info("e", TensorProto.FLOAT, [4, 4])]
    outs = [info("g", TensorProto.FLOAT, [4, 4]), info("f", TensorProto.FLOAT, [4, 4])]
    nodes = [helper.make_node("MatMul", ["h", "e"], ["g"]), helper.make_node("Relu", ["g"], ["f"])]
    body = helper.make_graph(nodes, "body", ends, outs)
    scan = node("Scan", "x xs", "last all", body=body, num_scan_inputs=1)
    given, made = {"x": [4, 4], "xs": [7, 4, 4]}, {"last": [4, 4], "all": [7, 4, 4]}
    model = model_of([scan], given, made)
    assert product_flops(to_graph(import_onnx(model))) == 7 * one


def test_functions_of_a_file_are_inlined_and_endless_ones_refused() -> None:
    inner = helper.make_function("own", "Twice", ["a", "b"], ["d"], [
        helper.make_node("MatMul", ["a", "b"], ["c"]), helper.make_node("MatMul", ["c", "b"], ["d"])
    ], [helper.make_opsetid("", 18)])  # fmt: skip
    calls = [helper.make_node("Twice", ["x", "w"], ["y"], name="twice", domain="own")]
    model = model_of(calls, {"x": [4, 4]}, {"y": [4, 4]}, {"w": zeros(4, 4)})
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.functions.append(inner)
    assert product_flops(to_graph(import_onnx(model))) == 2 * 2 * 4 * 4 * 4
    own = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    for number in range(40):
        called = f"F{number + 1}" if number < 39 else "Twice"
        parts = [helper.make_node(called, ["a", "b"], ["c"], domain="own"),
                 helper.make_node(called, ["c", "b"], ["d"], domain="own")]  # fmt: skip
        made = helper.make_function("own", f"F{number}", ["a", "b"], ["d"], parts, own)
        model.functions.append(made)
    model.graph.node[0].op_type = "F0"
    with pytest.raises(SpecError, match="stands for more than 100,000 operators"):
        import_onnx(model)


@pytest.mark.slow
def test_the_files_of_onnx_itself_are_read_or_refused_with_a_reason() -> None:
    """140 files of its tests: 111 read; the others make sequences, texts, or no dim at all."""
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data"
    reasons = (*set(REASONS.values()), "no output with a dim is computed", "'Gradient'")
    found = sorted(folder.glob("*/*/model.onnx"))
    refused = {}
    for path in found:
        try:
            to_graph(import_onnx(path))
        except MeshwrightError as error:
            refused[path] = str(error)
    assert [p for p, why in refused.items() if not any(r in why for r in reasons)] == []
    assert len(found) >= 140
    assert len(refused) <= 0.25 * len(found)


def test_slopes_lie_along_channels() -> None:
    model = model_of([node("PRelu", "x slope", "y")], {"x": [2, 3, 8, 8]}, {"y": [2, 3, 8, 8]},
                     {"slope": zeros(3)})  # fmt: skip
    (kernel,) = import_onnx(model).kernels.values()
    assert kernel.weights[0].dims == (kernel.writes[1],)
