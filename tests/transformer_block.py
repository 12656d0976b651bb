"""A transformer block and its gradients on NumPy: dense, and with its operators under streams."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from oracles.stream_arrays import (
    SplitAttention,
    reduced_product,
    reduced_product_gradients,
    streamed_product,
    streamed_product_gradients,
)

NORMS = {"rms", "layer"}
ACTIVATIONS = {"swiglu", "gelu"}


@dataclass(frozen=True)
class Shape:
    """Sizes and kinds of a block."""

    hidden: int = 6
    ffn: int = 8
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 3
    norm: str = "rms"
    activation: str = "swiglu"

    def weights(self, rng):
        """Return random parameters by name."""
        h, f, d = self.hidden, self.ffn, self.head_size
        sizes = {
            "q": (h, self.heads * d), "k": (h, self.kv_heads * d), "v": (h, self.kv_heads * d),
            "o": (self.heads * d, h), "up": (h, f), "down": (f, h),
            "gain1": (h,), "gain2": (h,),
        }  # fmt: skip
        if self.activation == "swiglu":
            sizes["gate"] = (h, f)
        if self.norm == "layer":
            sizes |= {"bias1": (h,), "bias2": (h,)}
        return {name: rng.normal(size=size) for name, size in sizes.items()}


def norm_forward(x, params, which, shape):
    """Return the norm over hidden, and its normalised input."""
    centred = x - x.mean(axis=1, keepdims=True) if shape.norm == "layer" else x
    unit = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-6)
    return unit * params[f"gain{which}"] + params.get(f"bias{which}", 0.0)


def norm_backward(x, dy, params, which, shape):
    """Return dx and the gradients of gain and bias, summed over these tokens."""
    is_layer = shape.norm == "layer"
    centred = x - x.mean(axis=1, keepdims=True) if is_layer else x
    scale = 1 / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-6)
    unit = centred * scale
    du = dy * params[f"gain{which}"]
    dx = scale * (du - unit * (du * unit).mean(axis=1, keepdims=True))
    gradients = {f"gain{which}": (dy * unit).sum(axis=0)}
    if is_layer:
        dx = dx - dx.mean(axis=1, keepdims=True)
        gradients[f"bias{which}"] = dy.sum(axis=0)
    return dx, gradients


def activation_forward(up, gate, shape):
    """Return GELU(up), or up * SiLU(gate)."""
    if shape.activation == "swiglu":
        return up * gate / (1 + np.exp(-gate))
    return 0.5 * up * (1 + np.tanh(0.8 * (up + 0.04 * up**3)))


def activation_backward(up, gate, dy, shape):
    """Return the gradients of up and gate."""
    if shape.activation == "swiglu":
        s = 1 / (1 + np.exp(-gate))
        return dy * gate * s, dy * up * (s + gate * s * (1 - s))
    t = np.tanh(0.8 * (up + 0.04 * up**3))
    return dy * (0.5 * (1 + t) + 0.5 * up * (1 - t**2) * 0.8 * (1 + 0.12 * up**2)), None


def split_heads(x, num_heads):
    """Return (heads, tokens, head size) of (tokens, heads * head size)."""
    return x.reshape(len(x), num_heads, -1).swapaxes(0, 1)


def join_heads(x):
    return x.swapaxes(0, 1).reshape(x.shape[1], -1)


def attention(q, k, v, positions, dout=None):
    """Return causal attention of (heads, tokens, size), or its gradients (dq, dk, dv)."""
    sharing = len(q) // len(k)
    keys, values = np.repeat(k, sharing, axis=0), np.repeat(v, sharing, axis=0)
    scores = q @ keys.swapaxes(1, 2) / np.sqrt(q.shape[2])
    scores = np.where(positions[:, None] >= positions[None, :], scores, -np.inf)
    p = np.exp(scores - scores.max(axis=2, keepdims=True))
    p /= p.sum(axis=2, keepdims=True)
    if dout is None:
        return p @ values
    dp = dout @ values.swapaxes(1, 2)
    ds = p * (dp - (p * dp).sum(axis=2, keepdims=True)) / np.sqrt(q.shape[2])
    shared = (len(k), sharing, *k.shape[1:])
    dk = (ds.swapaxes(1, 2) @ q).reshape(shared).sum(axis=1)
    dv = (p.swapaxes(1, 2) @ dout).reshape(shared).sum(axis=1)
    return ds @ keys, dk, dv


class DenseParts:
    """The linear layers and the attention of a block on one device."""

    def __init__(self, shape, num_tokens):
        self.shape, self.positions = shape, np.arange(num_tokens)

    def column(self, xs, names, params):
        return {name: [xs[0] @ params[name]] for name in names}

    def column_backward(self, xs, dys, params):
        dx = sum(dy[0] @ params[name].T for name, dy in dys.items())
        return [dx], {name: xs[0].T @ dy[0] for name, dy in dys.items()}

    def row(self, ys, name, params):
        return [ys[0] @ params[name]]

    def row_backward(self, ys, dzs, name, params):
        return [dzs[0] @ params[name].T], {name: ys[0].T @ dzs[0]}

    def attend(self, qkv):
        q, k, v = (split_heads(qkv[n][0], h) for n, h in self._heads())
        return [join_heads(attention(q, k, v, self.positions))]

    def attend_backward(self, qkv, dos):
        q, k, v = (split_heads(qkv[n][0], h) for n, h in self._heads())
        parts = attention(q, k, v, self.positions, split_heads(dos[0], self.shape.heads))
        return {name: [join_heads(part)] for name, part in zip("qkv", parts, strict=True)}

    def _heads(self):
        s = self.shape
        return (("q", s.heads), ("k", s.kv_heads), ("v", s.kv_heads))

    def split(self, x):
        return [x]

    def join(self, xs):
        return xs[0]


def block_forward_backward(parts, x, dy, params):
    """Return y, dx and the gradients of all parameters of a pre-norm block."""
    shape = parts.shape
    mlp = ["up", "gate"] if shape.activation == "swiglu" else ["up"]
    x0 = parts.split(x)
    a = [norm_forward(xi, params, 1, shape) for xi in x0]
    qkv = parts.column(a, "qkv", params)
    o = parts.attend(qkv)
    x1 = [xi + zi for xi, zi in zip(x0, parts.row(o, "o", params), strict=True)]
    b = [norm_forward(xi, params, 2, shape) for xi in x1]
    wide = parts.column(b, mlp, params)
    gates = wide.get("gate", [None] * len(wide["up"]))
    m = [activation_forward(u, g, shape) for u, g in zip(wide["up"], gates, strict=True)]
    y = [xi + zi for xi, zi in zip(x1, parts.row(m, "down", params), strict=True)]

    d_y = parts.split(dy)
    gradients = {}
    dm, found = parts.row_backward(m, d_y, "down", params)
    gradients |= found
    back = [activation_backward(*each, shape) for each in zip(wide["up"], gates, dm, strict=True)]
    d_wide = {name: [pair[k] for pair in back] for k, name in enumerate(mlp)}
    db, found = parts.column_backward(b, d_wide, params)
    gradients |= found
    dx1 = add_norm_backward(d_y, x1, db, params, 2, shape, gradients)
    do, found = parts.row_backward(o, dx1, "o", params)
    gradients |= found
    da, found = parts.column_backward(a, parts.attend_backward(qkv, do), params)
    gradients |= found
    dx = add_norm_backward(dx1, x0, da, params, 1, shape, gradients)
    return parts.join(y), parts.join(dx), gradients


def add_norm_backward(residual, xs, dys, params, which, shape, gradients):
    """Return the gradient through a norm and past it; all-reduce those of gain and bias."""
    found = [norm_backward(x, dy, params, which, shape) for x, dy in zip(xs, dys, strict=True)]
    for name in found[0][1]:
        gradients[name] = sum(part[name] for _, part in found)
    return [r + dx for r, (dx, _) in zip(residual, found, strict=True)]


class WeightStreamed(DenseParts):
    """Tokens split at rest; columns of each weight stream, and keys and values too."""

    def __init__(self, shape, rounds, item_tokens):
        self.shape, self.rounds, self.item_tokens = shape, rounds, item_tokens
        parts = rounds.num_parts
        self.tokens = [
            np.concatenate(item_tokens[i * parts : (i + 1) * parts])
            for i in range(rounds.num_members)
        ]
        self.received = dict.fromkeys(("linear", "attention", "attention backward"), 0)
        self.num_exchange_rounds = None

    def split(self, x):
        return [x[tokens] for tokens in self.tokens]

    def join(self, xs):
        order = np.argsort(np.concatenate(self.tokens))
        return np.concatenate(xs)[order]

    def items(self, weight):
        return np.array_split(weight, self.rounds.num_items, axis=1)

    def column(self, xs, names, params):
        return {name: self.row(xs, name, params) for name in names}

    def row(self, ys, name, params):
        result = streamed_product(self.rounds, ys, self.items(params[name]))
        self.received["linear"] += result.num_received
        return result.outputs

    def row_backward(self, ys, dzs, name, params):
        found = streamed_product_gradients(self.rounds, ys, self.items(params[name]), dzs)
        self.received["linear"] += found.num_received
        return found.stationary, {name: np.concatenate(found.streamed, axis=1)}

    def column_backward(self, xs, dys, params):
        found = [self.row_backward(xs, dy, name, params) for name, dy in dys.items()]
        dx = [sum(each) for each in zip(*(dxs for dxs, _ in found), strict=True)]
        return dx, {name: g for _, gradient in found for name, g in gradient.items()}

    def keys_values(self, qkv):
        """Return what each item of keys and values holds: (2, heads, tokens, size)."""
        items = []
        for member in range(self.rounds.num_members):
            pair = np.stack([split_heads(qkv[n][member], self.shape.kv_heads) for n in ("k", "v")])
            mine = [t for j, t in enumerate(self.item_tokens) if self.rounds.home(j) == member]
            items += np.split(pair, np.cumsum([len(t) for t in mine])[:-1], axis=2)
        return items

    def split_attention(self, qkv):
        queries = [split_heads(q, self.shape.heads) for q in qkv["q"]]
        return SplitAttention(
            self.rounds, queries, self.keys_values(qkv), self.tokens, self.item_tokens
        )

    def attend(self, qkv):
        self.result = self.split_attention(qkv).forward()
        self.received["attention"] += self.result.num_received
        return [join_heads(out) for out in self.result.outputs]

    def attend_backward(self, qkv, dos):
        douts = [split_heads(do, self.shape.heads) for do in dos]
        found = self.split_attention(qkv).backward(self.result, douts)
        sums = found.keys_values
        self.received["attention backward"] += sums.num_received_items + sums.num_received_sums
        self.num_exchange_rounds = sums.num_rounds
        parts = self.rounds.num_parts
        pairs = [
            np.concatenate(sums.sums[i * parts : (i + 1) * parts], axis=2)
            for i in range(self.rounds.num_members)
        ]
        return {
            "q": [join_heads(dq) for dq in found.queries],
            "k": [join_heads(pair[0]) for pair in pairs],
            "v": [join_heads(pair[1]) for pair in pairs],
        }


class InputStreamed(WeightStreamed):
    """Tokens split at rest; they stream through column layers, row layers stream their sums.

    Heads and inner columns are split, so attention is local; a member that has queries of a
    key-value head has (a replica of) that head.
    """

    def columns_of(self, name, member):
        """Return the columns of a column layer (the rows of a row layer) that a member has."""
        members, shape = self.rounds.num_members, self.shape
        if name in ("up", "gate", "down"):
            return np.array_split(np.arange(shape.ffn), members)[member]
        heads = np.array_split(np.arange(shape.heads), members)[member]
        if name in ("k", "v"):
            heads = np.unique(heads // (shape.heads // shape.kv_heads))
        return (heads[:, None] * shape.head_size + np.arange(shape.head_size)).ravel()

    def shards(self, name, params):
        cut = [self.columns_of(name, i) for i in range(self.rounds.num_members)]
        weight = params[name]
        return [weight[index] if name in ("o", "down") else weight[:, index] for index in cut]

    def joined(self, name, gradients, params):
        """Return the gradient of a whole weight; those of replicas add up."""
        whole = np.zeros_like(params[name])
        for member, gradient in enumerate(gradients):
            index = self.columns_of(name, member)
            where = index if name in ("o", "down") else (slice(None), index)
            whole[where] += gradient
        return whole

    def item_rows(self, xs):
        """Return the tokens of each item, from those of each member."""
        rows = []
        for member, x in enumerate(xs):
            mine = [t for j, t in enumerate(self.item_tokens) if self.rounds.home(j) == member]
            rows += np.split(x, np.cumsum([len(t) for t in mine])[:-1])
        return rows

    def member_rows(self, items):
        parts = self.rounds.num_parts
        return [
            np.concatenate(items[i * parts : (i + 1) * parts])
            for i in range(self.rounds.num_members)
        ]

    def fused(self, names, params):
        """Return the column layers that share an input, side by side at each member."""
        shards = [self.shards(name, params) for name in names]
        return [np.concatenate(mine, axis=1) for mine in zip(*shards, strict=True)]

    def column(self, xs, names, params):
        stationary = [w.T for w in self.fused(names, params)]
        streamed = [x.T for x in self.item_rows(xs)]
        result = streamed_product(self.rounds, stationary, streamed)
        self.received["linear"] += result.num_received
        cut = [np.split(out.T, self.borders(names, i), 1) for i, out in enumerate(result.outputs)]
        return dict(zip(names, map(list, zip(*cut, strict=True)), strict=True))

    def borders(self, names, member):
        return np.cumsum([len(self.columns_of(name, member)) for name in names])[:-1]

    def column_backward(self, xs, dys, params):
        names = list(dys)
        found = streamed_product_gradients(
            self.rounds,
            [w.T for w in self.fused(names, params)],
            [x.T for x in self.item_rows(xs)],
            [np.concatenate(mine, axis=1).T for mine in zip(*dys.values(), strict=True)],
        )
        self.received["linear"] += found.num_received
        cut = [np.split(g.T, self.borders(names, i), 1) for i, g in enumerate(found.stationary)]
        gradients = {
            name: self.joined(name, [mine[k] for mine in cut], params)
            for k, name in enumerate(names)
        }
        return self.member_rows([dx.T for dx in found.streamed]), gradients

    def row(self, ys, name, params):
        lengths = [len(tokens) for tokens in self.item_tokens]
        result = reduced_product(self.rounds, ys, self.shards(name, params), lengths)
        self.received["linear"] += result.num_received
        return self.member_rows(result.outputs)

    def row_backward(self, ys, dzs, name, params):
        found = reduced_product_gradients(
            self.rounds, ys, self.shards(name, params), self.item_rows(dzs)
        )
        self.received["linear"] += found.num_received
        return found.streamed, {name: self.joined(name, found.stationary, params)}

    def heads_of(self, name, block):
        return split_heads(block, block.shape[1] // self.shape.head_size)

    def attend(self, qkv):
        order = np.concatenate(self.item_tokens)
        heads = zip(*([self.heads_of(n, b) for b in qkv[n]] for n in "qkv"), strict=True)
        return [join_heads(attention(q, k, v, order)) for q, k, v in heads]

    def attend_backward(self, qkv, dos):
        order = np.concatenate(self.item_tokens)
        heads = zip(*([self.heads_of(n, b) for b in qkv[n]] for n in "qkv"), dos, strict=True)
        found = [attention(q, k, v, order, split_heads(do, len(q))) for q, k, v, do in heads]
        return {n: [join_heads(each[k]) for each in found] for k, n in enumerate("qkv")}
