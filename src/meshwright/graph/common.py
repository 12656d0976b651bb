"""Operators that several parts of a model have: norms, sums, activations and products.

Traffic of operators between the products is counted in words read and written for each element,
forward and backward, as separate kernels; a compiler that fuses them moves less, which is decided
where it is priced.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from meshwright.graph.op import Op, OpKind, Tensor

NormKind = Literal["rms", "layer", "layer_no_bias", "layer_unweighted"]

EDGE = "edge"
"""Region of the graph: the embedding and the head."""
MASK_WORD_BYTES = 1.0
"""A dropout mask is kept as one byte for each element."""
MASK_WORDS = 0.5
"""Traffic of such a mask in words of two bytes."""

GATED_WORDS = (3.0, 5.0)
"""Traffic of an activation with its product of gate and up."""


def hidden_activation(name: str) -> Tensor:
    """Return a tensor of the width of the residual stream."""
    return Tensor(name, ("tokens", "hidden"))


def norm_weights(name: str, dim: str, kind: NormKind) -> tuple[Tensor, ...]:
    """Return the learned vectors of a norm over one dim: weight and bias, weight, or none."""
    parts = {"layer": ("weight", "bias"), "layer_unweighted": ()}.get(kind, ("weight",))
    return tuple(Tensor(f"{name}.{part}", (dim,)) for part in parts)


def norm_op(name: str, source: Tensor, dim: str, kind: NormKind, region: str) -> Op:
    """Return a norm over one dim of a tensor; the backward pass needs its input.

    Forward reads and writes once; backward reads input and gradient and writes one gradient.
    """
    return Op(
        name=name,
        kind=OpKind.NORM,
        inputs=(source,),
        output=Tensor(f"{name}.output", source.dims),
        weights=norm_weights(name, dim, kind),
        contracted=(dim,),
        saved=(source,),
        words_per_element=(2.0, 3.0),
        region=region,
    )


def residual_add_op(
    name: str, residual: Tensor, branches: tuple[Tensor, ...], *, dropout: bool
) -> Op:
    """Return the addition of branches to the residual stream, with dropout on the branches.

    Forward reads all parts and writes the sum; backward adds the gradients that meet where the
    branches left the stream, equally many words. Dropout with its own kernel in the backward pass
    reads mask and gradient and writes a gradient.
    """
    words = len(branches) + 2.0
    mask = Tensor(f"{name}.mask", residual.dims, MASK_WORD_BYTES)
    extra = (MASK_WORDS, 2.0 + MASK_WORDS) if dropout else (0.0, 0.0)
    return Op(
        name=name,
        kind=OpKind.ELEMENTWISE,
        inputs=(residual, *branches),
        output=Tensor(f"{name}.output", residual.dims),
        saved=(mask,) if dropout else (),
        words_per_element=(words + extra[0], words + extra[1]),
        region="residual",
    )


def is_gated(op: Op) -> bool:
    """Return whether this is an activation function with the product of gate and up."""
    return op.kind is OpKind.ELEMENTWISE and op.words_per_element == GATED_WORDS


def with_kept_gate(op: Op) -> Op:
    """Return an operator of a layer that also keeps the output of its gate's activation.

    So do two kernels where a library or a compiler has one.
    """
    if not is_gated(op):
        return op
    return replace(op, saved=(*op.saved, replace(op.output, name=f"{op.name}.gate")))


def with_norm_in_steps(op: Op) -> Op:
    """Return an operator of a layer with its norm as the models of Hugging Face compute it.

    Its kernels keep their input in FP32 and the normalised rows.

    Source: huggingface/transformers, ``modeling_llama.py``, ``LlamaRMSNorm``.
    """
    if op.kind is not OpKind.NORM:
        return op
    widened = (Tensor(f"{op.name}.{t.name}.fp32", t.dims, 4.0) for t in op.saved)
    rows = (Tensor(f"{op.name}.{t.name}.normalised", t.dims) for t in op.saved)
    return replace(op, saved=(*widened, *rows))


def sum_op(name: str, parts: tuple[Tensor, ...], region: str) -> Op:
    """Return the plain sum of tensors; its gradient is a copy that costs nothing."""
    return Op(
        name=name,
        kind=OpKind.ELEMENTWISE,
        inputs=parts,
        output=Tensor(f"{name}.output", parts[0].dims),
        words_per_element=(len(parts) + 1.0, 0.0),
        region=region,
    )


def activation_op(name: str, source: Tensor, output: Tensor, *, gated: bool, region: str) -> Op:
    """Return the activation function, with the product of gate and up where there is a gate.

    Plain: reads and writes once, and backward reads input and gradient and writes one. Gated: an
    output element has two input elements, read in both passes, and two gradients.
    """
    return Op(
        name=name,
        kind=OpKind.ELEMENTWISE,
        inputs=(source,),
        output=output,
        saved=(source,),
        words_per_element=GATED_WORDS if gated else (2.0, 3.0),
        region=region,
    )


def product_op(
    name: str, source: Tensor, outputs: tuple[Tensor, ...], region: str, *, bias: bool = False,
    batch: tuple[str, ...] = (), weight: str = "",
) -> Op:  # fmt: skip
    """Return one matrix product with an input and one weight for each of its outputs.

    Parameters
    ----------
    batch
        Dims before those of the weights, where there are many such networks.
    weight
        Name of the weight of a single output, where it is not that of the output.
    """
    inner = source.dims[-1]
    names = [weight or f"{out.name}.weight" for out in outputs]
    pairs = list(zip(names, outputs, strict=True))
    weights = [Tensor(of, (*batch, inner, out.dims[-1])) for of, out in pairs]
    biases = [Tensor(f"{out.name}.bias", (*batch, out.dims[-1])) for out in outputs if bias]
    return Op(
        name=name,
        kind=OpKind.MATMUL,
        inputs=(source,),
        output=outputs[0],
        other_outputs=outputs[1:],
        weights=(*weights, *biases),
        contracted=(inner,),
        saved=(source,),
        region=region,
    )
