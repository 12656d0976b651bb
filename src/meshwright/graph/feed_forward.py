"""The operators of a dense feed-forward network, and of a mixture of experts.

A mixture has a router, the dispatch of tokens, the networks of the experts, and shared experts,
which are one dense network.
"""

from __future__ import annotations

from dataclasses import replace

from meshwright.graph.elementwise import activation_op, sum_op
from meshwright.graph.op import Op, OpKind, Tensor
from meshwright.spec.model import ExpertSpec


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


REGION = "experts"
SHARED = "shared_experts"


def expert_sizes(spec: ExpertSpec) -> dict[str, int]:
    """Return the sizes of the dims of a mixture of experts."""
    sizes = {"experts": spec.num_experts, "expert_scores": spec.num_experts, "top_k": spec.top_k}
    sizes |= ffn_sizes("expert_", spec.ffn_size, gated=spec.gated)
    if spec.shared_ffn_size:
        sizes |= ffn_sizes("shared_", spec.shared_ffn_size, gated=spec.gated)
    return sizes | ({"shared_gate": 1} if spec.shared_gate else {})


def expert_ops(spec: ExpertSpec, source: Tensor) -> tuple[list[Op], tuple[Tensor, ...]]:
    """Return the operators from the normalised input on, and the branches to be added.

    The weight of an expert is multiplied in with its activation function, so that the rows that
    leave the experts need not be kept; one FP32 score for each row is.
    """
    router = _router(spec, source)
    dispatch = Op(
        name="experts.dispatch",
        kind=OpKind.ROUTE,
        inputs=(source, router.output),
        output=Tensor("experts.rows", ("routed_tokens", "hidden")),
        saved=(Tensor("experts.row_scores", ("routed_tokens",), 4.0),),
        words_per_element=(2.0, 2.0),
        region=REGION,
    )
    inner, rows = feed_forward_ops(
        dispatch.output,
        gated=spec.gated,
        bias=spec.bias,
        region=REGION,
        prefix="expert_",
        rows="routed_tokens",
        experts=("experts",),
    )
    share = 1.0 + 1.0 / spec.top_k
    combine = Op(
        name="experts.combine",
        kind=OpKind.ROUTE,
        inputs=(rows,),
        output=Tensor("experts.combined", ("tokens", "hidden")),
        words_per_element=(share, share),
        moved=rows,
        region=REGION,
    )
    shared_ops, shared = _shared_experts(spec, source)
    return [router, dispatch, *inner, combine, *shared_ops], (combine.output, *shared)


def joined(branches: tuple[Tensor, ...]) -> tuple[list[Op], Tensor]:
    """Return the sum of routed and shared experts, for a norm that follows them."""
    if len(branches) == 1:
        return [], branches[0]
    add = sum_op("experts.sum", branches, REGION)
    return [add], add.output


def _router(spec: ExpertSpec, source: Tensor) -> Op:
    """Return the product that scores every expert for every token."""
    bias = (Tensor("experts.router.bias", ("expert_scores",)),) if spec.router_bias else ()
    return Op(
        name="experts.router",
        kind=OpKind.MATMUL,
        inputs=(source,),
        output=Tensor("experts.scores", ("tokens", "expert_scores")),
        weights=(Tensor("experts.router.weight", ("hidden", "expert_scores")), *bias),
        contracted=("hidden",),
        saved=(source,),
        region=REGION,
    )


def _shared_experts(spec: ExpertSpec, source: Tensor) -> tuple[list[Op], tuple[Tensor, ...]]:
    """Return the network that every token visits, with its learned gate where there is one."""
    if not spec.shared_ffn_size:
        return [], ()
    ops, output = feed_forward_ops(
        source, gated=spec.gated, bias=spec.bias, region=SHARED, prefix="shared_"
    )
    if not spec.shared_gate:
        return ops, (output,)
    gate = Tensor("shared_experts.gate", ("tokens", "shared_gate"))
    ops.append(
        Op(
            name="shared_experts.gate",
            kind=OpKind.MATMUL,
            inputs=(source,),
            output=gate,
            weights=(Tensor("shared_experts.gate.weight", ("hidden", "shared_gate")),),
            contracted=("hidden",),
            saved=(source,),
            region=SHARED,
        )
    )
    scaled = sum_op("shared_experts.scaled", (output, gate), SHARED)
    ops.append(replace(scaled, saved=(output, gate), words_per_element=(2.0, 3.0)))
    return ops, (ops[-1].output,)
