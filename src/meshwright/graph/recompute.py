"""The modules of a layer that selective recomputation may cover, and the operators of each.

Names are those of Megatron-LM's ``--recompute-modules``. Source: megatron-core 0.19.2,
``TransformerConfig.recompute_modules``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from meshwright.graph.op import LayerGraph, OpKind

MODULES: Mapping[str, tuple[str, ...]] = {
    "core_attn": ("attention.core",),
    "layernorm": ("attention.norm", "feed_forward.norm", "experts.norm"),
    "mla_up_proj": (
        "attention.query_norm", "attention.query_up", "attention.kv_norm", "attention.kv_up",
        "attention.rotary",
    ),
    "moe_act": ("experts.activation",),
}  # fmt: skip
"""Operators of each module. Latent attention projects up what it has compressed; without it there
is no ``mla_up_proj``."""
LATENT = "attention.kv_up"


def repeated_ops(layer: LayerGraph, modules: Collection[str]) -> frozenset[str]:
    """Return the operators of a layer that are in some modules; of none: the attention core."""
    if not modules:
        return frozenset(op.name for op in layer.ops if op.kind is OpKind.ATTENTION)
    names = {op.name for op in layer.ops}
    chosen = [name for name in modules if name != "mla_up_proj" or LATENT in names]
    return frozenset(names.intersection(op for name in chosen for op in MODULES[name]))
