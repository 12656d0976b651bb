"""Sums of a layer in decode on a grid of dies: over all dies at once, or along its lines.

    python benchmarks/decode_on_dies.py

Heads and columns over all dies need two sums of the residual stream in a layer. A cut over rows and
columns of the grid, as on the mesh of cores of a chip, sums each product along one dim: six along
the columns (norm, queries, normaliser, values, norm, up), two along the rows (output, down).
Closed form, Llama 3 8B; one launch of a collective for each sum.
"""

from collections.abc import Callable

from meshwright.catalog.calibration import DEFAULT, load_calibration
from meshwright.catalog.models import load_model
from meshwright.catalog.systems import load_system
from meshwright.collectives.group import Group, make_group
from meshwright.collectives.registry import affine_candidates
from meshwright.cost.communication import level_efficiencies
from meshwright.spec.collective import CollectiveKind

GRIDS = ("wafer-4x8", "wafer-6x8", "dojo-tile", "dojo-tiles")
BATCHES = (1, 16, 256, 4096)
WORD_BYTES, SUM_BYTES = 2.0, 4.0


def sums_s(name: str, batch: int) -> tuple[float, float]:
    """Return the sums of a layer over all dies of a grid, and along its lines [s]."""
    model, system = load_model("llama3-8b"), load_system(name)
    layer = model.layer_kinds[0]
    attention, inner = layer.attention, layer.feed_forward
    assert attention is not None
    heads, hidden = attention.num_heads, model.hidden_size
    queries = (heads + 2 * attention.num_kv_heads) * attention.head_size
    values = heads * attention.value_head_size
    constants = load_calibration(system.chip.family, DEFAULT)
    shares = level_efficiencies(system, constants)
    across, along = system.levels[:2]

    def all_reduce_s(group: Group[float]) -> Callable[[float], float]:
        forms = affine_candidates(CollectiveKind.ALL_REDUCE, group)
        return lambda size: (
            constants.collective_launch_s
            + min(float(fixed_s) + batch * size * float(slope) for _, fixed_s, slope in forms)
        )

    whole_s = all_reduce_s(make_group([across, along], 1.0, float(system.num_devices), shares[:2]))
    row_s = all_reduce_s(make_group([across], 1.0, float(across.size), shares[:1]))
    column_s = all_reduce_s(make_group([along], 1.0, float(along.size), shares[1:2]))
    lines_s = (
        2.0 * column_s(SUM_BYTES)
        + column_s(SUM_BYTES * heads / across.size)
        + column_s(WORD_BYTES * queries / across.size)
        + column_s(WORD_BYTES * values / across.size)
        + column_s(WORD_BYTES * 2.0 * inner.ffn_size / across.size)
        + 2.0 * row_s(WORD_BYTES * hidden / along.size)
    )
    return 2.0 * whole_s(WORD_BYTES * hidden), lines_s


if __name__ == "__main__":
    print(f"{'grid':12} {'batch':>6} {'two sums':>10} {'eight lines':>12}")
    for name in GRIDS:
        for batch in BATCHES:
            whole, lines = sums_s(name, batch)
            print(f"{name:12} {batch:6} {1e6 * whole:7.1f} us {1e6 * lines:9.1f} us")
