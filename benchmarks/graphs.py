"""How long graphs take: built, turned round, written and read; imported, where PyTorch is there.

Run: python benchmarks/graphs.py [--small]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from meshwright.base.errors import UnsupportedError
from meshwright.catalog.graphs.files import graph_of_text, graph_yaml
from meshwright.catalog.graphs.torch_export import import_torch
from meshwright.dataflow.question import load_graph
from meshwright.graph.kernels.backward import with_backward
from meshwright.graph.kernels.declared import to_graph, to_spec

NAMES = ("gpt3-175b-layer", "dlrm-a", "deepseek-v3.layer1", "hpl-16384x128", "gpt3-175b.whole")
LLAMA_405B = {"hidden": 16384, "kv_width": 1024, "ffn": 53248, "tokens": 8192}
SMALL = {"hidden": 64, "kv_width": 16, "ffn": 96, "tokens": 32}


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """Return what some work returns, and its CPU time [ms]."""
    start = time.process_time()
    result = work()
    return result, 1e3 * (time.process_time() - start)


def graph_row(name: str) -> str:
    """Return the row of one graph."""
    graph, built_ms = timed(lambda: load_graph(name))
    has_messages = any(kernel.messages for kernel in graph.kernels)
    training, turned_ms = (graph, 0.0) if has_messages else timed(lambda: with_backward(graph))
    text, written_ms = timed(lambda: graph_yaml(to_spec(training)))
    again, read_ms = timed(lambda: to_graph(graph_of_text(text)))
    assert again == training
    turned = "-" if has_messages else f"{turned_ms:.0f}"
    return (
        f"{name:<20} {len(graph.kernels):>7} {len(training.kernels):>8} {built_ms:>8.0f} "
        f"{turned:>8} {written_ms:>8.0f} {read_ms:>8.0f}"
    )


def llama_block(hidden: int, kv_width: int, ffn: int) -> Any:
    """Return a block with the products of a Llama layer, on the meta device."""
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
            self.query, self.output = (nn.Linear(hidden, hidden, bias=False) for _ in range(2))
            self.key, self.value = (nn.Linear(hidden, kv_width, bias=False) for _ in range(2))
            self.gate, self.up = (nn.Linear(hidden, ffn, bias=False) for _ in range(2))
            self.down = nn.Linear(ffn, hidden, bias=False)

        def forward(self, x: Any) -> Any:
            y = self.norm1(x)
            size = kv_width // 8
            parts = (part(y).unflatten(-1, (-1, size)).transpose(1, 2) for part in
                     (self.query, self.key, self.value))  # fmt: skip
            heads = functional.scaled_dot_product_attention(*parts, enable_gqa=True)
            x = x + self.output(heads.transpose(1, 2).flatten(2))
            y = self.norm2(x)
            return x + self.down(functional.silu(self.gate(y)) * self.up(y))

    return nn.Sequential(Block(), Block()).eval()


def imported_line(sizes: dict[str, int]) -> str:
    """Return how long two blocks take to import."""
    try:
        import torch
    except ImportError:
        return "PyTorch is not installed: nothing imported"
    with torch.device("meta"):
        blocks = llama_block(sizes["hidden"], sizes["kv_width"], sizes["ffn"])
        x = torch.zeros(1, sizes["tokens"], sizes["hidden"])
    try:
        spec, import_ms = timed(lambda: import_torch(blocks, (x,), repeats=63))
    except UnsupportedError as error:
        return str(error)
    graph = to_graph(spec)
    return (
        f"two blocks from torch.export: {import_ms:.0f} ms, {len(graph.kernels)} kernels, "
        f"{graph.num_parameters / 1e9:.1f} billion parameters in 126 blocks"
    )


def main(words: list[str]) -> None:
    """Print all rows."""
    is_small = "--small" in words
    print(f"{'graph':<20} {'forward':>7} {'training':>8} {'built':>8} {'turned':>8} "
          f"{'written':>8} {'read':>8}   kernels, CPU ms")  # fmt: skip
    for name in NAMES[:2] if is_small else NAMES:
        print(graph_row(name))
    print(imported_line(SMALL if is_small else LLAMA_405B))


if __name__ == "__main__":
    main(sys.argv[1:])
