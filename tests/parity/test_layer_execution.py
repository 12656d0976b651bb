"""Whole layers run on simulated ranks with the derived collectives equal the layer on one rank.

Every collective that a rank needs is looked up among the derived ones: a missing one fails, and so
does one that nobody needed. Each dim is kept as digits, one for each axis and a rest; an axis that
splits the dim owns its digit, so a shard is a slice and axes commute. Attention is not causal, and
states sum over all tokens, so the order of the tokens does not matter.
"""

import itertools
from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np
import pytest

from meshwright.graph.op import OpKind, Phase
from meshwright.graph.transformer import build_graph
from meshwright.sharding.algebra import FLAT, Move, ShardedOperand, Sharding, matmul, reshard
from meshwright.sharding.axes import activation_sharding, arbiter, matrices
from meshwright.sharding.axes import weight_sharding as derived_weight_home
from meshwright.sharding.derivation import (
    core_layout,
    derive_calls,
    elementwise_input,
    traveling,
)
from meshwright.sharding.strategy import ContextKind, PlanOptions, Streamed
from meshwright.spec.collective import CollectiveKind as Kind
from meshwright.spec.model import (
    AttentionSpec,
    FeedForwardSpec,
    LayerSpec,
    ModelSpec,
    RecurrenceSpec,
)

HEADS, SIZE, HIDDEN, TOKENS = 8, 4, 16, 8
AXES = ("one", "two")
"""Places of the two digits of each dim; a case says which mesh axis each one is."""
DEGREE = 2


@dataclass
class Held:
    """A tensor as the ranks hold it."""

    dims: tuple
    layout: Sharding
    shards: list


class Ranks:
    """Simulated ranks on two axes of two devices (or one rank alone), and what they exchange."""

    def __init__(self, names, calls):
        self.names = names
        places = itertools.product(range(DEGREE), repeat=len(names))
        self.ranks = [dict(zip(names, place, strict=True)) for place in places]
        self.due = Counter(
            (c.tensor.name, c.kind, c.axis, c.phase is Phase.FORWARD)
            for c in calls
            if set(c.axis.split("*")) & set(names)
        )
        self.done = set()

    def active(self, layout):
        split = {d: tuple(a for a in axes if a in self.names) for d, axes in layout.split.items()}
        kept = {dim: axes for dim, axes in split.items() if axes}
        return Sharding(kept, tuple(a for a in layout.partial if a in self.names))

    def digit(self, dims, dim, axis):
        return dims.index(dim) * (len(AXES) + 1) + self.names.index(axis)

    def cut(self, array, dims, layout, rank):
        for dim, axes in layout.split.items():
            for axis in axes:
                array = np.take(array, [rank[axis]], axis=self.digit(dims, dim, axis))
        return array

    def lay(self, full, dims, layout):
        layout = self.active(layout)
        return Held(dims, layout, [self.cut(full, dims, layout, rank) for rank in self.ranks])

    def book(self, name, move, is_forward):
        """Take a collective from the derived ones; what moved once need not move again."""
        key = (name, move.kind, move.axis, is_forward)
        if move.kind is None or key in self.done:
            return
        assert self.due[key] > 0, f"not derived: {key}"
        self.due[key] -= 1
        self.done.add(key)

    def group(self, shards, index, axis):
        mine = {**self.ranks[index], axis: 0}
        return [s for s, r in zip(shards, self.ranks, strict=True) if {**r, axis: 0} == mine]

    def move(self, held, move):
        shards = []
        for index, rank in enumerate(self.ranks):
            members = self.group(held.shards, index, move.axis)
            if move.kind in (Kind.ALL_GATHER, Kind.ALL_TO_ALL):
                place = self.digit(held.dims, move.source, move.axis)
                local = np.concatenate(members, axis=place)
            elif move.kind in (Kind.ALL_REDUCE, Kind.REDUCE_SCATTER):
                local = sum(members)
            else:
                local = held.shards[index]
            if move.target is not None:
                local = self.cut(local, held.dims, Sharding({move.target: (move.axis,)}), rank)
            shards.append(local)
        return Held(held.dims, move.apply(held.layout), shards)

    def run(self, held, moves, name, *, is_forward):
        for move in moves:
            self.book(name, move, is_forward)
            held = self.move(held, move)
        return held

    def bring(self, held, want, name, *, is_forward):
        return self.run(held, reshard(held.layout, self.active(want)), name, is_forward=is_forward)


def weight_sharding(weight, plan_options):
    """Return where a weight lies; one that is cut anywhere is cut along its columns here."""
    layout = derived_weight_home(weight, plan_options)
    for axis in layout.split.get(FLAT, ()):
        layout = layout.along(axis, weight.dims[-1])
    return layout


def digits(size):
    return (*(DEGREE,) * len(AXES), size // DEGREE ** len(AXES))


def flat(array, dims):
    """Return an array with one axis for each dim, and the shape of its digits."""
    step = len(AXES) + 1
    shapes = [array.shape[i * step : (i + 1) * step] for i in range(len(dims))]
    return array.reshape([int(np.prod(shape)) for shape in shapes])


def product(x, x_dims, w, w_dims, out_dims):
    every = (*x_dims, *w_dims)
    names = {dim: i for i, dim in enumerate(dict.fromkeys(every))}

    def labels(dims):
        return [names[d] * (len(AXES) + 1) + i for d in dims for i in range(len(AXES) + 1)]

    return np.einsum(x, labels(x_dims), w, labels(w_dims), labels(out_dims))


def squash(x):
    return np.tanh(x)


class Layer:
    """Forward and backward pass of one layer on ranks."""

    def __init__(self, graph, plan_options, names, rng, calls):
        self.graph, self.plan_options = graph, plan_options
        self.on = Ranks(names, calls)
        self.sizes = graph.bind(TOKENS, TOKENS)
        weights = {w.name: w for op in graph.ops for w in op.weights}
        self.full = {n: rng.normal(size=self.shape(w.dims)) for n, w in sorted(weights.items())}
        self.weights = {
            n: self.on.lay(self.full[n], w.dims, weight_sharding(w, plan_options))
            for n, w in weights.items()
        }
        stream = rng.normal(size=self.shape(graph.input.dims))
        self.values = {
            graph.input.name: self.on.lay(stream, graph.input.dims, self.rest(graph.input))
        }
        self.gradients, self.weight_gradients = defaultdict(list), {}
        self.start = rng.normal(size=self.shape(graph.input.dims))

    def shape(self, dims):
        return [n for dim in dims for n in digits(self.sizes[dim])]

    def rest(self, tensor):
        return activation_sharding(tensor, self.plan_options)

    def resting(self, tensor):
        held = self.values[tensor.name]
        self.values[tensor.name] = self.on.bring(
            held, self.rest(tensor), tensor.name, is_forward=True
        )
        return self.values[tensor.name]

    def forward(self):
        steps = {
            OpKind.MATMUL: self.multiply,
            OpKind.NORM: self.normalize,
            OpKind.ELEMENTWISE: self.combine,
            OpKind.ATTENTION: self.attend,
            OpKind.RECURRENCE: self.scan,
        }
        for op in self.graph.ops:
            steps[op.kind](op)
        return self.resting(self.graph.ops[-1].output)

    def backward(self):
        last = self.graph.ops[-1].output
        self.gradients[last.name] = [self.on.lay(self.start, last.dims, self.rest(last))]
        steps = {
            OpKind.MATMUL: self.multiply_back,
            OpKind.NORM: self.normalize_back,
            OpKind.ELEMENTWISE: self.combine_back,
            OpKind.ATTENTION: self.attend_back,
            OpKind.RECURRENCE: self.scan_back,
        }
        for op in reversed(self.graph.ops):
            steps[op.kind](op)
        return self.settled(self.graph.input)

    def settled(self, tensor):
        """Add contributions that lie alike, bring each sum to rest, add the rest."""
        alike = {}
        for held in self.gradients[tensor.name]:
            key = repr(held.layout)
            shards = alike[key].shards if key in alike else [0.0] * len(held.shards)
            added = [a + b for a, b in zip(shards, held.shards, strict=True)]
            alike[key] = Held(held.dims, held.layout, added)
        name = self.gradient_name(tensor)
        parts = [
            self.on.bring(held, self.rest(tensor), name, is_forward=False)
            for held in alike.values()
        ]
        total = [sum(s) for s in zip(*(part.shards for part in parts), strict=True)]
        return Held(tensor.dims, self.on.active(self.rest(tensor)), total)

    def gradient_name(self, tensor):
        """Branches that are added together have one gradient; that of the last is moved."""
        for op in self.graph.ops:
            branches = [t.name for t in op.inputs[1:] if t.dims == op.output.dims]
            if op.kind is OpKind.ELEMENTWISE and tensor.name in branches:
                return f"{branches[-1]}.gradient"
        return f"{tensor.name}.gradient"

    # matrix products

    def multiply(self, op):
        source = op.inputs[0]
        x = self.resting(source)
        for weight, output in matrices(op):
            w = self.weights[weight.name]
            rule = matmul(
                ShardedOperand(x.dims, x.layout),
                ShardedOperand(w.dims, w.layout),
                output.dims,
                arbiter=arbiter(self.plan_options),
            )
            left = self.on.run(x, rule.left_moves, source.name, is_forward=True)
            right = self.on.run(w, rule.right_moves, weight.name, is_forward=True)
            self.values[output.name] = self.times(left, right, output.dims, rule.local)

    def times(self, left, right, dims, layout):
        pairs = zip(left.shards, right.shards, strict=True)
        made = [product(a, left.dims, b, right.dims, dims) for a, b in pairs]
        return Held(dims, layout, made)

    def multiply_back(self, op):
        source = op.inputs[0]
        x = self.values[source.name]
        for weight, output in matrices(op):
            dy, w = self.settled(output), self.weights[weight.name]
            name = self.gradient_name(output)
            on_y, on_w = ShardedOperand(dy.dims, dy.layout), ShardedOperand(w.dims, w.layout)
            rule = matmul(on_y, on_w, x.dims, arbiter=arbiter(self.plan_options))
            left = self.on.run(dy, rule.left_moves, name, is_forward=False)
            right = self.on.run(w, rule.right_moves, weight.name, is_forward=False)
            self.gradients[source.name].append(self.times(left, right, x.dims, rule.local))
            rule = matmul(ShardedOperand(x.dims, x.layout), on_y, w.dims)
            left = self.on.run(x, rule.left_moves, source.name, is_forward=False)
            right = self.on.run(dy, rule.right_moves, name, is_forward=False)
            self.keep(weight, self.times(left, right, w.dims, rule.local))

    def keep(self, weight, made):
        """Sum a weight gradient over all axes that leave it open: dp*cp together, others apart."""
        want, name = weight_sharding(weight, self.plan_options), f"{weight.name}.gradient"
        for move in reshard(made.layout, self.on.active(want)):
            group = Move(move.kind, "dp*cp") if move.axis == "cp" else move
            self.on.book(name, group, is_forward=False)
            made = self.on.move(made, move)
        self.weight_gradients[weight.name] = made

    # norms

    def parts_of(self, op, index):
        weight = op.weights[index] if index < len(op.weights) else None
        return op.inputs[index], op.outputs[index], weight

    def row_sums(self, op, source, held, name, *, is_forward):
        """Return sums over the normalised dim, all-reduced where the dim is split."""
        sums = [np.sum(flat(s, held.dims), axis=-1, keepdims=True) for s in held.shards]
        for axis in held.layout.split.get(held.dims[-1], ()):
            self.on.book(f"{source.name}.{name}", Move(Kind.ALL_REDUCE, axis), is_forward)
            sums = [sum(self.on.group(sums, i, axis)) for i in range(len(sums))]
        return sums

    def normalize(self, op):
        if op.name == "recurrence.gated_norm":
            self.gate(op)
            return
        for index in range(len(op.inputs)):
            source, output, weight = self.parts_of(op, index)
            x = self.resting(source)
            squares = Held(x.dims, x.layout, [s**2 for s in x.shards])
            sums = self.row_sums(op, source, squares, "statistics", is_forward=True)
            size = self.sizes[source.dims[-1]]
            scale = self.weights[weight.name].shards
            made = []
            for shard, total, w in zip(x.shards, sums, scale, strict=True):
                y = flat(shard, x.dims) / np.sqrt(total / size) * flat(w, weight.dims)
                made.append(y.reshape(shard.shape))
            self.values[output.name] = Held(x.dims, x.layout, made)

    def normalize_back(self, op):
        if op.name == "recurrence.gated_norm":
            self.gate_back(op)
            return
        for index in range(len(op.inputs)):
            source, output, weight = self.parts_of(op, index)
            x, dy = self.values[source.name], self.settled(output)
            size, scale = self.sizes[source.dims[-1]], self.weights[weight.name].shards
            squares = [np.sum(flat(s, x.dims) ** 2, axis=-1, keepdims=True) for s in x.shards]
            for axis in x.layout.split.get(x.dims[-1], ()):
                squares = [sum(self.on.group(squares, i, axis)) for i in range(len(squares))]
            weighted = [
                (flat(g, x.dims) * flat(w, weight.dims) * flat(s, x.dims)).reshape(s.shape)
                for g, w, s in zip(dy.shards, scale, x.shards, strict=True)
            ]
            held = Held(x.dims, x.layout, weighted)
            sums = self.row_sums(op, source, held, "statistics_gradient", is_forward=False)
            dx, dw = [], []
            for s, g, w, q, p in zip(x.shards, dy.shards, scale, squares, sums, strict=True):
                values, grads, r = flat(s, x.dims), flat(g, x.dims), 1 / np.sqrt(q / size)
                step = flat(w, weight.dims) * grads * r - values * r**3 / size * p
                dx.append(step.reshape(s.shape))
                dw.append(np.sum(grads * values * r, axis=0).reshape(w.shape))
            self.gradients[source.name].append(Held(x.dims, x.layout, dx))
            rest = self.on.active(weight_sharding(weight, self.plan_options))
            open_axes = tuple(a for a in dy.layout.axes if a not in rest.axes)
            self.keep(weight, Held(weight.dims, Sharding(rest.split, open_axes), dw))

    # elementwise operators

    def read(self, op, source):
        held = self.resting(source)
        want = elementwise_input(op, source, self.plan_options)
        return self.on.bring(held, want, source.name, is_forward=True)

    def add_open_branches(self, op):
        """Add branches that wait for the same reduction, so that it is made once."""
        waiting = [t for t in op.inputs if self.values[t.name].layout.partial]
        if len(waiting) < 2:
            return op.inputs
        first, *others = waiting
        for other in others:
            pairs = zip(self.values[first.name].shards, self.values[other.name].shards, strict=True)
            self.values[first.name].shards = [a + b for a, b in pairs]
        return tuple(t for t in op.inputs if t not in others)

    def combine(self, op):
        if op.weights:
            self.scale(op)
            return
        inputs = self.add_open_branches(op)
        read = [self.read(op, source) for source in inputs]
        for index, output in enumerate(op.outputs):
            layout = self.on.active(self.rest(output))
            made = []
            for rank in range(len(self.on.ranks)):
                local = [flat(held.shards[rank], held.dims) for held in read]
                y = self.formula(op, index, local)
                made.append(y.reshape(self.local_shape(output.dims, layout)))
            self.values[output.name] = Held(output.dims, layout, made)

    def local_shape(self, dims, layout):
        shape = self.shape(dims)
        for dim, axes in layout.split.items():
            for axis in axes:
                shape[self.on.digit(dims, dim, axis)] = 1
        return shape

    def formula(self, op, index, local):
        if op.name.endswith(".activation"):
            pairs = local[0].reshape(len(local[0]), -1, 2)
            return squash(pairs[..., 0]) * pairs[..., 1]
        if op.name != "attention.rotary":
            return sum(local)
        if len(local) < 3 or index == 0:
            return 0.5 * local[index]
        return self.joined_keys(local[1], local[2])

    def joined_keys(self, content, rotary):
        """Return each key head with the shared rotary key behind it."""
        heads = content.reshape(len(content), -1, SIZE)
        shared = np.repeat(rotary[:, None, :], heads.shape[1], axis=1)
        return np.concatenate([heads, shared], axis=-1).reshape(len(content), -1)

    def combine_back(self, op):
        if op.weights:
            self.scale_back(op)
            return
        outputs = [self.settled(output) for output in op.outputs]
        out = self.on.active(self.rest(op.output))
        for place, source in enumerate(op.inputs):
            layout = self.on.active(elementwise_input(op, source, self.plan_options))
            made = []
            for rank in range(len(self.on.ranks)):
                local = [flat(held.shards[rank], held.dims) for held in outputs]
                dx = self.formula_back(op, source, place, local, rank)
                made.append(dx.reshape(self.local_shape(source.dims, layout)))
            open_axes = tuple(a for a in out.axes if a not in layout.axes)
            held = Held(source.dims, Sharding(layout.split, open_axes), made)
            self.gradients[source.name].append(held)

    def formula_back(self, op, source, place, local, rank):
        if op.name.endswith(".activation"):
            kept = self.values[source.name]
            x = flat(kept.shards[rank], kept.dims)
            pairs = x.reshape(len(x), -1, 2)
            slope = (1 - squash(pairs[..., 0]) ** 2) * pairs[..., 1]
            both = np.stack([local[0] * slope, local[0] * squash(pairs[..., 0])], axis=-1)
            return both.reshape(len(x), -1)
        if op.name != "attention.rotary":
            return local[0]
        if len(op.inputs) < 3 or place == 0:
            return 0.5 * local[place]
        heads = local[1].reshape(len(local[1]), -1, 2 * SIZE)
        if place == 1:
            return heads[..., :SIZE].reshape(len(heads), -1)
        return heads[..., SIZE:].sum(axis=1)

    # attention

    def heads_of(self, held, rank, head_size):
        local = flat(held.shards[rank], held.dims)
        return local.reshape(len(local), -1, head_size)

    def attend(self, op):
        self.cores = {}
        for tensor in op.inputs:
            want = core_layout(op, tensor, self.plan_options)
            held = self.on.bring(self.resting(tensor), want, tensor.name, is_forward=True)
            self.cores[tensor.name] = held
        made = []
        gathered = [self.sent_round(op, t, is_forward=True) for t in op.inputs[1:]]
        layout = self.on.active(core_layout(op, op.output, self.plan_options))
        for rank in range(len(self.on.ranks)):
            q, k, v = self.local_heads(op, gathered, rank)
            y = np.einsum("hts,shd->thd", self.scores(q, k), v)
            made.append(y.reshape(self.local_shape(op.output.dims, layout)))
        self.values[op.output.name] = Held(op.output.dims, layout, made)

    def travels(self, op, tensor):
        """Return the moves of keys or values over the axes that are simulated."""
        moves = next(moves for one, moves in traveling(op, self.plan_options) if one is tensor)
        return [move for move in moves if move.axis in self.on.names]

    def sent_round(self, op, tensor, *, is_forward):
        moves = self.travels(op, tensor)
        return self.on.run(self.cores[tensor.name], moves, tensor.name, is_forward=is_forward)

    def local_heads(self, op, gathered, rank):
        spec, query = op.attention, self.cores[op.inputs[0].name]
        q = self.heads_of(query, rank, SIZE + spec.rope_head_size)
        k = self.heads_of(gathered[0], rank, SIZE + spec.rope_head_size)
        v = self.heads_of(gathered[1], rank, SIZE)
        shared = q.shape[1] // k.shape[1]
        return q, np.repeat(k, shared, axis=1), np.repeat(v, shared, axis=1)

    def scores(self, q, k):
        e = np.exp(np.einsum("thd,shd->hts", q, k) / 8)
        return e / e.sum(axis=-1, keepdims=True)

    def attend_back(self, op):
        dy = self.settled(op.output)
        want = core_layout(op, op.output, self.plan_options)
        dy = self.on.bring(dy, want, f"{op.output.name}.gradient", is_forward=False)
        gathered = [self.sent_round(op, t, is_forward=False) for t in op.inputs[1:]]
        found = [[], [], []]
        for rank in range(len(self.on.ranks)):
            q, k, v = self.local_heads(op, gathered, rank)
            p, g = self.scores(q, k), self.heads_of(dy, rank, SIZE)
            dp = np.einsum("thd,shd->hts", g, v)
            ds = p * (dp - np.sum(dp * p, axis=-1, keepdims=True)) / 8
            found[0].append(np.einsum("hts,shd->thd", ds, k))
            of_heads = [np.einsum("hts,thd->shd", ds, q), np.einsum("hts,thd->shd", p, g)]
            for place, grads in enumerate(of_heads):
                held = self.heads_of(gathered[place], rank, grads.shape[-1])
                by_key_head = grads.reshape(len(grads), held.shape[1], -1, grads.shape[-1])
                found[place + 1].append(by_key_head.sum(axis=2))
        for tensor, grads in zip(op.inputs, found, strict=True):
            self.leave(op, tensor, grads)

    def leave(self, op, tensor, grads):
        layout = self.cores[tensor.name].layout
        if tensor is not op.inputs[0]:
            for axis in [move.axis for move in self.travels(op, tensor)]:
                layout = Sharding(layout.without(axis).split, (*layout.partial, axis))
        made = [g.reshape(self.local_shape(tensor.dims, layout)) for g in grads]
        self.gradients[tensor.name].append(Held(tensor.dims, layout, made))

    # recurrences

    def scale(self, op):
        """Stand in for the convolution: each channel times the sum of its taps, plus its bias."""
        number = len(op.outputs)
        for index, (source, output) in enumerate(zip(op.inputs, op.outputs, strict=True)):
            x, made = self.resting(source), []
            for rank, shard in enumerate(x.shards):
                taps, bias = (self.vector(w, rank) for w in op.weights[index::number])
                y = flat(shard, x.dims) * taps.sum(axis=0) + bias
                made.append(y.reshape(shard.shape))
            self.values[output.name] = Held(x.dims, x.layout, made)

    def scale_back(self, op):
        number = len(op.outputs)
        for index, (source, output) in enumerate(zip(op.inputs, op.outputs, strict=True)):
            x, dy, found = self.values[source.name], self.settled(output), ([], [], [])
            held = op.weights[index::number]
            for rank, (shard, grads) in enumerate(zip(x.shards, dy.shards, strict=True)):
                taps, g = self.vector(held[0], rank), flat(grads, x.dims)
                found[0].append((g * taps.sum(axis=0)).reshape(shard.shape))
                by_channel = np.sum(g * flat(shard, x.dims), axis=0)
                found[1].append(np.broadcast_to(by_channel, taps.shape))
                found[2].append(g.sum(axis=0))
            self.gradients[source.name].append(Held(x.dims, x.layout, found[0]))
            for weight, made in zip(held, found[1:], strict=True):
                self.keep_vector(weight, made, dy.layout)

    def vector(self, weight, rank):
        return flat(self.weights[weight.name].shards[rank], weight.dims)

    def keep_vector(self, weight, made, layout):
        """Keep the gradient of a weight that is not multiplied, open over all other axes."""
        rest = self.on.active(weight_sharding(weight, self.plan_options))
        open_axes = tuple(axis for axis in layout.axes if axis not in rest.axes)
        shape = self.local_shape(weight.dims, rest)
        shards = [np.reshape(part, shape) for part in made]
        self.keep(weight, Held(weight.dims, Sharding(rest.split, open_axes), shards))

    def gate(self, op):
        x, z = (self.resting(tensor) for tensor in op.inputs)
        made = []
        for rank, (a, b) in enumerate(zip(x.shards, z.shards, strict=True)):
            both = flat(a, x.dims) * flat(b, z.dims)
            y = both * self.by_channel(op, both.shape[1], rank)
            made.append(y.reshape(a.shape))
        self.values[op.output.name] = Held(x.dims, x.layout, made)

    def by_channel(self, op, num_channels, rank):
        """Return the weight of each channel: its own, or that of all heads."""
        weight = self.vector(op.weights[0], rank)
        return np.tile(weight, num_channels // weight.size)

    def gate_back(self, op):
        x, z = (self.values[tensor.name] for tensor in op.inputs)
        dy, found = self.settled(op.output), ([], [], [])
        for rank, parts in enumerate(zip(x.shards, z.shards, dy.shards, strict=True)):
            a, b, g = (flat(part, x.dims) for part in parts)
            weight = self.by_channel(op, a.shape[1], rank)
            found[0].append((g * b * weight).reshape(parts[0].shape))
            found[1].append((g * a * weight).reshape(parts[0].shape))
            by_channel, size = np.sum(g * a * b, axis=0), self.vector(op.weights[0], rank).size
            found[2].append(by_channel.reshape(-1, size).sum(axis=0))
        for tensor, made in zip(op.inputs, found[:2], strict=True):
            self.gradients[tensor.name].append(Held(tensor.dims, x.layout, made))
        self.keep_vector(op.weights[0], found[2], dy.layout)

    def scan(self, op):
        """Read by the queries of a head what all its tokens have written, times its weights."""
        self.cores = {}
        for tensor in op.inputs:
            want = core_layout(op, tensor, self.plan_options)
            held = self.on.bring(self.resting(tensor), want, tensor.name, is_forward=True)
            self.cores[tensor.name] = held
        layout = self.on.active(core_layout(op, op.output, self.plan_options))
        made = []
        for rank in range(len(self.on.ranks)):
            q, _, _, _, a, state = self.of_scan(op, rank)
            y = np.einsum("thn,hnp,h->thp", q, state, a)
            made.append(y.reshape(self.local_shape(op.output.dims, layout)))
        self.values[op.output.name] = Held(op.output.dims, layout, made)

    def of_scan(self, op, rank):
        """Return queries, keys, values, steps and weights by head, and the states."""
        v, k, q = (self.heads_of(self.cores[t.name], rank, SIZE) for t in op.inputs[:3])
        steps = [flat(self.cores[t.name].shards[rank], t.dims) for t in op.inputs[3:]]
        shared, step = v.shape[1] // k.shape[1], np.prod(steps, axis=0)
        k, q = np.repeat(k, shared, axis=1), np.repeat(q, shared, axis=1)
        a = np.prod([self.of_heads(w, rank) for w in op.weights], axis=0)
        return q, k, v, step, a, np.einsum("sh,shn,shp->hnp", step, k, v)

    def of_heads(self, weight, rank):
        """Return the part of a vector that a rank of cp works with."""
        held = self.weights[weight.name].shards[rank]
        if "cp" in self.on.names:
            held = self.on.cut(held, weight.dims, self.cp_split(weight), self.on.ranks[rank])
        return flat(held, weight.dims)

    def cp_split(self, weight):
        return Sharding({weight.dims[0]: ("cp",)})

    def scan_back(self, op):
        dy = self.settled(op.output)
        want = core_layout(op, op.output, self.plan_options)
        dy = self.on.bring(dy, want, f"{op.output.name}.gradient", is_forward=False)
        found, of_weights = [[] for _ in op.inputs], [[] for _ in op.weights]
        for rank in range(len(self.on.ranks)):
            q, k, v, step, a, state = self.of_scan(op, rank)
            g = self.heads_of(dy, rank, SIZE)
            d_state = np.einsum("thn,thp,h->hnp", q, g, a)
            d_step = np.einsum("shn,hnp,shp->sh", k, d_state, v)
            by_head = [
                np.einsum("sh,shn,hnp->shp", step, k, d_state),
                np.einsum("sh,shp,hnp->shn", step, v, d_state),
                np.einsum("thp,hnp,h->thn", g, state, a),
            ]
            groups = [self.heads_of(self.cores[t.name], rank, SIZE).shape[1] for t in op.inputs[:3]]
            for place, (grads, heads) in enumerate(zip(by_head, groups, strict=True)):
                shape = (len(grads), heads, -1, SIZE)
                found[place].append(grads.reshape(shape).sum(axis=2))
            for place, tensor in enumerate(op.inputs[3:], start=3):
                own = flat(self.cores[tensor.name].shards[rank], tensor.dims)
                found[place].append(d_step * step / own)
            d_a = np.einsum("thn,hnp,thp->h", q, state, g)
            for place, weight in enumerate(op.weights):
                of_weights[place].append(self.spread(weight, d_a * a, rank))
        for tensor, made in zip(op.inputs, found, strict=True):
            layout = self.cores[tensor.name].layout
            shape = self.local_shape(tensor.dims, layout)
            held = Held(tensor.dims, layout, [part.reshape(shape) for part in made])
            self.gradients[tensor.name].append(held)
        for weight, made in zip(op.weights, of_weights, strict=True):
            self.keep_vector(weight, made, self.on.active(self.rest(op.output)))

    def spread(self, weight, grads, rank):
        """Return the gradient of a vector on a rank: zero for heads of other ranks of cp."""
        held = self.weights[weight.name].shards[rank]
        made = np.zeros_like(held)
        own = np.arange(held.size).reshape(held.shape)
        if "cp" in self.on.names:
            own = self.on.cut(own, weight.dims, self.cp_split(weight), self.on.ranks[rank])
        made.reshape(-1)[own.reshape(-1)] = grads / held.reshape(-1)[own.reshape(-1)]
        return made


GQA = AttentionSpec(num_heads=HEADS, num_kv_heads=4, head_size=SIZE, value_head_size=SIZE)
MLA = AttentionSpec(
    kind="mla",
    num_heads=HEADS,
    num_kv_heads=HEADS,
    head_size=SIZE,
    value_head_size=SIZE,
    query_rank=8,
    kv_rank=4,
    rope_head_size=SIZE,
)
STATES = RecurrenceSpec(
    kind="mamba2", num_heads=HEADS, head_size=SIZE, num_groups=4, state_size=SIZE, conv_size=4,
    chunk_size=4, conv_bias=True,
)  # fmt: skip
KINDS = {
    "grouped": {"attention": GQA},
    "latent": {"attention": MLA},
    "norm-over-heads": {"attention": GQA.model_copy(update={"qk_norm": "full"})},
    "parallel": {"attention": GQA, "parallel_residual": True, "num_norms": 1},
    "four-norms": {"attention": GQA, "num_norms": 4},
    "norms-on-branches": {"attention": GQA, "norms_before": False},
    "gated": {"attention": GQA.model_copy(update={"output_gate": True})},
    "states": {"recurrence": STATES},
    "delta-rule": {"recurrence": STATES.model_copy(update={"kind": "gated_delta"})},
}
OPTION_SETS = {
    "plain": PlanOptions(sequence_parallel=False, zero_stage=0, streamed=Streamed.WEIGHTS),
    "split": PlanOptions(sequence_parallel=True, zero_stage=0, streamed=Streamed.INPUTS),
    "ulysses": PlanOptions(zero_stage=0, context_kind=ContextKind.ULYSSES),
}
MESHES = [("tp", "cp"), ("tp", "tatp"), ("cp", "tatp")]


def layer_graph(kind):
    spec = LayerSpec(feed_forward=FeedForwardSpec(ffn_size=16, gated=True), **KINDS[kind])
    model = ModelSpec(
        name="test",
        architecture="test",
        hidden_size=HIDDEN,
        vocab_size=64,
        layer_kinds=(spec,),
        layer_pattern=(0,),
    )
    return build_graph(model).layers[0]


def close(split, alone, ranks, dims):
    """Return whether each rank holds its slice of what one rank alone holds."""
    full = alone.shards[0]
    return all(
        np.allclose(shard, ranks.cut(full, dims, split.layout, rank), rtol=1e-9, atol=1e-11)
        for shard, rank in zip(split.shards, ranks.ranks, strict=True)
    )


@pytest.mark.parametrize("mesh", MESHES, ids="-".join)
@pytest.mark.parametrize("plan_options", OPTION_SETS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_on_ranks_equals_the_layer_on_one_rank(kind, plan_options, mesh):
    if "recurrence" in KINDS[kind] and "tatp" in mesh:
        mesh = tuple(axis for axis in mesh if axis != "tatp")  # which is refused
    graph, choice = layer_graph(kind), OPTION_SETS[plan_options]
    calls = derive_calls(graph, choice, mesh)
    many = Layer(graph, choice, mesh, np.random.default_rng(5), calls)
    alone = Layer(graph, choice, (), np.random.default_rng(5), ())
    assert close(many.forward(), alone.forward(), many.on, graph.input.dims)
    assert not [key for key in many.on.due if key[3] and many.on.due[key]]
    assert close(many.backward(), alone.backward(), many.on, graph.input.dims)
    for op in graph.ops:
        for weight in op.weights:
            found, wanted = (m.weight_gradients[weight.name] for m in (many, alone))
            assert close(found, wanted, many.on, weight.dims), weight.name
    left = [k for k in many.on.due if many.on.due[k] and "/" not in k[2]]
    assert not left


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_on_one_rank_is_the_slope(kind):
    """Along any direction d: start . (f(x + e d) - f(x - e d)) / 2e = gradient . d."""
    graph, step = layer_graph(kind), 1e-6
    direction = np.random.default_rng(6)

    def fresh():
        return Layer(graph, OPTION_SETS["plain"], (), np.random.default_rng(5), ())

    base = fresh()
    base.forward()
    gradient = base.backward().shards[0]
    along = direction.normal(size=gradient.shape)
    ends = []
    for sign in (1.0, -1.0):
        layer = fresh()
        layer.values[graph.input.name].shards[0] += sign * step * along
        ends.append(np.sum(layer.forward().shards[0] * base.start))
    assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(np.sum(gradient * along), rel=1e-6)


@pytest.mark.parametrize("left_out", range(4))
def test_a_collective_that_is_left_out_is_noticed(left_out):
    graph, choice = layer_graph("grouped"), OPTION_SETS["plain"]
    calls = [c for c in derive_calls(graph, choice, ("tp",)) if not c.of_weight]
    fewer = [call for index, call in enumerate(calls) if index != left_out]
    layer = Layer(graph, choice, ("tp", "cp"), np.random.default_rng(5), fewer)
    layer.on.due.update(
        (c.tensor.name, c.kind, c.axis, c.phase is Phase.FORWARD)
        for c in derive_calls(graph, choice, ("cp",))
    )
    with pytest.raises(AssertionError, match="not derived"):
        layer.forward(), layer.backward()
