"""Public architectures of torchvision and transformers against PyTorch's own count of FLOPs."""

import pytest

from meshwright.catalog.graphs.files import checked
from meshwright.dataflow.layouts import splits_of
from meshwright.graph.kernels.backward import with_backward
from meshwright.graph.kernels.declared import to_graph, to_spec
from meshwright.graph.kernels.kernel import Unit
from meshwright.graph.op import Phase

torch = pytest.importorskip("torch")
from public_models import BUILD, language_model  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from meshwright.catalog.graphs.torch_export import import_torch  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


def counted_flops(module, arguments, keywords):
    """Return the FLOPs of products: each as PyTorch runs it, attention and LSTM in single steps."""
    counter = FlopCounterMode(display=False)
    plain = sdpa_kernel(SDPBackend.MATH), torch.backends.mkldnn.flags(enabled=False)
    with plain[0], plain[1], torch.no_grad(), counter:
        module(*arguments, **keywords)
    return counter.get_total_flops()


def product_flops(graph):
    return sum(k.flops(graph.sizes) for k in graph.kernels if k.unit is Unit.MATRIX)


@pytest.mark.parametrize("name", BUILD)
def test_public_architectures_have_the_flops_and_parameters_that_torch_counts(name) -> None:
    module, arguments, keywords = BUILD[name]()
    graph = to_graph(import_torch(module, arguments, keywords))
    assert product_flops(graph) == pytest.approx(
        counted_flops(module, arguments, keywords), rel=1e-12
    )
    assert graph.num_parameters == sum(p.numel() for p in module.parameters())
    training = with_backward(graph)
    checked(to_spec(training))
    made = [kernel for kernel in training.kernels if kernel.phase is Phase.WEIGHT_GRADIENT]
    assert len(made) == sum(len(kernel.weights) for kernel in graph.kernels)
    assert 2 * product_flops(graph) < product_flops(training) <= 3 * product_flops(graph)


@pytest.mark.parametrize("experts", ["grouped_mm", "batched_mm", "deepgemm"])
@pytest.mark.parametrize("name", ["Mixtral", "Qwen2Moe", "Qwen3Moe"])
def test_experts_are_read_whatever_implements_them(name, experts) -> None:
    module, arguments, _ = language_model(name)
    counted = counted_flops(module, arguments, {})
    module.config._experts_implementation = experts
    graph = to_graph(import_torch(module, arguments))
    assert product_flops(graph) == pytest.approx(counted, rel=1e-12)
    assert graph.num_parameters == sum(p.numel() for p in module.parameters())
    assert module.config._experts_implementation == experts


def test_experts_in_half_precision_are_split_over_experts() -> None:
    """2 x 16 tokens with 2 experts each fill 64 rows: 11 slots of each of 6 experts."""
    module, arguments, _ = language_model("Mixtral")
    graph = to_graph(import_torch(module.to(torch.bfloat16), arguments))
    assert product_flops(graph) == pytest.approx(counted_flops(module, arguments, {}), rel=1e-12)
    up = next(k for k in graph.kernels if any("gate_up_proj" in w.name for w in k.weights))
    experts, slots, _ = up.dims
    assert (graph.sizes[experts], graph.sizes[slots]) == (6, 11)
    assert up.flops(graph.sizes) == 2 * 64 * 64 * 2 * 96
    assert experts in {split.dim for split in splits_of(up)}
