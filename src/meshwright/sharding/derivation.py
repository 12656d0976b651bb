"""All collectives of a layer, derived by running the four-case rule over its operators.

Nothing is listed by hand: the forward pass walks the operators in order and brings the inputs of
each to the layout that it needs on its shards; the backward pass walks them in reverse with the
shardings of the gradients, which are summed where they are left as partial sums. The gradient of a
tensor is sharded as the tensor is; contributions of several consumers are added first and reduced
once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from meshwright.graph.op import LayerGraph, Op, OpGraph, OpKind, Phase, Tensor
from meshwright.graph.recompute import repeated_ops
from meshwright.sharding.algebra import (
    FLAT,
    CollectiveCall,
    Move,
    ShardedOperand,
    Sharding,
    Split,
    matmul,
    payload,
    reshard,
    walk,
)
from meshwright.sharding.axes import (
    activation_sharding,
    arbiter,
    as_operand,
    axes,
    forward_products,
    logical_dims,
    matrices,
    source_operand,
    streams_inputs,
    vectors,
    weight_sharding,
)
from meshwright.sharding.strategy import ContextKind, PlanOptions, Recompute
from meshwright.spec.collective import CollectiveKind
from meshwright.spec.workload import SelectiveRecompute

LOSS_STATISTICS = ("maximum", "sum_of_exponentials", "target_logit")
"""Values reduced for each token by a loss over a split vocabulary (Shoeybi et al. 2019)."""


class Ledger:
    """The calls of one pass. A tensor that moved once over an axis need not do so again."""

    def __init__(self, plan_options: PlanOptions, phase: Phase) -> None:
        self.plan_options, self.phase = plan_options, phase
        self.calls: list[CollectiveCall] = []
        self._seen: set[tuple[str, Move]] = set()
        self._equal_to: dict[str, str] = {}
        self._looked_up: set[str] = set()

    def mark_equal(self, tensors: list[Tensor]) -> None:
        """State that tensors hold the same numbers, so that one move serves all of them."""
        for tensor in tensors[1:]:
            self._equal_to[tensor.name] = tensors[0].name

    def mark_looked_up(self, tensor: Tensor) -> None:
        """State that no product makes or uses a tensor: nothing overlaps with its transfer."""
        self._looked_up.add(tensor.name)

    def move(
        self,
        tensor: Tensor,
        have: Sharding,
        moves: list[Move],
        site: str,
        *,
        phase: Phase | None = None,
        is_regather: bool = False,
        of_weight: bool = False,
    ) -> Sharding:
        """Record the moves of a tensor, and return its sharding after them."""
        layout = have
        name = self._equal_to.get(tensor.name, tensor.name)
        for before, step in walk(have, moves):
            layout = step.apply(before)
            if step.kind is None or (name, step) in self._seen:
                continue
            self._seen.add((name, step))
            streams = axes[step.axis].is_streamed(step.kind, self.plan_options)
            self.calls.append(
                CollectiveCall(
                    kind=step.kind,
                    axis=step.axis,
                    tensor=tensor,
                    phase=phase or self.phase,
                    site=site,
                    split=payload(before, step).split,
                    is_regather=is_regather,
                    streamed=streams and tensor.name not in self._looked_up,
                    of_weight=of_weight,
                )
            )
        return layout


def forward_calls(layer: LayerGraph, plan_options: PlanOptions) -> list[CollectiveCall]:
    """Return the collectives of the forward pass, in order.

    Sums are left open until an operator needs the tensor whole, so that branches that meet in an
    addition are summed before they are reduced.
    """
    ledger = Ledger(plan_options, Phase.FORWARD)
    layouts = {layer.input.name: activation_sharding(layer.input, plan_options)}
    for op in layer.ops:
        layouts |= _FORWARD_STEPS[op.kind](op, layouts, ledger)
    last = layer.ops[-1]
    if last.kind is not OpKind.LOSS:
        _at_home(last.output, layouts, ledger, f"{last.name}: output")
    return ledger.calls


Layouts = dict[str, Sharding]


def _at_home(tensor: Tensor, layouts: Layouts, ledger: Ledger, site: str) -> Sharding:
    """Bring a tensor to rest: reduce its sums, undo changes of its layout by its writer."""
    rest = activation_sharding(tensor, ledger.plan_options)
    have = layouts.get(tensor.name, rest)
    layouts[tensor.name] = ledger.move(tensor, have, reshard(have, rest), site)
    return rest


def _product_forward(op: Op, layouts: Layouts, ledger: Ledger) -> Layouts:
    """Apply the rule to each weight; a fused product gathers its input once."""
    source = op.inputs[0]
    if op.kind is OpKind.EMBEDDING:
        ledger.mark_looked_up(op.output)
    else:
        _at_home(source, layouts, ledger, f"{op.name}: input")
    made: Layouts = {}
    for weight, output, product in forward_products(op, ledger.plan_options):
        rest = activation_sharding(source, ledger.plan_options)
        held = weight_sharding(weight, ledger.plan_options)
        if op.kind is not OpKind.EMBEDDING:
            _spread_over_stages(source, rest, held, ledger, f"{op.name}: input")
        ledger.move(source, rest, product.left_moves, f"{op.name}: input")
        site = f"{op.name}: weight"
        ledger.move(weight, held, product.right_moves, site, of_weight=True)
        made[output.name] = product.local
    return made


def _spread_over_stages(
    tensor: Tensor, rest: Sharding, weight: Sharding, ledger: Ledger, site: str
) -> None:
    """Send a tensor of one stage to all stages, where pp splits the weight of the product.

    Sums over pp that one stage alone needs are charged as all-reduces: a reduction to one stage
    sends half of that. Source: Yeung et al. 2024 (arXiv 2411.05288), section 4.
    """
    if "pp" in weight.axes:
        ledger.move(tensor, rest, [Move(CollectiveKind.BROADCAST, "pp")], site)


def elementwise_input(op: Op, source: Tensor, plan_options: PlanOptions) -> Sharding:
    """Return the layout in which an elementwise operator reads an input.

    Inner dims as they rest; tokens as those of the output.
    """
    rows = activation_sharding(op.output, plan_options).split.get("tokens")
    own = activation_sharding(source, plan_options)
    if rows is None or "tokens" not in source.dims:
        return own
    inner = {dim: axes_ for dim, axes_ in own.split.items() if dim != "tokens"}
    return Sharding({**inner, "tokens": rows})


def _elementwise_forward(op: Op, layouts: Layouts, ledger: Ledger) -> Layouts:
    """Bring the inputs to the tokens of the output; reduce statistics over a split row."""
    site = f"{op.name}: input"
    _sum_open_branches(op, layouts, ledger, site)
    for source in op.inputs:
        rest = _at_home(source, layouts, ledger, site)
        want = elementwise_input(op, source, ledger.plan_options)
        ledger.move(source, rest, reshard(rest, want), site)
    if op.kind is OpKind.NORM:
        reduce_statistics(op, ledger, ("statistics",))
    return {output.name: activation_sharding(output, ledger.plan_options) for output in op.outputs}


def _sum_open_branches(op: Op, layouts: Layouts, ledger: Ledger, site: str) -> None:
    """Reduce branches of an addition that are open over the same axes as one tensor."""
    rest = activation_sharding(op.output, ledger.plan_options)
    same_shape = [t for t in op.inputs if t.dims == op.output.dims]
    first: Sharding | None = None
    for tensor in same_shape:
        have = layouts.get(tensor.name, rest)
        if not have.partial:
            continue
        if first is None:
            first = have
        elif have == first:
            layouts[tensor.name] = rest


def reduce_statistics(op: Op, ledger: Ledger, names: tuple[str, ...]) -> None:
    """All-reduce the numbers for each row that run over a split dim, in FP32."""
    sources = op.inputs[: len(op.outputs)]
    for source in sources:
        rest = activation_sharding(source, ledger.plan_options)
        split_axes = [a for dim in op.contracted for a in rest.split.get(dim, ())]
        rows = Sharding({"tokens": rest.split["tokens"]}) if "tokens" in rest.split else Sharding()
        for name in names:
            numbers = Tensor(f"{source.name}.{name}", ("tokens",), 4.0)
            steps = [Move(CollectiveKind.ALL_REDUCE, axis) for axis in split_axes]
            ledger.move(numbers, rows, steps, f"{op.name}: {name}")


def core_layout(op: Op, tensor: Tensor, plan_options: PlanOptions) -> Sharding:
    """Return the sharding in which an attention core or a scan reads and writes a tensor.

    Ulysses turns the split of the tokens over cp into a split of the heads, and so does every scan,
    which runs over whole sequences; else as at rest. Source: Megatron-LM, ``MambaContextParallel``.
    """
    rest = activation_sharding(tensor, plan_options)
    is_turned = op.kind is OpKind.RECURRENCE or plan_options.context_kind is ContextKind.ULYSSES
    return rest.along("cp", tensor.dims[-1]) if is_turned else rest


def traveling(op: Op, plan_options: PlanOptions) -> list[tuple[Tensor, list[Move]]]:
    """Return keys and values with the moves that bring those of other ranks of a split sequence.

    Scores are a product whose free dims, queries and keys, claim the same axis (case 4): the keys
    are gathered, piece by piece or whole.
    """
    found = []
    for tensor in op.inputs[1:] if op.kind is OpKind.ATTENTION else ():
        tokens = core_layout(op, tensor, plan_options).split.get("tokens", ())
        split = (axis for axis in tokens if axes[axis].splits_sequence)
        found.append((tensor, [Move(CollectiveKind.ALL_GATHER, axis, "tokens") for axis in split]))
    return found


def _core_forward(op: Op, layouts: Layouts, ledger: Ledger) -> Layouts:
    """Bring heads together, and send keys and values round where sequences are split."""
    site = f"{op.name}: input"
    for source in op.inputs:
        rest = _at_home(source, layouts, ledger, site)
        ledger.move(source, rest, reshard(rest, core_layout(op, source, ledger.plan_options)), site)
    for source, steps in traveling(op, ledger.plan_options):
        have = core_layout(op, source, ledger.plan_options)
        ledger.move(source, have, steps, f"{op.name}: keys and values")
    return {op.output.name: core_layout(op, op.output, ledger.plan_options)}


def spread_tokens(tensor: Tensor, plan_options: PlanOptions) -> Sharding:
    """Return the layout of tokens at a router: over every axis, so that each is sent once."""
    rest = activation_sharding(tensor, plan_options)
    return rest if "tp" in rest.axes else rest.along("tp", "tokens")


def exchange(rows: Tensor, ledger: Ledger, site: str) -> None:
    """Record the all-to-all that carries rows to their experts, or back."""
    split = activation_sharding(rows, ledger.plan_options).split
    ledger.calls.append(
        CollectiveCall(CollectiveKind.ALL_TO_ALL, "ep", rows, ledger.phase, site, split)
    )


def _route_forward(op: Op, layouts: Layouts, ledger: Ledger) -> Layouts:
    """Spread the tokens, send each row to its experts; or bring them back."""
    source, target = op.inputs[0], op.output
    rest = _at_home(source, layouts, ledger, f"{op.name}: input")
    for other in op.inputs[1:]:
        _at_home(other, layouts, ledger, f"{op.name}: input")
    if "routed_tokens" in target.dims:
        spread = spread_tokens(source, ledger.plan_options)
        ledger.move(source, rest, reshard(rest, spread), f"{op.name}: input")
        exchange(target, ledger, f"{op.name}: rows")
        return {target.name: activation_sharding(target, ledger.plan_options)}
    exchange(source, ledger, f"{op.name}: rows")
    return {target.name: spread_tokens(target, ledger.plan_options)}


def _loss_forward(op: Op, layouts: Layouts, ledger: Ledger) -> Layouts:
    """Reduce maximum, sum and target over a split vocabulary; logits are never gathered."""
    _at_home(op.inputs[0], layouts, ledger, f"{op.name}: input")
    reduce_statistics(op, ledger, LOSS_STATISTICS)
    return {}


_FORWARD_STEPS: dict[OpKind, Callable[[Op, Layouts, Ledger], Layouts]] = {
    OpKind.MATMUL: _product_forward,
    OpKind.EMBEDDING: _product_forward,
    OpKind.NORM: _elementwise_forward,
    OpKind.ELEMENTWISE: _elementwise_forward,
    OpKind.ATTENTION: _core_forward,
    OpKind.RECURRENCE: _core_forward,
    OpKind.ROUTE: _route_forward,
    OpKind.LOSS: _loss_forward,
}


Contributions = dict[str, list[Sharding]]
"""Layouts in which the consumers of each tensor left their part of its gradient."""


def backward_calls(layer: LayerGraph, plan_options: PlanOptions) -> list[CollectiveCall]:
    """Return the collectives of the backward pass, in order, those of weight gradients with them.

    Sums of weight gradients over data axes are left to the synchronisation once per step.
    """
    ledger = Ledger(plan_options, Phase.INPUT_GRADIENT)
    contributions: Contributions = {}
    for op in reversed(layer.ops):
        for output in op.outputs:
            settle(output, contributions, ledger, f"{op.name}: output gradient")
        for name, layout in _BACKWARD_STEPS[op.kind](op, ledger):
            contributions.setdefault(name, []).append(layout)
    settle(layer.input, contributions, ledger, "layer input gradient")
    return ledger.calls


def input_gradients(op: Op, plan_options: PlanOptions) -> list[tuple[str, Sharding]]:
    """Return the layout in which an operator leaves its part of the gradient of each input."""
    return _BACKWARD_STEPS[op.kind](op, Ledger(plan_options, Phase.INPUT_GRADIENT))


def gradient_of(tensor: Tensor) -> Tensor:
    """Return the gradient of a tensor."""
    return replace(tensor, name=f"{tensor.name}.gradient")


def settle(tensor: Tensor, contributions: Contributions, ledger: Ledger, site: str) -> None:
    """Bring the contributions to a gradient to rest; equal moves of several are made once."""
    rest = activation_sharding(tensor, ledger.plan_options)
    for have in contributions.get(tensor.name, []):
        ledger.move(gradient_of(tensor), have, reshard(have, rest), site)


def _product_backward(op: Op, ledger: Ledger) -> list[tuple[str, Sharding]]:
    """Return the input gradient of a product after the moves that both gradients need.

    dX = dY W^T and dW = X^T dY follow the same rule as the forward pass. A dY that both gather is
    gathered once; X is gathered again, because it was kept sharded.
    """
    plan_options = ledger.plan_options
    left = source_operand(op, plan_options)
    found: list[tuple[str, Sharding]] = []
    if op.kind is OpKind.EMBEDDING:
        ledger.mark_looked_up(gradient_of(op.output))
    for weight, output in matrices(op):
        gradient, rest = gradient_of(output), activation_sharding(output, plan_options)
        incoming = as_operand(output, rest)
        held = ShardedOperand(weight.dims, weight_sharding(weight, plan_options))
        site = f"{op.name}: output gradient"
        if op.kind is not OpKind.EMBEDDING:
            back = matmul(incoming, held, left.dims, arbiter=arbiter(plan_options))
            ledger.move(gradient, rest, back.left_moves, site)
            ledger.move(
                weight,
                held.layout,
                back.right_moves,
                f"{op.name}: weight",
                is_regather=True,
                of_weight=True,
            )
            found.append((op.inputs[0].name, back.local))
        else:
            _spread_over_stages(gradient, rest, held.layout, ledger, site)
        inner = matmul(left, incoming, weight.dims)
        later = Phase.WEIGHT_GRADIENT
        ledger.move(gradient, rest, inner.right_moves, site, phase=later)
        kept = f"{op.name}: kept input"
        moves = inner.left_moves
        ledger.move(op.inputs[0], left.layout, moves, kept, phase=later, is_regather=True)
    return found


def _elementwise_backward(op: Op, ledger: Ledger) -> list[tuple[str, Sharding]]:
    """Return the input gradients of an elementwise operator, each with its open sums.

    Where an axis splits the output but not an input, every rank adds to that input's gradient.
    Branches that are added to the residual stream together have one gradient.
    """
    branches = [gradient_of(t) for t in op.inputs[1:] if t.dims == op.output.dims]
    ledger.mark_equal(branches)
    if op.kind is OpKind.NORM:
        reduce_statistics(op, ledger, ("statistics_gradient",))
    out = activation_sharding(op.output, ledger.plan_options)
    found = []
    for source in op.inputs:
        layout = elementwise_input(op, source, ledger.plan_options)
        open_axes = tuple(axis for axis in out.axes if axis not in layout.axes)
        found.append((source.name, Sharding(layout.split, open_axes)))
    return found


def _core_backward(op: Op, ledger: Ledger) -> list[tuple[str, Sharding]]:
    """Return the gradients of the inputs of an attention core or a scan, as it read them.

    Keys and values travel once more unless they were kept whole; their gradients travel to where
    they rest.
    """
    plan_options = ledger.plan_options
    rest = activation_sharding(op.output, plan_options)
    steps = reshard(rest, core_layout(op, op.output, plan_options))
    ledger.move(gradient_of(op.output), rest, steps, f"{op.name}: output gradient")
    found = {source.name: core_layout(op, source, plan_options) for source in op.inputs}
    for source, again in traveling(op, plan_options):
        site, whole = f"{op.name}: keys and values", found[source.name]
        if plan_options.context_kind is not ContextKind.GATHER:
            whole = ledger.move(source, whole, again, site, is_regather=True)
        else:
            for step in again:
                whole = whole.without(step.axis)
        found[source.name] = Sharding(whole.split, tuple(step.axis for step in again))
    return list(found.items())


def _route_backward(op: Op, ledger: Ledger) -> list[tuple[str, Sharding]]:
    """Send the gradients of rows the other way."""
    source, target = op.inputs[0], op.output
    plan_options = ledger.plan_options
    others = [(other.name, activation_sharding(other, plan_options)) for other in op.inputs[1:]]
    if "routed_tokens" in target.dims:
        exchange(gradient_of(target), ledger, f"{op.name}: row gradients")
        return [(source.name, spread_tokens(source, plan_options)), *others]
    rest = activation_sharding(target, plan_options)
    steps = reshard(rest, spread_tokens(target, plan_options))
    ledger.move(gradient_of(target), rest, steps, f"{op.name}: output gradient")
    exchange(gradient_of(source), ledger, f"{op.name}: row gradients")
    return [(source.name, activation_sharding(source, plan_options)), *others]


def _loss_backward(op: Op, ledger: Ledger) -> list[tuple[str, Sharding]]:
    """Return the gradient of the logits, which needs no communication."""
    logits = op.inputs[0]
    return [(logits.name, activation_sharding(logits, ledger.plan_options))]


_BACKWARD_STEPS: dict[OpKind, Callable[[Op, Ledger], list[tuple[str, Sharding]]]] = {
    OpKind.MATMUL: _product_backward,
    OpKind.EMBEDDING: _product_backward,
    OpKind.NORM: _elementwise_backward,
    OpKind.ELEMENTWISE: _elementwise_backward,
    OpKind.ATTENTION: _core_backward,
    OpKind.RECURRENCE: _core_backward,
    OpKind.ROUTE: _route_backward,
    OpKind.LOSS: _loss_backward,
}


def sync_calls(layer: LayerGraph, plan_options: PlanOptions) -> list[CollectiveCall]:
    """Return the collectives that complete the weight gradients of a layer, and ZeRO's gathers."""
    calls: list[CollectiveCall] = []
    for op in layer.ops:
        for weight, made in weight_gradients(op, plan_options):
            calls += _inner_sums(op, weight, made, plan_options)
            calls += _data_sums(op, weight, made, plan_options)
        calls += _shared_head_sums(op, layer, plan_options)
    return calls


def weight_gradients(op: Op, plan_options: PlanOptions) -> list[tuple[Tensor, Sharding]]:
    """Return each weight of an operator with the layout in which its gradient arises."""
    found: list[tuple[Tensor, Sharding]] = []
    if op.kind in (OpKind.MATMUL, OpKind.EMBEDDING):
        left = source_operand(op, plan_options)
        for weight, output in matrices(op):
            of_output = as_operand(output, activation_sharding(output, plan_options))
            found.append((weight, matmul(left, of_output, weight.dims).local))
    for weight, output in vectors(op):
        rest, split = (
            weight_sharding(weight, plan_options),
            activation_sharding(output, plan_options),
        )
        split_by = [axis for dim in logical_dims(output) for axis in split.split.get(dim, ())]
        open_axes = tuple(axis for axis in split_by if axis not in rest.axes)
        found.append((weight, Sharding(rest.split, open_axes)))
    return found


def _inner_sums(
    op: Op, weight: Tensor, made: Sharding, plan_options: PlanOptions
) -> list[CollectiveCall]:
    """Return the sums over axes other than data axes: streams in each pass, others per step."""
    data = tuple(axis for axis in made.partial if axes[axis].replicates_weights)
    want = Sharding(weight_sharding(weight, plan_options).split, data)
    ledger = Ledger(plan_options, Phase.WEIGHT_GRADIENT)
    moves = reshard(made, want)
    ledger.move(gradient_of(weight), made, moves, f"{op.name}: weight gradient", of_weight=True)
    return [call if call.streamed else replace(call, per_step=True) for call in ledger.calls]


def _data_sums(
    op: Op, weight: Tensor, made: Sharding, plan_options: PlanOptions
) -> list[CollectiveCall]:
    """Return reductions of the gradient and gathers of the weight over the data axes.

    Stage 0 all-reduces. Stages 1 and 2 reduce-scatter gradients and gather weights once per step;
    stage 3 does so for each micro-batch, and gathers again for the backward pass where weights
    were dropped after the forward pass. Replicas all-reduce their shards once per step.
    """
    data = [axis for axis in made.partial if axes[axis].replicates_weights]
    if not data:
        return []
    of_experts = "edp" in data
    split = weight_sharding(weight, plan_options).split
    gradient = gradient_of(weight)
    stage = plan_options.zero_stage
    if stage == 0:
        group = "edp" if of_experts else "dp*cp"
        return [_data_call(CollectiveKind.ALL_REDUCE, group, gradient, op, split, per_step=True)]
    shard = "edp_shard" if of_experts else "dp_shard*cp"
    per_step = stage < 3
    scatter = _data_call(
        CollectiveKind.REDUCE_SCATTER, shard, gradient, op, split, per_step=per_step
    )
    shards = {**split, FLAT: (*split.get(FLAT, ()), *shard.split("*"))}
    replicas = _data_call(
        CollectiveKind.ALL_REDUCE, "dp_replicate", gradient, op, shards, per_step=True
    )
    gathers = [_gather(shard, weight, op, split, plan_options)]
    if stage == 3 and plan_options.reshard_after_forward:
        gathers.append(_gather(shard, weight, op, split, plan_options, again=True))
    return [*gathers, scatter, replicas]


def _data_call(
    kind: CollectiveKind, group: str, gradient: Tensor, op: Op, split: Split, *, per_step: bool
) -> CollectiveCall:
    """Return one reduction of a gradient over a group of data axes."""
    return CollectiveCall(
        kind=kind,
        axis=group,
        tensor=gradient,
        phase=Phase.WEIGHT_GRADIENT,
        site=f"{op.name}: weight gradient",
        split=split,
        per_step=per_step,
        of_weight=True,
    )


def _gather(
    group: str,
    weight: Tensor,
    op: Op,
    split: Split,
    plan_options: PlanOptions,
    *,
    again: bool = False,
) -> CollectiveCall:
    """Return one gather of a sharded weight."""
    return CollectiveCall(
        kind=CollectiveKind.ALL_GATHER,
        axis=group,
        tensor=weight,
        phase=Phase.INPUT_GRADIENT if again else Phase.FORWARD,
        site=f"{op.name}: weight",
        split=split,
        is_regather=again,
        per_step=plan_options.zero_stage < 3,
        of_weight=True,
    )


def _shared_head_sums(op: Op, layer: LayerGraph, plan_options: PlanOptions) -> list[CollectiveCall]:
    """Return the sums over ranks that hold the same key head, where tp exceeds their number.

    The same holds for the groups of a recurrence.
    """
    found = []
    for unit, of_whom, dims in _SHARED_HEADS:
        if layer.sizes.get(unit) == layer.sizes.get(of_whom):
            continue
        group = ("tp*tatp" if streams_inputs(plan_options) else "tp") + f"/{unit}"
        found += [
            _data_call(
                CollectiveKind.ALL_REDUCE,
                group,
                gradient_of(weight),
                op,
                weight_sharding(weight, plan_options).split,
                per_step=True,
            )
            for weight in op.weights
            if weight.dims[-1] in dims
        ]
    return found


_SHARED_HEADS = (
    ("kv_heads", "query_heads", ("key", "value")),
    ("state_groups", "inner_heads", ("state_key",)),
)
"""Heads that several others share, those others, and the dims of weights that make them."""


def derive_calls(
    layer: LayerGraph, plan_options: PlanOptions, axes: Collection[str] | None = None,
    *, selective: SelectiveRecompute = "attention", stops_early: bool = False,
) -> tuple[CollectiveCall, ...]:  # fmt: skip
    """Return every collective of one layer: forward, backward, and gradients once per step.

    Parameters
    ----------
    axes
        Axes of more than one device; calls over no other axis are made. None: all axes, so that
        calls over an axis of one device have a group of one and cost nothing.
    selective
        What selective recomputation runs again where the plan options name nothing.
    stops_early
        Recomputation ends with the last tensor that an operator keeps, before the sums behind it.
    """
    forward = forward_calls(layer, plan_options)
    replayed = _replayed(layer, plan_options, forward, selective)
    if stops_early:
        place = {op.name: at for at, op in enumerate(layer.ops)}
        last = max((place[op.name] for op in layer.ops if op.saved), default=-1)
        replayed = [call for call in replayed if place[_operator(call)] <= last]
    calls = [
        *forward,
        *(replace(call, phase=Phase.INPUT_GRADIENT, replayed=True) for call in replayed),
        *backward_calls(layer, plan_options),
        *sync_calls(layer, plan_options),
    ]
    return tuple(call for call in calls if axes is None or _is_active(call, axes))


def _operator(call: CollectiveCall) -> str:
    return call.site.split(":")[0]


def _replayed(
    layer: LayerGraph, plan_options: PlanOptions, forward: list[CollectiveCall],
    selective: SelectiveRecompute,
) -> list[CollectiveCall]:  # fmt: skip
    """Return the forward calls that recomputation runs again in the backward pass.

    Where outputs of products are kept their inputs are made again, gathers among them;
    ``half_of_products`` keeps reduced and exchanged tensors too.

    Source: torchtitan 0.3.0 ``distributed/activation_checkpoint.py``, ``comm_ops``.
    """
    if plan_options.recompute is Recompute.NONE:
        return []
    modules, tensors = plan_options.recompute_modules, plan_options.stored_tensors
    is_default = not modules and not tensors
    if plan_options.recompute is Recompute.FULL or (is_default and selective == "all_but_products"):
        return forward
    if is_default and selective == "half_of_products":
        return [call for call in forward if call.kind is CollectiveKind.ALL_GATHER]
    sites = repeated_ops(layer, modules, tensors)
    cores = {op.name for op in layer.ops if op.kind is OpKind.ATTENTION}
    travels = plan_options.context_kind is not ContextKind.ULYSSES
    return [
        call
        for call in forward
        if (site := _operator(call)) in sites and (travels or site not in cores or tensors)
    ]


def _is_active(call: CollectiveCall, active: Collection[str]) -> bool:
    """Return whether a call crosses an axis of more than one device."""
    return any(_in_use(axis, active) for axis in call.axis.split("/")[0].split("*"))


def _in_use(axis: str, active: Collection[str]) -> bool:
    parts = {
        "dp": ("dp", "dp_shard", "dp_replicate"),
        "dp_shard": ("dp", "dp_shard"),
        "dp_replicate": ("dp", "dp_replicate"),
        "edp": ("edp", "dp", "dp_shard", "dp_replicate", "cp", "tp"),
        "edp_shard": ("edp", "dp", "dp_shard", "cp", "tp"),
    }
    return any(name in active for name in parts.get(axis, (axis,)))


def stage_boundary_calls(graph: OpGraph, plan_options: PlanOptions) -> tuple[CollectiveCall, ...]:
    """Return the sends between two stages for one micro-batch, forward and backward.

    The residual stream crosses in the layout in which it rests, so that sequence parallelism
    divides it by tp.
    """
    stream = graph.layers[0].input
    split = activation_sharding(stream, plan_options).split
    return tuple(
        CollectiveCall(CollectiveKind.SEND, "pp", stream, phase, "stage boundary", split)
        for phase in (Phase.FORWARD, Phase.INPUT_GRADIENT)
    )
