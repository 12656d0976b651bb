"""Shards of one rank: degrees, local sizes of dims, rows and widths of a layer, saved activations.

Shards may be uneven: the size returned is that of the largest one, and whole heads or whole
columns of gate and up are never cut. The shards follow from the shardings of the tensors and from
the four-case rule alone.

The last part are the saved activations: tensors that a layer keeps for its backward pass, under
each kind of recomputation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import cast

from meshwright.base.arrays import N, Num, ceil_div, larger
from meshwright.graph.common import EDGE, is_gated
from meshwright.graph.op import TOKEN_DIMS, UNITS_OF_DIM, LayerGraph, Op, OpKind, Tensor
from meshwright.graph.recompute import (
    LAYER_INPUT,
    remade_tensors,
    repeated_ops,
    tensors_named,
)
from meshwright.sharding.algebra import FLAT, Split
from meshwright.sharding.axes import activation_sharding, axes, forward_products
from meshwright.sharding.strategy import ContextKind, PlanOptions, Recompute, StrategyOf
from meshwright.spec.workload import SelectiveRecompute


def degree_of(axis: str, strategy: StrategyOf[N], sizes: Mapping[str, Num] | None = None) -> N:
    """Return the number of ranks along an axis or in a group of axes.

    ``dp_shard*cp`` is a product. ``edp`` is the remaining degree for data parallelism of the
    experts: dp * cp * tp / (ep * etp); ``edp_shard`` is the part of it that shards (1 where the
    experts already take all shards), ``edp_replicate`` the rest. ``tp/kv_heads`` counts the ranks
    that hold the same key head: tp over the number of heads, 1 at least.
    """
    group, _, shared = axis.partition("/")
    degree = cast(N, prod(_axis_degree(name, strategy) for name in group.split("*")))
    if not shared:
        return degree
    assert sizes is not None
    heads = cast(float, sizes[shared])  # no token dim, so one number
    return larger(ceil_div(degree, heads), 1.0)


def _axis_degree(axis: str, s: StrategyOf[N]) -> N:
    """Return the degree of one axis."""
    if axis == "edp":
        return s.dp * s.cp * s.tp / (s.ep * s.etp)
    if axis == "edp_shard":
        return larger(s.dp_shard * s.cp * s.tp / (s.ep * s.etp), 1.0)
    if axis == "edp_replicate":
        return _axis_degree("edp", s) / _axis_degree("edp_shard", s)
    return cast(N, getattr(s, axis))


def local_size(
    dim: str, axes: tuple[str, ...], sizes: Mapping[str, Num], strategy: StrategyOf[Num]
) -> Num:
    """Return the size of a dim on the rank that holds most of it.

    Token dims are bound for one data-parallel rank, and the axes that split them (dp or edp among
    them) split the tokens of all data-parallel ranks.
    """
    size = sizes[dim]
    if dim in TOKEN_DIMS:
        size = size * strategy.dp if axes else size
    if not axes:
        return size
    degree = degree_of("*".join(axes), strategy)
    units = sizes[UNITS_OF_DIM[dim]] if dim in UNITS_OF_DIM else size
    return size / units * ceil_div(units, degree)


def local_elements(
    tensor: Tensor, split: Split, sizes: Mapping[str, Num], strategy: StrategyOf[Num]
) -> Num:
    """Return the elements of a tensor on one rank.

    Rows that visit experts are grouped by expert: axes that split the experts split those rows.
    """
    grouped = () if "experts" in tensor.dims else split.get("experts", ())
    elements: Num = 1.0
    for dim in tensor.dims:
        axes = split.get(dim, ())
        axes = (*axes, *grouped) if dim == "routed_tokens" else axes
        elements = elements * local_size(dim, axes, sizes, strategy)
    return elements / degree_of("*".join(split[FLAT]), strategy) if FLAT in split else elements


RESIDUAL_STREAM = ""
"""Key of the rows of the residual stream at rest; every other key is the name of an operator."""


@dataclass(frozen=True)
class LayerAxes:
    """Axes that split the rows of each operator of a layer, and each dim of its tensors."""

    rows: Mapping[str, tuple[str, ...]]
    """Axes that split the tokens on which each operator works, by its name."""
    dims: Mapping[str, tuple[str, ...]]
    """Axes that split each dim, token dims apart; dims that no axis splits are absent."""


def layer_axes(layer: LayerGraph, options: PlanOptions) -> LayerAxes:
    """Return the axes that split the rows and dims of a layer, from the derived shardings."""
    dims: dict[str, tuple[str, ...]] = {}
    for op in layer.ops:
        tensors = [*op.inputs, *op.outputs, *([] if op.moved is None else [op.moved])]
        for tensor in tensors:
            split = activation_sharding(tensor, options).split
            dims |= {dim: split[dim] for dim in split if dim not in TOKEN_DIMS}
    for dim, unit in UNITS_OF_DIM.items():
        if dim in dims:
            dims.setdefault(unit, dims[dim])
    rows = {op.name: _row_axes(op, options) for op in layer.ops}
    rows[RESIDUAL_STREAM] = _token_axes(layer.input, options)
    return LayerAxes(rows, dims)


def _row_axes(op: Op, options: PlanOptions) -> tuple[str, ...]:
    """Return the axes that split the rows of an operator, as they are while it runs."""
    if any(_is_routed(tensor) for tensor in (*op.inputs, *op.outputs)):
        # Rows of experts are gathered over etp before they are dispatched or worked on.
        routed = next(tensor for tensor in (*op.inputs, *op.outputs) if _is_routed(tensor))
        split = activation_sharding(routed, options)
        whole_over_tatp = any(
            "tatp" in activation_sharding(tensor, options).split.get(dim, ())
            for tensor in (*op.inputs, *op.outputs)
            for dim in tensor.dims
            if dim not in TOKEN_DIMS
        )
        found = (*split.split.get("experts", ()), *split.split.get("routed_tokens", ()))
        dropped = ("etp", "tatp") if whole_over_tatp else ("etp",)
        return tuple(axis for axis in found if axis not in dropped)
    if op.kind is OpKind.MATMUL:
        product = forward_products(op, options)[0][2]
        return product.local.split.get("tokens", ())
    if op.kind is OpKind.EMBEDDING:
        # Each rank of tp looks up all tokens in its part of the table.
        return activation_sharding(op.output, options).without("tp").split.get("tokens", ())
    tensor = op.inputs[0] if op.kind is OpKind.LOSS else op.output
    return _token_axes(tensor, options)


def _token_axes(tensor: Tensor, options: PlanOptions) -> tuple[str, ...]:
    return activation_sharding(tensor, options).split.get("tokens", ())


def _is_routed(tensor: Tensor) -> bool:
    return "routed_tokens" in tensor.dims


@dataclass(frozen=True)
class LocalLayer:
    """A layer on one device; where a degree does not divide a dim, the largest shard is priced."""

    sizes: Mapping[str, int]
    """Sizes of the whole layer, token dims left out."""
    axes: LayerAxes
    degrees: StrategyOf[Num]
    sequence_length: Num
    """Tokens of one sequence [tokens]."""
    attended_length: Num | None = None
    """Tokens that attend to each other, where they differ from a sequence [tokens]."""
    expert_load_imbalance: float = 1.0
    """Rows of the busiest rank of experts over the mean [1]."""
    _sizes: dict[str, Num] = field(default_factory=dict, init=False, compare=False, repr=False)
    _rows: dict[tuple[str, ...], Num] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def size(self, dim: str) -> Num:
        """Return the local size of a dim that is no token dim; it is found once."""
        if dim not in self._sizes:
            axes_of = self.axes.dims.get(dim, ())
            self._sizes[dim] = local_size(dim, axes_of, self.sizes, self.degrees)
        return self._sizes[dim]

    def width(self, tensor: Tensor) -> Num:
        """Return the local elements of a tensor for each of its tokens."""
        width: Num = 1.0
        for dim in tensor.dims:
            if dim not in (*TOKEN_DIMS, "keys"):
                width = width * self.size(dim)
        return width

    def rows_of(self, op: Op) -> Num:
        """Return the rows that an operator works on, on this device [tokens]."""
        split = self.axes.rows[op.name]
        if any(_is_routed(tensor) for tensor in (*op.inputs, *op.outputs)):
            return self._routed(split)
        return self._tokens(split)

    @property
    def tokens(self) -> Num:
        """Tokens of one micro-batch where tp splits the width of a layer [tokens]."""
        return self._tokens(tuple(a for a in self.axes.rows[RESIDUAL_STREAM] if a != "tp"))

    @property
    def token_shard(self) -> Num:
        """Tokens of the residual stream at rest: over tp too, with sequence parallelism."""
        return self._tokens(self.axes.rows[RESIDUAL_STREAM])

    @property
    def routed_rows(self) -> Num:
        """Rows that visit the routed experts; the busiest rank is priced [rows]."""
        return self._routed(("ep", "edp", "tatp"))

    def _tokens(self, split: tuple[str, ...]) -> Num:
        """Return the tokens of one micro-batch on a rank, split by these axes; found once."""
        if split not in self._rows:
            self._rows[split] = self._split_tokens(split)
        return self._rows[split]

    def _split_tokens(self, split: tuple[str, ...]) -> Num:
        """Return the tokens of one micro-batch on a rank, split by these axes.

        Axes that split sequences leave shards of ceil(length / degree) tokens of each; where one
        of them does not split the rows of an operator, its shards have been gathered as they are.
        """
        s = self.degrees
        of_sequence = [name for name in axes if axes[name].splits_sequence]
        degree: Num = 1.0
        for name in of_sequence:
            degree = degree * degree_of(name, s)
        tokens = ceil_div(self.sequence_length, degree) * s.micro_batch_size
        for name in of_sequence:
            if name not in split:
                tokens = tokens * degree_of(name, s)
        for name in split:
            if name not in of_sequence and name != "dp":
                tokens = ceil_div(tokens, degree_of(name, s))
        return tokens

    def _routed(self, split: tuple[str, ...]) -> Num:
        """Return the rows of experts on a rank: a mean, which need not be whole.

        Tokens of all ranks of dp and cp, top_k rows for each, over the ranks that split them.
        """
        s = self.degrees
        of_all = self._tokens(("cp", "tatp")) * s.dp * s.cp
        ranks = degree_of("*".join(name for name in split if name != "tatp"), s)
        mean = of_all / ranks * self.sizes.get("top_k", 1)
        mean = mean if "tatp" in split else mean * s.tatp
        return mean * self.expert_load_imbalance


CAST = ".cast"
"""Suffix of the name of a tensor: its copy in the type of the products."""


@dataclass(frozen=True)
class SavedTensor:
    """A tensor that one layer keeps for its backward pass, and its split meanwhile."""

    tensor: Tensor
    split: Split
    share: float = 1.0
    """Share of the tensor that is kept: 0.5 where every second output is kept."""
    on_host: bool = False
    """Whether the tensor is kept in host memory."""
    sent_over: str = ""
    """Axis over which a message makes the tensor: without one it is not there."""

    @property
    def dims(self) -> tuple[str, ...]:
        """Dims of the tensor."""
        return self.tensor.dims

    @property
    def word_bytes(self) -> float | None:
        """Bytes of one word; None: the activation type of the workload."""
        return self.tensor.word_bytes


@dataclass(frozen=True)
class CheckpointPolicy:
    """Rules by which software keeps activations where the plan options leave it open."""

    selective: SelectiveRecompute = "attention"
    cast_word_bytes: float | None = None
    """Bytes of a word of the cast inputs that products keep; None: they keep them as they are."""
    narrow_activation_inputs: bool = False
    """Activations of networks keep their inputs in 8 bits."""
    keeps_gathered_inputs: bool = False
    """Products keep inputs as they are while they run: gathered over tp."""
    weighs_rows_in_fp32: bool = False
    """Rows that come back from experts are kept in FP32, where nothing is recomputed."""
    wide_key_gradients: bool = False
    """Gradients of keys and values travel in FP32."""
    freezes_weights: bool = False
    """Only products with adapters keep inputs: gradients of frozen weights are not computed."""
    adapted_regions: tuple[str, ...] = ("attention",)
    """Regions with adapters on their products; attention unless stated."""
    keeps_added_outputs: bool = False
    """Outputs of products are kept where they are only added to the residual stream too."""
    separate_projections: bool = False
    """Queries, keys and values are made by three products, of which each is kept or made again."""
    stops_early: bool = False
    """Recomputation ends with the last tensor that a layer keeps."""


def saved_elements(
    layer: LayerGraph, plan_options: PlanOptions, keeping: CheckpointPolicy = CheckpointPolicy()
) -> tuple[SavedTensor, ...]:
    """Return the saved activations of a layer under the recomputation of the plan options.

    ``none`` keeps each tensor that an operator saves, once. Of products with frozen weights it
    keeps only the inputs that adapters read beside them: where no regions are stated, those of
    attention (Hu et al. 2021, section 4.2). ``full`` keeps the input of the layer alone.
    ``selective`` drops the tensors that only the attention core needs, or the outputs of the
    modules that the plan options name; or it keeps the input of the layer and the tensors that the
    plan options name, some of them on the host; or it keeps outputs of products: all of them, or
    every second one, the output of the core and received messages. Tensors are kept in their
    layout between operators: a tensor gathered for an operator is gathered again, unless the
    software keeps it gathered.

    Source: Korthikanti et al. 2022, sections 4 and 5; torchtitan, docs/composability.md and
    ``_apply_ac_to_transformer_block``; MaxText, ``remat_policy: minimal`` and ``custom``.
    """
    kept: list[tuple[Tensor, float]] = [(layer.input, 1.0)]
    sent: list[SavedTensor] = []
    if plan_options.stored_tensors:
        return _stored(layer, plan_options)
    if plan_options.recompute is Recompute.SELECTIVE and plan_options.recompute_modules:
        kept = _kept_beside(layer, plan_options.recompute_modules, keeping)
    elif plan_options.recompute is Recompute.SELECTIVE and keeping.selective != "attention":
        if keeping.selective == "half_of_products":
            kept += _kept_of_half(layer, keeping)
            sent = _kept_messages(layer, plan_options)
        else:
            kept += _kept_outputs(layer, keeps_added=keeping.keeps_added_outputs)
    elif plan_options.recompute is not Recompute.FULL:
        kept = [
            (_as_kept(tensor, op, keeping), 1.0)
            for op in layer.ops
            for tensor in _saved_by(op, plan_options)
            if (
                plan_options.recompute is Recompute.NONE
                or not op.is_recomputed_selectively
                or tensor in op.inputs
            )
            and not (
                # a product with frozen weights that have no adapters
                keeping.freezes_weights
                and op.kind is OpKind.MATMUL
                and bool(op.weights)
                and op.region not in keeping.adapted_regions
            )
        ]
    if keeping.weighs_rows_in_fp32 and plan_options.recompute is Recompute.NONE:
        back = [op.moved for op in layer.ops if op.kind is OpKind.ROUTE and op.moved is not None]
        kept += [(_in_fp32(rows), 1.0) for rows in back]
    if keeping.wide_key_gradients and plan_options.recompute is Recompute.NONE:
        sent += _kept_of_ring(layer, plan_options)
    unique = {tensor.name: (tensor, share) for tensor, share in kept}
    whole = dict.fromkeys(_gathered_inputs(layer, keeping), "tp")
    whole |= dict.fromkeys(_gathered_keys(layer, plan_options), "cp")
    found = []
    for tensor, share in unique.values():
        layout = activation_sharding(tensor, plan_options)
        axis = whole.get(tensor.name.removesuffix(CAST))
        layout = layout if axis is None else layout.without(axis)
        found.append(SavedTensor(tensor, layout.split, share))
    return (*found, *sent)


def _saved_by(op: Op, plan_options: PlanOptions) -> tuple[Tensor, ...]:
    """Return the tensors that an operator saves, in the layouts in which it works.

    Under Ulysses the output of the attention core, all tokens of some heads, is another tensor than
    the input of the product behind it, all heads of some tokens: b s h elements more.

    Source: Jacobs et al. 2023, DeepSpeed Ulysses (arXiv 2309.14509), section 3.1.
    """
    if op.kind is not OpKind.ATTENTION or plan_options.context_kind is not ContextKind.ULYSSES:
        return op.saved
    turned = replace(op.output, name=f"{op.output.name}, turned")
    return tuple(turned if tensor == op.output else tensor for tensor in op.saved)


def _in_fp32(tensor: Tensor) -> Tensor:
    """Return an FP32 copy: 4 bytes for each of B S k h elements of rows that k experts return."""
    return replace(tensor, name=f"{tensor.name}.fp32", word_bytes=4.0)


def _gathered_inputs(layer: LayerGraph, keeping: CheckpointPolicy) -> frozenset[str]:
    """Return the names of tensors that products keep whole over tp: those of the stream.

    Inputs are gathered before them, and outputs, where these are kept, are scattered after them.
    With B sequences of S tokens, h wide, each is 2 B S h bytes in BF16, not 2 B S h / tp.
    """
    if not keeping.keeps_gathered_inputs:
        return frozenset()
    products = [op for op in layer.ops if op.kind is OpKind.MATMUL]
    inputs = (tensor for op in products if op.contracted == ("hidden",) for tensor in op.saved)
    outputs = (tensor for op in products for tensor in op.outputs if "hidden" in tensor.dims)
    return frozenset(tensor.name for tensor in (*inputs, *outputs))


def _gathered_keys(layer: LayerGraph, plan_options: PlanOptions) -> frozenset[str]:
    """Return the names of keys and values that attention keeps gathered over cp.

    With B sequences of S tokens and k key heads of size d, both are 4 B S k d bytes in BF16.
    """
    is_kept = plan_options.recompute is Recompute.NONE
    if not is_kept or plan_options.context_kind is not ContextKind.GATHER:
        return frozenset()
    cores = (op for op in layer.ops if op.kind is OpKind.ATTENTION)
    return frozenset(tensor.name for op in cores for tensor in op.inputs[1:])


def _stored(layer: LayerGraph, plan_options: PlanOptions) -> tuple[SavedTensor, ...]:
    """Return the tensors of a layer that the plan options name, and its input."""
    away = tensors_named(plan_options.offloaded_tensors)
    named = away | tensors_named(plan_options.kept_tensors)
    made = {t.name: t for op in layer.ops for t in (*op.outputs, *op.saved) if t.name in named}
    found = [(t, name in away) for name, t in made.items()]
    return tuple(
        SavedTensor(tensor, activation_sharding(tensor, plan_options).split, on_host=is_away)
        for tensor, is_away in (
            (layer.input, LAYER_INPUT in plan_options.offloaded_tensors),
            *found,
        )
    )


def _kept_beside(
    layer: LayerGraph, modules: tuple[str, ...], keeping: CheckpointPolicy
) -> list[tuple[Tensor, float]]:
    """Return the tensors kept when some modules run again: their inputs, and outputs of others.

    Tensors that an operator of these modules saves for itself are made again too.
    """
    again, made = repeated_ops(layer, modules), remade_tensors(layer, modules)
    found = []
    for op in layer.ops:
        if op.name in again:
            found += [(tensor, 1.0) for tensor in op.inputs if tensor.name not in made]
        else:
            found += [
                (_as_kept(tensor, op, keeping), 1.0)
                for tensor in op.saved
                if tensor.name not in made
            ]
    return found


def _kept_outputs(layer: LayerGraph, *, keeps_added: bool) -> list[tuple[Tensor, float]]:
    """Return the outputs of products that are kept: of all.

    A compiler leaves out tensors that are only added to the residual stream, as no gradient needs
    them; call by call each output is kept until its layer runs again
    (PyTorch 2.13, ``torch/utils/checkpoint.py``, ``_CachingTorchDispatchMode``).
    """
    added = () if keeps_added else layer.ops[-1].inputs
    products = [op for op in layer.ops if op.kind is OpKind.MATMUL]
    return [(output, 1.0) for op in products for output in op.outputs if output not in added]


def _kept_of_half(layer: LayerGraph, keeping: CheckpointPolicy) -> list[tuple[Tensor, float]]:
    """Return the outputs of every second product, and what the core writes."""
    shares = kept_shares(layer, separate=keeping.separate_projections)
    cores = [op for op in layer.ops if op.kind is OpKind.ATTENTION]
    written = [(tensor, 1.0) for op in cores for tensor in op.saved if tensor not in op.inputs]
    outputs = [output for op in layer.ops for output in op.outputs if shares.get(output.name)]
    return [*((output, shares[output.name]) for output in outputs), *written]


def kept_shares(layer: LayerGraph, *, separate: bool = False) -> dict[str, float]:
    """Return the share of each output of a product that is kept where every second product is.

    Products are counted in their order, the first one is kept; gate and up are two, queries, keys
    and values one or, if ``separate``, three. Products of a router are made again and not counted,
    those of experts neither. Llama keeps queries, keys and values, the gate (half of gate and up)
    and the last product; the output of attention and up are made again.

    Source: torchtitan 0.3.0 ``distributed/activation_checkpoint.py``, ``SelectiveAC``
    (``forward_mm_count``, ``force_recompute_mm_shapes_by_fqns``), whose operators are those of
    PyTorch 2.13 ``_functorch/partitioners.py``, ``compute_intensive_ops``: no ``_grouped_mm``.
    """
    gated = {op.inputs[0] for op in layer.ops if is_gated(op)}
    shares: dict[str, float] = {}
    number = 0
    for op in layer.ops:
        if op.kind is not OpKind.MATMUL or op.is_grouped:
            continue
        if "expert_scores" in op.output.dims:
            continue
        together = [op.outputs] if not separate else [(output,) for output in op.outputs]
        for outputs in together:
            parts = 1 + (outputs[0] in gated)
            kept = sum((number + part) % 2 == 0 for part in range(parts)) / parts
            shares |= {output.name: kept for output in outputs}
            number += parts
    return shares


def _kept_of_ring(layer: LayerGraph, plan_options: PlanOptions) -> list[SavedTensor]:
    """Return the copy that PyTorch's ring of cp keeps beside the input of the product behind it.

    It merges heads in front of tokens; the product reads a copy with tokens in front: b s h
    elements more, as under Ulysses.

    Source: PyTorch 2.13, ``_SDPAMerger`` of
    ``torch/distributed/tensor/experimental/_context_parallel/_attention.py``, seen in dry runs.
    """
    if plan_options.context_kind is not ContextKind.RING:
        return []
    merged = [op.output for op in layer.ops if op.kind is OpKind.ATTENTION]
    return [
        SavedTensor(
            replace(heads, name=f"{heads.name}, merged"),
            activation_sharding(heads, plan_options).split, sent_over="cp",
        )
        for heads in merged
    ]  # fmt: skip


def _kept_messages(layer: LayerGraph, plan_options: PlanOptions) -> list[SavedTensor]:
    """Return received messages that are kept so that they are not sent again.

    What a reduce-scatter leaves of a product over tp, and the rows that experts get and give.

    Source: torchtitan 0.3.0 ``distributed/activation_checkpoint.py``, ``comm_ops``.
    """
    found = []
    for op in layer.ops:
        rows = op.output
        if op.kind is OpKind.ROUTE:
            rows, axis = (op.moved or op.output), "ep"
        elif op.kind is OpKind.MATMUL and "hidden" in rows.dims and not op.is_grouped:
            axis = "tp"
        else:
            continue
        if axis == "ep" or plan_options.sequence_parallel:
            sent = replace(rows, name=f"{rows.name}.received")
            split = activation_sharding(rows, plan_options).split
            found.append(SavedTensor(sent, split, sent_over=axis))
    return found


def _as_kept(tensor: Tensor, op: Op, keeping: CheckpointPolicy) -> Tensor:
    """Return a tensor as an operator keeps it: products of a layer may keep their cast input.

    Activations of its networks may do so too.
    """
    word = keeping.cast_word_bytes if op.kind is OpKind.MATMUL and op.region != EDGE else None
    if keeping.narrow_activation_inputs and op.name.endswith(".activation"):
        word = 1.0
    return tensor if word is None else replace(tensor, name=tensor.name + CAST, word_bytes=word)
