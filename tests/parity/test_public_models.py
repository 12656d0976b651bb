"""Public architectures of torchvision and transformers against PyTorch's own count of FLOPs."""

import pytest
from sampled import slow_where

from meshwright.catalog.graphs.files import checked
from meshwright.dataflow.layouts import splits_of
from meshwright.graph.kernels.backward import with_backward
from meshwright.graph.kernels.declared import to_graph, to_spec
from meshwright.graph.kernels.kernel import Unit
from meshwright.graph.op import Phase

torch = pytest.importorskip("torch")
from public_models import BUILD, image_model, language_model  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.utils import _pytree  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from meshwright.catalog.graphs.onnx_files import import_onnx  # noqa: E402
from meshwright.catalog.graphs.torch_export import graph_of_program, import_torch  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

OTHER_BACKWARD = {
    "mobilenet_v3_small", "efficientnet_b0", "regnet_y_400mf", "convnext_tiny", "Mamba",
    "LSTM", "GRU",
}  # fmt: skip
"""The counter takes gradients of grouped convolutions as if they had one group; a recurrent layer
has no gradient of its first state."""


def counted_flops(module, arguments, keywords):
    """Return the FLOPs of products: of a forward pass, and of that with its backward pass.

    Each as PyTorch runs it, attention and recurrent layers in single steps.
    """
    counter = FlopCounterMode(display=False)
    with sdpa_kernel(SDPBackend.MATH), torch.backends.mkldnn.flags(enabled=False), counter:
        outputs = _pytree.tree_leaves(module(*arguments, **keywords))
        forward = counter.get_total_flops()
        made = [x for x in outputs if isinstance(x, torch.Tensor) and x.requires_grad]
        sum(x.sum() for x in made).backward()
    return forward, counter.get_total_flops()


def product_flops(graph):
    return sum(k.flops(graph.sizes) for k in graph.kernels if k.unit is Unit.MATRIX)


QUICK = ("vgg16", "GRU", "Bert", "FNet", "Mamba", "Llama")
"""Of each kind one that is exported fast."""


@pytest.mark.parametrize("name", slow_where(BUILD, lambda name: name not in QUICK))
def test_public_architectures_have_the_flops_and_parameters_that_torch_counts(name) -> None:
    module, arguments, keywords = BUILD[name]()
    graph = to_graph(import_torch(module, arguments, keywords))
    if getattr(BUILD[name], "func", None) is image_model:  # whose FLOPs do not depend on numbers
        module, arguments = module.to("meta"), [image.to("meta") for image in arguments]
    forward, both = counted_flops(module, arguments, keywords)
    assert product_flops(graph) == pytest.approx(forward, rel=1e-12)
    assert graph.num_parameters == sum(p.numel() for p in module.parameters())
    training = with_backward(graph)
    checked(to_spec(training))
    made = [kernel for kernel in training.kernels if kernel.phase is Phase.WEIGHT_GRADIENT]
    assert len(made) == sum(len(kernel.weights) for kernel in graph.kernels)
    assert 2 * forward < product_flops(training) <= 3 * forward
    if name not in OTHER_BACKWARD:
        assert product_flops(training) == pytest.approx(both, rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("experts", ["grouped_mm", "batched_mm", "deepgemm"])
@pytest.mark.parametrize("name", ["Mixtral", "Qwen2Moe", "Qwen3Moe"])
def test_experts_are_read_whatever_implements_them(name, experts) -> None:
    module, arguments, _ = language_model(name)
    forward, both = counted_flops(module, arguments, {})
    module.config._experts_implementation = experts
    graph = to_graph(import_torch(module, arguments))
    assert product_flops(graph) == pytest.approx(forward, rel=1e-12)
    assert product_flops(with_backward(graph)) == pytest.approx(both, rel=1e-12)
    assert graph.num_parameters == sum(p.numel() for p in module.parameters())
    assert module.config._experts_implementation == experts


@pytest.mark.slow
def test_experts_in_half_precision_are_split_over_experts() -> None:
    """2 x 16 tokens with 2 experts each fill 64 rows: 11 slots of each of 6 experts."""
    module, arguments, _ = language_model("Mixtral")
    graph = to_graph(import_torch(module.to(torch.bfloat16), arguments))
    forward, _ = counted_flops(module, arguments, {})
    assert product_flops(graph) == pytest.approx(forward, rel=1e-12)
    up = next(k for k in graph.kernels if any("gate_up_proj" in w.name for w in k.weights))
    experts, slots, _ = up.dims
    assert (graph.sizes[experts], graph.sizes[slots]) == (6, 11)
    assert up.flops(graph.sizes) == 2 * 64 * 64 * 2 * 96
    assert experts in {split.dim for split in splits_of(up)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "axes", "sizes"),
    [
        (image_model, {"x": {0: "batch", 2: "height"}}, {"batch": 3, "height": 96}),
        (language_model, {"input_ids": {0: "batch", 1: "tokens"}}, {"batch": 3, "tokens": 24}),
    ],
)
def test_dynamic_dims_are_bound_as_if_they_had_been_fixed(build, axes, sizes) -> None:
    name = "resnet18" if build is image_model else "Llama"
    module, arguments, _ = build(name, 2)
    shapes = {key: dict.fromkeys(dims, torch.export.Dim.AUTO) for key, dims in axes.items()}
    with torch.no_grad():
        program = torch.export.export(module, arguments, dynamic_shapes=shapes)
    (example,) = arguments
    shape = list(example.shape)
    for dims in axes.values():
        for axis, dim in dims.items():
            shape[axis] = sizes[dim]
    bound = graph_of_program(program, name="bound", sizes=sizes)
    fixed = import_torch(module, (torch.zeros(shape, dtype=example.dtype),), name="bound")
    assert product_flops(to_graph(bound)) == product_flops(to_graph(fixed))
    assert to_graph(bound).flops == pytest.approx(to_graph(fixed).flops, rel=1e-3)
    assert {**bound.dims, **sizes} == dict(bound.dims)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mobilenet_v3_small", "fcn_resnet50", "Llama", "Mixtral", "LSTM"])
def test_onnx_files_of_public_architectures_have_the_same_products(name, tmp_path) -> None:
    """The exporter folds norms into convolutions, so parameters differ by those of norms."""
    pytest.importorskip("onnxscript")
    module, arguments, _ = BUILD[name]()
    if name == "Mixtral":  # the exporter knows no grouped products
        module.config._experts_implementation = "batched_mm"
    path = tmp_path / "model.onnx"
    with torch.no_grad():
        torch.onnx.export(module, arguments, dynamo=True, verbose=False).save(str(path))
    read, traced = to_graph(import_onnx(path)), to_graph(import_torch(module, arguments))
    assert product_flops(read) == pytest.approx(product_flops(traced), rel=1e-12)
    assert read.num_parameters == pytest.approx(traced.num_parameters, rel=0.01)
