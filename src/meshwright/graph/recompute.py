"""The modules of a layer that selective recomputation may cover, and the operators of each.

Names are those of Megatron-LM's ``--recompute-modules``. Source: megatron-core 0.19.2,
``TransformerConfig.recompute_modules``.

Or, the other way round, single tensors that are kept where all else is made again, under the names
that MaxText gives them (``remat_policy: custom``). Source: AI-Hypercomputer/maxtext
``configs/base.yml``, ``layers/decoders.py`` (``get_remat_policy``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from meshwright.graph.op import LayerGraph, OpKind

MODULES: Mapping[str, tuple[str, ...]] = {
    "core_attn": ("attention.core",),
    "layernorm": ("attention.norm", "recurrence.norm", "feed_forward.norm", "experts.norm"),
    "mla_up_proj": (
        "attention.query_norm", "attention.query_up", "attention.kv_norm", "attention.kv_up",
        "attention.rotary",
    ),
    "moe_act": ("experts.activation",),
    "mlp": ("feed_forward.norm", "feed_forward.up", "feed_forward.activation", "feed_forward.down"),
    "moe": (
        "experts.router", "experts.dispatch", "experts.up", "experts.activation", "experts.down",
        "experts.combine", "shared_experts.up", "shared_experts.activation", "shared_experts.down",
        "shared_experts.gate", "shared_experts.scaled", "experts.sum",
    ),
    "shared_experts": (
        "shared_experts.up", "shared_experts.activation", "shared_experts.down",
        "shared_experts.gate", "shared_experts.scaled",
    ),
}  # fmt: skip
"""Operators of each module. Latent attention projects its compressed values up; without it there is
no ``mla_up_proj``. The first product of a dense network norms its input (Transformer Engine,
``LayerNormLinear``), so the norm is in ``mlp``; the one before experts is not in ``moe``."""
KEEPS_OUTPUTS = ("core_attn", "mlp", "moe", "shared_experts")
"""Modules with outputs that stay where others read them; those of the rest are made again."""
LATENT = "attention.kv_up"
LAYER_INPUT = "decoder_layer_input"
TENSORS: Mapping[str, tuple[str, ...]] = {
    LAYER_INPUT: (),
    "query_proj": ("attention.query",),
    "key_proj": ("attention.key",),
    "value_proj": ("attention.value",),
    "context": ("attention.heads", "attention.core.log_sum_exp"),
    "out_proj": ("attention.output",),
    "mlpwi": ("feed_forward.up", "experts.up"),
    "mlpwo": ("feed_forward.down", "experts.down"),
}  # fmt: skip
"""Tensors of each name. The input of a layer is always kept: recomputation starts from it."""


def tensors_named(names: Collection[str]) -> frozenset[str]:
    """Return the tensors of some names of :data:`TENSORS`; the input of a layer is not among them.

    A layer has some of them: a dense one no experts.
    """
    return frozenset(tensor for name in names for tensor in TENSORS[name])


def repeated_ops(
    layer: LayerGraph, modules: Collection[str], tensors: Collection[str] = ()
) -> frozenset[str]:
    """Return the operators of a layer that are in some modules; of none: the attention core.

    Where the tensors are named that are kept, all operators but those that make these alone.
    """
    if tensors:
        kept = tensors_named(tensors)
        return frozenset(op.name for op in layer.ops if not {t.name for t in op.outputs} <= kept)
    if not modules:
        return frozenset(op.name for op in layer.ops if op.kind is OpKind.ATTENTION)
    names = {op.name for op in layer.ops}
    chosen = [name for name in modules if name != "mla_up_proj" or LATENT in names]
    return frozenset(names.intersection(op for name in chosen for op in MODULES[name]))


def remade_tensors(layer: LayerGraph, modules: Collection[str]) -> frozenset[str]:
    """Return the tensors that some modules drop and make again.

    Outputs that leave a module of ``KEEPS_OUTPUTS`` are not among them.
    """
    made: set[str] = set()
    for module in modules:
        inside = repeated_ops(layer, (module,))
        outputs = {t.name for op in layer.ops if op.name in inside for t in op.outputs}
        if module in KEEPS_OUTPUTS:
            outside = [op for op in layer.ops if op.name not in inside]
            outputs -= {t.name for op in outside for t in (*op.inputs, *op.saved)}
        made |= outputs
    return frozenset(made)
