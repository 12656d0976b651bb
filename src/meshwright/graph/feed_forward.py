"""The operators of a dense feed-forward network, and of the shared experts, which are one."""

from __future__ import annotations

from meshwright.graph.elementwise import activation_op
from meshwright.graph.op import Op, OpKind, Tensor


def ffn_sizes(prefix: str, ffn_size: int, *, gated: bool) -> dict[str, int]:
    """Return the inner widths; ``ffn_in`` counts gate and up together."""
    return {f"{prefix}ffn": ffn_size, f"{prefix}ffn_in": ffn_size * (2 if gated else 1)}


def feed_forward_ops(
    source: Tensor,
    *,
    gated: bool,
    bias: bool,
    region: str = "feed_forward",
    prefix: str = "",
    rows: str = "tokens",
    experts: tuple[str, ...] = (),
) -> tuple[list[Op], Tensor]:
    """Return up (and gate), activation and down of a network, and its output.

    ``prefix`` goes before the names of the inner dims, ``experts`` before the dims of the weights
    of a network of which there are many.
    """
    inner_in, inner = f"{prefix}ffn_in", f"{prefix}ffn"
    up = Op(
        name=f"{region}.up",
        kind=OpKind.MATMUL,
        inputs=(source,),
        output=Tensor(f"{region}.up", (rows, inner_in)),
        weights=_weights(f"{region}.up", experts, "hidden", inner_in, bias=bias),
        contracted=("hidden",),
        saved=(source,),
        region=region,
    )
    middle = Tensor(f"{region}.activation", (rows, inner))
    act = activation_op(f"{region}.activation", up.output, middle, gated=gated, region=region)
    down = Op(
        name=f"{region}.down",
        kind=OpKind.MATMUL,
        inputs=(middle,),
        output=Tensor(f"{region}.down", (rows, "hidden")),
        weights=_weights(f"{region}.down", experts, inner, "hidden", bias=bias),
        contracted=(inner,),
        saved=(middle,),
        region=region,
    )
    return [up, act, down], down.output


def _weights(
    name: str, experts: tuple[str, ...], inner: str, outer: str, *, bias: bool
) -> tuple[Tensor, ...]:
    """Return weight and bias of one matrix product."""
    weight = Tensor(f"{name}.weight", (*experts, inner, outer))
    return (weight, Tensor(f"{name}.bias", (*experts, outer))) if bias else (weight,)
