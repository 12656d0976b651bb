"""The forward pass of a layer: what each operator needs before it can run on its shards."""

from __future__ import annotations

from collections.abc import Callable

from meshwright.graph.op import LayerGraph, Op, OpKind, Phase, Tensor
from meshwright.sharding.algebra import Move, Sharding, payload, reshard, walk
from meshwright.sharding.axes_all import axes
from meshwright.sharding.calls import CollectiveCall
from meshwright.sharding.strategy import ContextKind, PlanOptions
from meshwright.sharding.tensor_sharding import (
    activation_sharding,
    forward_products,
    weight_sharding,
)
from meshwright.spec.collective import CollectiveKind

LOSS_STATISTICS = ("maximum", "sum_of_exponentials", "target_logit")
"""What a cross-entropy over a split vocabulary reduces for each token (Shoeybi et al. 2019)."""


class Ledger:
    """The calls of one pass. A tensor that moved once over an axis need not do so again."""

    def __init__(self, structure: PlanOptions, phase: Phase) -> None:
        self.structure, self.phase = structure, phase
        self.calls: list[CollectiveCall] = []
        self._seen: set[tuple[str, Move]] = set()
        self._equal_to: dict[str, str] = {}
        self._looked_up: set[str] = set()

    def mark_equal(self, tensors: list[Tensor]) -> None:
        """State that tensors hold the same numbers, so that one move serves all of them."""
        for tensor in tensors[1:]:
            self._equal_to[tensor.name] = tensors[0].name

    def mark_looked_up(self, tensor: Tensor) -> None:
        """State that no product makes or uses a tensor beside which its pieces could travel."""
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
        """Record the moves of a tensor, and return where it then lies."""
        layout = have
        name = self._equal_to.get(tensor.name, tensor.name)
        for before, step in walk(have, moves):
            layout = step.apply(before)
            if step.kind is None or (name, step) in self._seen:
                continue
            self._seen.add((name, step))
            streams = axes[step.axis].is_streamed(step.kind, self.structure)
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


def forward_calls(layer: LayerGraph, structure: PlanOptions) -> list[CollectiveCall]:
    """Return the collectives of the forward pass, in order.

    Sums are left open until an operator needs the tensor whole, so that branches that meet in an
    addition are summed before they are reduced.
    """
    ledger = Ledger(structure, Phase.FORWARD)
    layouts = {layer.input.name: activation_sharding(layer.input, structure)}
    for op in layer.ops:
        layouts |= _STEPS[op.kind](op, layouts, ledger)
    _settle_output(layer, layouts, ledger)
    return ledger.calls


Layouts = dict[str, Sharding]


def _at_home(tensor: Tensor, layouts: Layouts, ledger: Ledger, site: str) -> Sharding:
    """Bring a tensor to rest: close its sums, undo what its maker did to its layout."""
    rest = activation_sharding(tensor, ledger.structure)
    have = layouts.get(tensor.name, rest)
    layouts[tensor.name] = ledger.move(tensor, have, reshard(have, rest), site)
    return rest


def _settle_output(layer: LayerGraph, layouts: Layouts, ledger: Ledger) -> None:
    """Bring the result of the last operator to rest for whoever comes next."""
    last = layer.ops[-1]
    if last.kind is not OpKind.LOSS:
        _at_home(last.output, layouts, ledger, f"{last.name}: output")


def _product(op: Op, layouts: Layouts, ledger: Ledger) -> Layouts:
    """Apply the rule to each weight; a fused product gathers its input once."""
    source = op.inputs[0]
    if op.kind is OpKind.EMBEDDING:
        ledger.mark_looked_up(op.output)
    else:
        _at_home(source, layouts, ledger, f"{op.name}: input")
    made: Layouts = {}
    for weight, output, product in forward_products(op, ledger.structure):
        rest = activation_sharding(source, ledger.structure)
        ledger.move(source, rest, product.left_moves, f"{op.name}: input")
        held = weight_sharding(weight, ledger.structure)
        site = f"{op.name}: weight"
        ledger.move(weight, held, product.right_moves, site, of_weight=True)
        made[output.name] = product.local
    return made


def elementwise_input(op: Op, source: Tensor, structure: PlanOptions) -> Sharding:
    """Return the layout in which an elementwise operator reads an input.

    Inner dims as they rest; tokens as those of the output.
    """
    rows = activation_sharding(op.output, structure).split.get("tokens")
    own = activation_sharding(source, structure)
    if rows is None or "tokens" not in source.dims:
        return own
    inner = {dim: axes_ for dim, axes_ in own.split.items() if dim != "tokens"}
    return Sharding({**inner, "tokens": rows})


def _elementwise(op: Op, layouts: Layouts, ledger: Ledger) -> Layouts:
    """Bring the inputs to the tokens of the output; reduce statistics over a split row."""
    site = f"{op.name}: input"
    _sum_open_branches(op, layouts, ledger, site)
    for source in op.inputs:
        rest = _at_home(source, layouts, ledger, site)
        want = elementwise_input(op, source, ledger.structure)
        ledger.move(source, rest, reshard(rest, want), site)
    if op.kind is OpKind.NORM:
        reduce_statistics(op, ledger, ("statistics",))
    return {output.name: activation_sharding(output, ledger.structure) for output in op.outputs}


def _sum_open_branches(op: Op, layouts: Layouts, ledger: Ledger, site: str) -> None:
    """Reduce branches of an addition that are open over the same axes as one tensor."""
    rest = activation_sharding(op.output, ledger.structure)
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
        rest = activation_sharding(source, ledger.structure)
        split_axes = [a for dim in op.contracted for a in rest.split.get(dim, ())]
        rows = Sharding({"tokens": rest.split["tokens"]}) if "tokens" in rest.split else Sharding()
        for name in names:
            numbers = Tensor(f"{source.name}.{name}", ("tokens",), 4.0)
            steps = [Move(CollectiveKind.ALL_REDUCE, axis) for axis in split_axes]
            ledger.move(numbers, rows, steps, f"{op.name}: {name}")


def attention_layout(tensor: Tensor, structure: PlanOptions) -> Sharding:
    """Return how the attention core reads and writes a tensor.

    Ulysses turns the split of the tokens over cp into a split of the heads; else as at rest.
    """
    rest = activation_sharding(tensor, structure)
    if structure.context_kind is not ContextKind.ULYSSES:
        return rest
    return rest.along("cp", tensor.dims[-1])


def traveling_axes(tensor: Tensor, structure: PlanOptions) -> tuple[str, ...]:
    """Return the axes over which keys and values of other ranks are needed: split sequences."""
    tokens = attention_layout(tensor, structure).split.get("tokens", ())
    return tuple(axis for axis in tokens if axes[axis].splits_sequence)


def _attention(op: Op, layouts: Layouts, ledger: Ledger) -> Layouts:
    """Bring heads together, and send keys and values round where sequences are split.

    Scores are a product whose free dims, queries and keys, claim the same axis (case 4): the keys
    are gathered, piece by piece.
    """
    _, *keys_and_values = op.inputs
    site = f"{op.name}: input"
    for source in op.inputs:
        rest = _at_home(source, layouts, ledger, site)
        ledger.move(source, rest, reshard(rest, attention_layout(source, ledger.structure)), site)
    for source in keys_and_values:
        have = attention_layout(source, ledger.structure)
        steps = [
            Move(CollectiveKind.ALL_GATHER, axis, "tokens")
            for axis in traveling_axes(source, ledger.structure)
        ]
        ledger.move(source, have, steps, f"{op.name}: keys and values")
    return {op.output.name: attention_layout(op.output, ledger.structure)}


def spread_tokens(tensor: Tensor, structure: PlanOptions) -> Sharding:
    """Return the layout of tokens at a router: over every axis, so that each is sent once."""
    rest = activation_sharding(tensor, structure)
    return rest if "tp" in rest.axes else rest.along("tp", "tokens")


def exchange(rows: Tensor, ledger: Ledger, site: str) -> None:
    """Record the all-to-all that carries rows to their experts, or back."""
    split = activation_sharding(rows, ledger.structure).split
    ledger.calls.append(
        CollectiveCall(CollectiveKind.ALL_TO_ALL, "ep", rows, ledger.phase, site, split)
    )


def _route(op: Op, layouts: Layouts, ledger: Ledger) -> Layouts:
    """Spread the tokens, send each row to its experts; or bring them back."""
    source, target = op.inputs[0], op.output
    rest = _at_home(source, layouts, ledger, f"{op.name}: input")
    for other in op.inputs[1:]:
        _at_home(other, layouts, ledger, f"{op.name}: input")
    if "routed_tokens" in target.dims:
        spread = spread_tokens(source, ledger.structure)
        ledger.move(source, rest, reshard(rest, spread), f"{op.name}: input")
        exchange(target, ledger, f"{op.name}: rows")
        return {target.name: activation_sharding(target, ledger.structure)}
    exchange(source, ledger, f"{op.name}: rows")
    return {target.name: spread_tokens(target, ledger.structure)}


def _loss(op: Op, layouts: Layouts, ledger: Ledger) -> Layouts:
    """Reduce maximum, sum and target over a split vocabulary; logits are never gathered."""
    _at_home(op.inputs[0], layouts, ledger, f"{op.name}: input")
    reduce_statistics(op, ledger, LOSS_STATISTICS)
    return {}


_STEPS: dict[OpKind, Callable[[Op, Layouts, Ledger], Layouts]] = {
    OpKind.MATMUL: _product,
    OpKind.EMBEDDING: _product,
    OpKind.NORM: _elementwise,
    OpKind.ELEMENTWISE: _elementwise,
    OpKind.ATTENTION: _attention,
    OpKind.ROUTE: _route,
    OpKind.LOSS: _loss,
}
