"""Archives of ``torch.export`` written by hand, without PyTorch."""

import json
import zipfile

SYMBOL = "Symbol('s77', positive=True, integer=True)"


def sizes(*numbers):
    """Return a shape; a text is an expression."""
    return [
        {"as_int": n} if isinstance(n, int) else {"as_expr": {"expr_str": n, "hint": {"as_int": 4}}}
        for n in numbers
    ]


def tensor(*numbers, dtype=7):
    """Return what a program says of a tensor."""
    return {
        "dtype": dtype, "sizes": sizes(*numbers), "requires_grad": False,
        "device": {"type": "cpu", "index": None}, "strides": [], "layout": 7,
        "storage_offset": {"as_int": 0},
    }  # fmt: skip


def named(name):
    """Return a tensor as an argument."""
    return {"as_tensor": {"name": name}}


def program(batch=SYMBOL, **other):
    """Return a product of an open batch with a weight, and a function of each element."""
    calls = [
        ("linear", {"input": named("x"), "weight": named("p_weight")}),
        ("relu", {"self": named("linear")}),
    ]
    graph = {
        "inputs": [named("p_weight"), named("x")],
        "outputs": [named("relu")],
        "nodes": [
            {
                "target": f"torch.ops.aten.{name}.default",
                "inputs": [{"name": key, "arg": arg, "kind": 1} for key, arg in given.items()],
                "outputs": [named(name)], "metadata": {}, "name": name,
            }
            for name, given in calls
        ],
        "tensor_values": {
            "p_weight": tensor(8, 16), "x": tensor(batch, 16),
            "linear": tensor(batch, 8), "relu": tensor(batch, 8),
        },
        "sym_int_values": {}, "sym_bool_values": {},
    }  # fmt: skip
    weight = {"parameter": {"arg": {"name": "p_weight"}, "parameter_name": "head.weight"}}
    signature = {
        "input_specs": [weight, {"user_input": {"arg": named("x")}}],
        "output_specs": [{"user_output": {"arg": named("relu")}}],
    }
    return {
        "graph_module": {"graph": graph, "signature": signature, "module_call_graph": []},
        "range_constraints": {"s77": {"min_val": 2, "max_val": 1024}},
        "schema_version": {"major": 8, "minor": 20}, "opset_version": {"aten": 10},
        "torch_version": "2.13.0", **other,
    }  # fmt: skip


def written(path, tree, **members):
    """Write an archive with a program and further members; return its name."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        text = tree if isinstance(tree, str) else json.dumps(tree)
        archive.writestr("net/models/model.json", text)
        for name, content in members.items():
            archive.writestr(f"net/{name.replace('__', '/')}", content)
    return str(path)
