"""Words of the walk of a block: symbols of its tensors, and captions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from meshwright.graph.op import Op, OpKind
from meshwright.sharding.axes import matrices
from meshwright.spec.collective import CollectiveKind

SYMBOLS = {
    "layer_input": "X",
    "attention.norm.output": "N",
    "attention.query": "Q",
    "attention.key": "K",
    "attention.value": "V",
    "attention.qk_norm.query": "Qn",
    "attention.qk_norm.key": "Kn",
    "attention.rotary.query": "Qr",
    "attention.rotary.key": "Kr",
    "attention.core.log_sum_exp": "L",
    "attention.heads": "A",
    "attention.output": "O",
    "attention.post_norm.output": "P",
    "residual.attention.output": "R",
    "feed_forward.norm.output": "M",
    "feed_forward.up": "U",
    "feed_forward.activation": "G",
    "feed_forward.down": "D",
    "feed_forward.post_norm.output": "E",
    "residual.network.output": "Y",
    "residual.output": "Y",
}
"""Symbols of the tensors; a weight is W with the letter of its output, a gradient has a d."""


def symbol(name: str) -> str:
    """Return the symbol of a tensor of the graph."""
    if name.endswith(".gradient"):
        return "d" + symbol(name.removesuffix(".gradient"))
    if name.endswith(".weight"):
        return "W" + symbol(name.removesuffix(".weight")).lower()
    return SYMBOLS.get(name, name)


def site_words(site: str) -> str:
    """Return the site of an operator or collective in words: ``feed-forward, up``."""
    text = site.replace("feed_forward", "feed-forward").replace(": ", ", ")
    return text.replace(".", ", ").replace("_", " ")


def listed(names: Iterable[str]) -> str:
    """Return symbols as a list: Q, K and V."""
    *first, last = list(names)
    return f"{', '.join(first)} and {last}" if first else last


def own_text(dim: str | None) -> str:
    """Return the unit of the parts of a tensor that is split along a dim: tokens or columns."""
    return "tokens" if dim in (None, "tokens") else "columns"


def opening(input_dim: str | None) -> str:
    """Return the caption of a block at rest."""
    source = "X is there in full on every device."
    if input_dim is not None:
        source = "X is split by tokens: no activation is held twice."
    return (
        "Each device has its own columns or rows of every weight, whole heads of attention among "
        f"them. {source}"
    )


def forward_caption(
    op: Op, output_dim: str | None, size: int, *, is_term: bool, is_fed: bool
) -> str:
    """Return the caption of an operator in the forward pass.

    Parameters
    ----------
    output_dim
        The dim along which its output is split; None: every member makes all of it.
    is_term
        Whether the output is a term of a sum over the members.
    is_fed
        Whether something was sent for it.
    """
    made, read = (listed(symbol(t.name) for t in some) for some in (op.outputs, op.inputs))
    if op.kind is OpKind.ATTENTION:
        return "Attention works head by head, and each device has heads of its own." + (
            " Nothing is sent." if size > 1 and not is_fed else ""
        )
    if op.kind is not OpKind.MATMUL:
        how = "row by row" if op.kind is OpKind.NORM else "element by element"
        share = f"each device its own {own_text(output_dim)}"
        if output_dim is None:
            share = "every device does all of it, the same on each"
        return f"{made} from {read}, {how}: {share}."
    weights = listed(symbol(weight.name) for weight, _ in matrices(op))
    caption = f"Every device multiplies {read} by {weights}."
    if is_term:
        caption = (
            f"Each device multiplies its columns of {read} by its rows of {weights}. The result is "
            f"as large as {made}, but one term of a sum of {size}."
        )
    elif output_dim == "tokens":
        caption = f"Each device multiplies its tokens of {read} by {weights}."
    elif output_dim is not None:
        caption = (
            f"Each device multiplies {read} by its own columns of {weights} and has its own "
            f"columns of {made}."
        )
    return caption + (" Nothing had to be sent before." if size > 1 and not is_fed else "")


def backward_caption(
    op: Op, gradients: Mapping[str, bool], weights: Iterable[str], size: int, *,
    is_split: bool, adds: bool,
) -> str:  # fmt: skip
    """Return the caption of an operator in the backward pass.

    Parameters
    ----------
    gradients
        Gradients of its inputs, and whether each is a term of a sum over the members.
    is_split
        Whether each member makes a part of them only.
    adds
        Whether other operators have added to them before.
    """
    outputs, names = listed(f"d{symbol(t.name)}" for t in op.outputs), listed(gradients)
    verb = "adds to" if adds else "makes"
    if any(gradients.values()):
        caption = f"From {outputs} each device makes a term of {names}, a sum of {size}"
    elif is_split:
        caption = f"From {outputs} each device {verb} its part of {names}"
    else:
        caption = f"From {outputs} every device {verb} {names}, the same on each"
    made = list(weights)
    return caption + (f", and makes {listed(made)} for the weights that it has." if made else ".")


def need_caption(
    kind: CollectiveKind, name: str, dim: str | None, size: int, site: str
) -> str:  # fmt: skip
    """Return the caption of a collective: the layout that is there, and the layout needed."""
    if kind is CollectiveKind.ALL_GATHER:
        return (
            f"Each device has its own {own_text(dim)} of {name}, and needs all of it for: {site}."
        )
    where = f"for its own {own_text(dim)}" if kind is CollectiveKind.REDUCE_SCATTER else "in full"
    return (
        f"{name} is a sum of {size} terms, one on each device, and each device needs it {where} "
        f"for: {site}."
    )


def change_text(kind: CollectiveKind, dim: str | None) -> str:
    """Return the change of layout of a collective: ``split by tokens to whole``."""
    return {
        CollectiveKind.ALL_GATHER: f"split by {own_text(dim)} to whole",
        CollectiveKind.REDUCE_SCATTER: f"terms to split by {own_text(dim)}",
    }.get(kind, "terms to whole")
