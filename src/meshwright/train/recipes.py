"""Recipes: what other systems would look at, as a part of our own space.

Each is searched as hard as ours: the same search, price and placement, with some choices fixed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.base.registry import Registry
from meshwright.cost.problem import Mapper

Fixed = Mapping[str, tuple[object, ...]]
"""Allowed values of a degree or of a structural choice, by name; what is not named is free."""

TEMP = "TEMP (Wang et al. 2025, arXiv 2512.14256), section VIII-A"
BLIND: tuple[Mapper, ...] = (Mapper.SMAP, Mapper.GMAP)
ONE: tuple[object, ...] = (1,)
STREAMS = tuple(range(2, 1025))
"""Degrees of an axis along which something streams."""
ONE_TENSOR: tuple[object, ...] = ("auto", "weights", "inputs")
"""What streams where only one tensor does."""


@dataclass(frozen=True)
class Recipe:
    """One way to train: what it fixes, and who places it on a grid."""

    title: str
    source: str
    fixed: Fixed
    mappers: tuple[Mapper, ...] = (Mapper.TMAP,)
    needs_grid: bool = False
    """It streams tensors between neighbours: left out on systems without any."""


recipes: Registry[Recipe] = Registry("recipe")
"""Ours first."""

recipes.register("meshwright")(Recipe("everything is free", "this project", {}))
recipes.register("temp")(
    Recipe(
        "tensor streams with dp, tp and cp on one wafer, no pipeline",
        f"dp, sp, tp and tatp of {TEMP}, with our placement and routes",
        {"pp": ONE, "streamed": ONE_TENSOR},
        (Mapper.TMAP, Mapper.SMAP),
        needs_grid=True,
    )
)
recipes.register("megatron-1")(
    Recipe(
        "tp, dp and pp; activations between blocks are replicated over tp",
        f"Shoeybi et al. 2019, arXiv 1909.08053; baseline of {TEMP}, with ZeRO-1 over replicas",
        {"tatp": ONE, "cp": ONE, "sequence_parallel": (False,), "zero_stage": (0, 1)},
        BLIND,
    )
)
recipes.register("megatron-3")(
    Recipe(
        "tp with sequence parallelism, cp, dp and pp",
        f"Korthikanti et al. 2022, arXiv 2205.05198; baseline of {TEMP}, with ZeRO-1",
        {"tatp": ONE, "zero_stage": (0, 1)},
        BLIND,
    )
)
_DATA_ONLY: Fixed = {"tatp": ONE, "tp": ONE, "cp": ONE, "pp": ONE, "zero_stage": (3,)}
recipes.register("fsdp")(
    Recipe(
        "weights sharded over all devices and gathered before they are needed",
        f"Zhao et al. 2023, arXiv 2304.11277; baseline of {TEMP}; without prefetch",
        {**_DATA_ONLY, "overlap_data_parallel": (False,)},
        BLIND,
    )
)
recipes.register("fsdp-prefetch")(
    Recipe(
        "fsdp that gathers the next layer beside the computation of this one",
        "Zhao et al. 2023, arXiv 2304.11277, section 3.3",
        _DATA_ONLY,
    )
)
recipes.register("zero3-tp")(
    Recipe(
        "weights sharded over dp, tp inside",
        "Rajbhandari et al. 2020, arXiv 1910.02054, with tensor parallelism",
        {"tatp": ONE, "pp": ONE, "zero_stage": (3,)},
    )
)
recipes.register("folded-ring")(
    Recipe(
        "tensor streams on a ring folded onto a line: two hops a round",
        "what TATP replaces; not among the paper's baselines",
        {"tatp": STREAMS, "stream_form": ("folded_ring",), "streamed": ONE_TENSOR},
        needs_grid=True,
    )
)
recipes.register("cycle-ring")(
    Recipe(
        "tensor streams on cycles of neighbours: one hop a round, half of the bytes",
        "not among the paper's baselines; 2x4 and 4x4 blocks have cycles",
        {"tatp": STREAMS, "stream_form": ("cycle",), "streamed": ONE_TENSOR},
        needs_grid=True,
    )
)
recipes.register("line-stream")(
    Recipe(
        "tensor streams on a line in both directions",
        "TATP of TEMP (Wang et al. 2025, arXiv 2512.14256), section V, as it is published",
        {"tatp": STREAMS, "stream_form": ("stream",), "streamed": ONE_TENSOR},
        needs_grid=True,
    )
)
recipes.register("product-stream")(
    Recipe(
        "2-D stream: inputs travel along the rows of a block, weights along its columns",
        "stationary-output SUMMA (van de Geijn and Watts 1997) with sends between neighbours; "
        "not among the baselines of TEMP",
        {"tp": STREAMS, "tatp": STREAMS, "streamed": ("both",)},
        needs_grid=True,
    )
)
