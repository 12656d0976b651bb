"""Every operator of core ATen is read: each is called once in a program of its own."""

import pytest
from sampled import slow_where

torch = pytest.importorskip("torch")

from meshwright.catalog.graphs.operators import RULES  # noqa: E402
from meshwright.catalog.graphs.torch_export import import_torch  # noqa: E402
from meshwright.graph.kernels.declared import to_graph  # noqa: E402
from meshwright.graph.kernels.kernel import Unit  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


def core_operators():
    """Return the operators that PyTorch tags as core, one overload that takes a tensor each."""
    found = {}
    for qualified in torch._C._dispatch_get_all_op_names():
        space, _, rest = qualified.partition("::")
        name, _, overload = rest.partition(".")
        if space == "aten" and not overload.endswith("out"):
            operator = getattr(getattr(torch.ops.aten, name), overload or "default", None)
            if operator is not None and torch.Tag.core in operator.tags:
                kinds = [str(argument.type) for argument in operator._schema.arguments]
                found.setdefault(name, []).append((kinds.count("Tensor"), operator))
    return {name: max(overloads, key=lambda one: one[0])[1] for name, overloads in found.items()}


CORE = core_operators()
ON_NUMBERS = {"_local_scalar_dense", *(name for name in CORE if name.startswith("sym_"))}
"""They return numbers of a tensor, so no kernel."""
OPEN = {"nonzero": "a size depends on the data"}


def x(*shape, dtype=torch.float32):
    return torch.ones(shape, dtype=dtype)


def ids(*shape):
    return torch.zeros(shape, dtype=torch.int64)


IMAGE, GRAD = x(2, 4, 8, 8), x(2, 4, 4, 4)
ARGUMENTS = {
    "_adaptive_avg_pool2d": (IMAGE, [4, 4]), "_adaptive_avg_pool3d": (x(2, 4, 8, 8, 8), [4, 4, 4]),
    "_adaptive_avg_pool2d_backward": (GRAD, IMAGE), "adaptive_avg_pool1d": (x(2, 4, 8), [4]),
    "_fft_c2r": (x(4, 6, dtype=torch.complex64), [1], 0, 10), "clamp": (x(4, 6), 0.0, 1.0),
    "div": (x(4, 6), x(4, 6)), "sum": (x(4, 6), [1]),
    "_cdist_forward": (x(5, 6), x(7, 6), 2.0, None), "_pdist_forward": (x(5, 6),),
    "_embedding_bag": (x(10, 6), ids(12), torch.tensor([0, 4, 8])),
    "_native_batch_norm_legit": (IMAGE, x(4), x(4), x(4), x(4), True, 0.1, 1e-5),
    "_native_batch_norm_legit_no_training": (IMAGE, x(4), x(4), x(4), x(4), 0.1, 1e-5),
    "addmm": (x(5), x(4, 3), x(3, 5)), "mm": (x(4, 3), x(3, 5)), "bmm": (x(2, 4, 3), x(2, 3, 5)),
    "arange": (6,), "as_strided": (x(6, 4), [4, 6], [1, 4]), "avg_pool1d": (x(2, 4, 8), [2]),
    "avg_pool2d": (IMAGE, [2, 2]), "avg_pool3d": (x(2, 4, 8, 8, 8), [2, 2, 2]),
    "avg_pool2d_backward": (GRAD, IMAGE, [2, 2], [2, 2], [0, 0], False, True, None),
    "bitwise_and": (ids(6), ids(6)), "bitwise_or": (ids(6), ids(6)), "bitwise_not": (ids(6),),
    "bitwise_xor": (ids(6), ids(6)), "cat": ([x(4, 6), x(4, 6)],),
    "constant_pad_nd": (x(6), [1, 1]),
    "col2im": (x(2, 16, 16), [8, 8], [2, 2], [1, 1], [0, 0], [2, 2]),
    "convolution": (IMAGE, x(6, 4, 3, 3), x(6), [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
    "convolution_backward": (x(2, 6, 8, 8), IMAGE, x(6, 4, 3, 3), [6], [1, 1], [1, 1], [1, 1],
                             False, [0, 0], 1, [True, True, True]),
    "embedding": (x(10, 6), ids(4)), "embedding_dense_backward": (x(4, 6), ids(4), 10, -1, False),
    "empty": ([4, 6],), "empty_strided": ([4, 6], [6, 1]), "expand": (x(1, 6), [4, 6]),
    "full": ([4, 6], 1.0), "gather": (x(4, 6), 1, ids(4, 3)),
    "grid_sampler_2d": (IMAGE, x(2, 5, 5, 2), 0, 0, False), "index": (x(4, 6), [ids(3)]),
    "index_put": (x(4, 6), [ids(3)], x(3, 6)), "index_select": (x(4, 6), 0, ids(3)),
    "max_pool2d_with_indices": (IMAGE, [2, 2]),
    "max_pool2d_with_indices_backward": (GRAD, IMAGE, [2, 2], [2, 2], [0, 0], [1, 1], False,
                                         ids(2, 4, 4, 4)),
    "max_pool3d_with_indices": (x(2, 4, 8, 8, 8), [2, 2, 2]),
    "masked_scatter": (x(4, 6), x(4, 6) > 0, x(4, 6)), "native_dropout": (x(4, 6), 0.5, True),
    "native_group_norm": (IMAGE, x(4), x(4), 2, 4, 64, 2, 1e-5),
    "native_group_norm_backward": (IMAGE, IMAGE, x(2, 2), x(2, 2), x(4), 2, 4, 64, 2,
                                   [True, True, True]),
    "native_layer_norm": (x(4, 6), [6], x(6), x(6), 1e-5),
    "native_layer_norm_backward": (x(4, 6), x(4, 6), [6], x(4, 1), x(4, 1), x(6), x(6),
                                   [True, True, True]),
    "permute": (x(4, 6), [1, 0]), "prod": (x(4, 6), 1), "randperm": (6,), "rand": ([4, 6],),
    "randn": ([4, 6],), "reflection_pad1d": (x(4, 6), [1, 1]),
    "reflection_pad2d": (IMAGE, [1, 1, 1, 1]), "reflection_pad3d": (IMAGE, [1] * 6),
    "repeat": (x(4, 6), [2, 1]), "replication_pad2d": (IMAGE, [1, 1, 1, 1]),
    "replication_pad3d": (IMAGE, [1] * 6), "resize_": (x(4, 6), [2, 12]), "scalar_tensor": (1.0,),
    "scatter": (x(4, 6), 1, ids(4, 3), x(4, 3)), "scatter_add": (x(4, 6), 1, ids(4, 3), x(4, 3)),
    "scatter_reduce": (x(4, 6), 1, ids(4, 3), x(4, 3), "sum"), "select": (x(4, 6), 0, 1),
    "select_scatter": (x(4, 6), x(6), 0, 1), "slice": (x(4, 6), 1, 0, 3),
    "slice_scatter": (x(4, 6), x(4, 3), 1, 0, 3), "split_with_sizes": (x(4, 6), [2, 4], 1),
    "squeeze": (x(4, 1, 6), 1), "sym_size": (x(4, 6), 0), "topk": (x(4, 6), 2),
    "upsample_bilinear2d": (IMAGE, [12, 12], False, None),
    "upsample_nearest2d": (IMAGE, [16, 16], None),
    "view": (x(4, 6), [2, 12]), "where": (x(4, 6) > 0, x(4, 6), x(4, 6)), "diagonal": (x(4, 6),),
    "index_add": (x(4, 6), 0, ids(3), x(3, 6)), "fill": (x(4, 6), 1.0),
}  # fmt: skip
"""Arguments of the operators that take more than tensors of one shape and a dim."""


def arguments_of(name):
    """Return arguments: those above, or a tensor, a dim or a number for each that is needed."""
    if name in ARGUMENTS:
        return ARGUMENTS[name]
    given = {"Tensor": x(4, 6), "int": 1, "number": 2.0, "float": 0.5, "bool": False,
             "Optional[Tensor]": None, "List[int]": [1]}  # fmt: skip
    needed = [a for a in CORE[name]._schema.arguments if not a.has_default_value()]
    return tuple(given[str(argument.type)] for argument in needed if not argument.kwarg_only)


class Calls(torch.nn.Module):
    """One operator, beside a function of each element that has an output in any case."""

    def __init__(self, operator, leaves, spec):
        super().__init__()
        self.operator, self.leaves, self.spec = operator, leaves, spec

    def forward(self, beside, *tensors):
        left = iter(tensors)
        leaves = [next(left) if isinstance(leaf, torch.Tensor) else leaf for leaf in self.leaves]
        arguments = torch.utils._pytree.tree_unflatten(leaves, self.spec)
        made = torch.utils._pytree.tree_leaves(self.operator(*arguments))
        return [beside.cos(), *(one * 1 for one in made if isinstance(one, torch.Tensor))]


def graph_with(name):
    """Return the graph of a program that calls an operator."""
    leaves, spec = torch.utils._pytree.tree_flatten(arguments_of(name))
    tensors = [leaf.clone() for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return import_torch(
        Calls(getattr(torch.ops.aten, name), leaves, spec), (x(4, 6), *tensors), name=name
    )


QUICK = ("convolution_backward", "topk", "mm", "expand")


@pytest.mark.parametrize(
    "name", slow_where(sorted(CORE.keys() - ON_NUMBERS - OPEN.keys()), lambda n: n not in QUICK)
)
def test_every_core_operator_is_read(name) -> None:
    assert graph_with(name).kernels


def test_core_operators_have_rules() -> None:
    """Those of PyTorch 2.13: 164, of which 6 return numbers."""
    missing = {name for name in CORE.keys() - ON_NUMBERS if name.removesuffix("_") not in RULES}
    assert not missing


def test_gradients_of_a_convolution_by_hand() -> None:
    """2 x 6 x 64 results of 4 x 9 products: once for the input, once for the weight."""
    graph = to_graph(graph_with("convolution_backward"))
    products = [k.flops(graph.sizes) for k in graph.kernels if k.unit is Unit.MATRIX]
    assert products == [2 * 2 * 6 * 64 * 4 * 9] * 2
