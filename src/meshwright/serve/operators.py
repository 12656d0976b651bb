"""One forward pass of prefill or decode on one device: by operator, then by layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import reduce
from operator import add

import numpy as np

from meshwright.base.arrays import Num, ceil_div, larger, positive_part, smaller, where
from meshwright.cost.communication import CommCost, Windows
from meshwright.cost.layer import op_cost
from meshwright.cost.operator import (
    SCAN_KERNELS,
    DeviceRates,
    attention_s,
    exposed_launch_s,
    index_score_flops,
    local_scan,
    matmul_compute_s,
    matmul_shape,
    scan_bytes,
    traffic_s,
)
from meshwright.graph.op import LayerGraph, Op, OpKind, Tensor
from meshwright.graph.recurrence import STATE_WORD_BYTES, kept_words, scan_flops_per_token
from meshwright.sharding.local_sizes import LocalLayer
from meshwright.spec.calibration import NEUTRAL, ServingConstantsOf
from meshwright.spec.model import AttentionSpec, WeightFormat

LEAST_ROWS = 8.0
"""Rows to which a small product is padded: the short side of an instruction of tensor cores."""


@dataclass(frozen=True)
class PassShape:
    """One forward pass: new and cached tokens of each sequence, and the word bytes of both.

    Tokens are numbers, or columns of passes: all of them find a cache, or none does.
    """

    new_tokens: Num
    """Tokens of each sequence that pass through the model: the prompt, or one."""
    past_tokens: Num
    """Tokens of each sequence with keys and values in the cache."""
    weight_word_bytes: float
    """Bytes of one resident weight of a linear layer or an expert."""
    cache_word_bytes: float
    """Bytes of one word of the key-value cache."""
    kept_tokens: Num = 0.0
    """Tokens of each sequence for which the cache has room: its full length."""
    answered_share: Num = 1.0
    """Share of the sequences that get logits: the others end in a later pass."""
    constants: ServingConstantsOf[Num] = NEUTRAL
    """Constants of the kernels and of the server."""
    weight_format: WeightFormat | None = None
    """Format of a quantised checkpoint, in place of ``weight_word_bytes``."""

    def stored_bytes(self, op: Op, rates: DeviceRates) -> float:
        """Return the bytes of a resident weight of an operator of a layer."""
        if self.weight_format is None:
            return self.weight_word_bytes
        if op.kind is not OpKind.MATMUL:
            return rates.activation_bytes
        return self.weight_format.bytes_of(op.region, rates.activation_bytes)

    def wide_share(self, op: Op) -> float:
        """Return the share of the layers that store and multiply an operator's weights wide."""
        shares = {} if self.weight_format is None else self.weight_format.wide_shares
        return {str(name): share for name, share in shares.items()}.get(op.region, 0.0)

    @property
    def unpacks(self) -> bool:
        """Whether a separate kernel widens weights before each product."""
        return self.weight_format is not None and self.weight_format.unpacks

    @property
    def reads_cache(self) -> bool:
        """Whether sequences find a cache."""
        return bool(np.all(self.past_tokens > 0))


@dataclass(frozen=True)
class ForwardCost:
    """Cost of one operator in a forward pass on one device; missing parts are 0.0."""

    matmul_compute_s: Num = 0.0
    """Time of matrix products that arithmetic limits [s]."""
    matmul_memory_s: Num = 0.0
    """Time of matrix products that reading weights and activations limits [s]."""
    attention_s: Num = 0.0
    elementwise_s: Num = 0.0
    flops: Num = 0.0
    traffic_bytes: Num = 0.0
    num_kernels: Num = 1.0

    @property
    def busy_s(self) -> Num:
        """Seconds of the operator on the device."""
        return self.matmul_compute_s + self.matmul_memory_s + self.attention_s + self.elementwise_s


def forward_cost(op: Op, layer: LocalLayer, rates: DeviceRates, shape: PassShape) -> ForwardCost:
    """Return the price of one operator in a forward pass."""
    if op.kind is OpKind.MATMUL:
        return _matmul_forward(op, layer, rates, shape)
    if op.kind is OpKind.ATTENTION:
        return _attention_forward(op, layer, rates, shape)
    if op.kind is OpKind.RECURRENCE:
        return _scan_forward(op, layer, rates, shape)
    cost = op_cost(op, layer, rates, None, causal=True)
    return ForwardCost(elementwise_s=cost.forward_s, traffic_bytes=cost.forward_traffic_bytes)


def _matmul_forward(op: Op, layer: LocalLayer, rates: DeviceRates, shape: PassShape) -> ForwardCost:
    """Return a matrix product: the slower of its arithmetic and of reading its operands."""
    count, rows, inner, columns = matmul_shape(op, layer)
    if op.is_grouped:
        count, rows = experts_at_work(layer)
    is_logits = "vocab" in op.output.dims
    wide = 1.0 if is_logits else shape.wide_share(op)
    rate = 1.0 / (wide / rates.logits_flops_per_s + (1.0 - wide) / rates.matmul_flops_per_s)
    if op.is_grouped:
        rate = rate * where(count > 1.0, shape.constants.expert_rate_share, 1.0)
    rate = rate * shape.constants.prompt_rate_share
    word: Num = rates.activation_bytes if is_logits else shape.stored_bytes(op, rates)
    widened: Num = 0.0
    if shape.unpacks and not is_logits:
        # A copy is made for the product, except for a single row.
        is_copied = rows > 1
        widened = is_copied * count * inner * columns * (word + rates.activation_bytes)
        word = where(is_copied, rates.activation_bytes, word)
    compute_s = product_compute_s(
        count, rows, inner, columns, rate, rates, shape.constants.few_rows_rate_share
    )
    activations = rates.activation_bytes * rows * (inner + columns)
    traffic = count * (word * inner * columns + activations)
    read_share = shape.constants.weight_read_share
    if op.is_grouped:
        read_share = read_share * shape.constants.expert_read_share
    memory_s = traffic / (rates.memory_bytes_per_s * read_share)
    is_compute_bound = compute_s > memory_s
    return ForwardCost(
        matmul_compute_s=where(is_compute_bound, compute_s, 0.0),
        matmul_memory_s=where(is_compute_bound, 0.0, memory_s),
        elementwise_s=traffic_s(widened, rates),
        flops=2.0 * count * rows * inner * columns,
        traffic_bytes=traffic + widened,
        num_kernels=1.0 + (widened > 0),
    )


def product_compute_s(
    count: Num, rows: Num, inner: Num, columns: Num, rate: Num, rates: DeviceRates,
    few_rows_share: Num = 1.0,
) -> Num:  # fmt: skip
    """Return the arithmetic seconds of ``count`` products, also of products with few rows.

    Products of at least one tile of rows and one wave of tiles are charged whole waves. Smaller
    ones are cut along columns and inner size so that all cores have work, and their rows are
    padded to ``LEAST_ROWS`` only: 2 count padded(rows) inner columns / (share x rate).

    Valid for: small products that memory limits, as those of decode; a lower bound elsewhere.
    """
    padded = LEAST_ROWS * ceil_div(rows, LEAST_ROWS)
    few_s = 2.0 * count * padded * inner * columns / (rate * few_rows_share)
    many_s = matmul_compute_s(count, rows, inner, columns, rate, rates)
    tiles = count * ceil_div(rows, rates.tile_rows) * ceil_div(columns, rates.tile_columns)
    fills = (rows >= rates.tile_rows) & (tiles >= rates.num_cores)
    return where(fills, many_s, few_s)


def experts_at_work(layer: LocalLayer) -> tuple[Num, Num]:
    """Return the routed experts that a device computes in a pass, and the rows of each.

    t tokens that each choose k of E experts evenly hit E (1 - (1 - k/E)^t) of them on average, and
    a device that holds a share of the experts computes that share: weights of the others are not
    read. The busiest rank is priced: with at least one token, one expert and one row.

    Assumes: an even router, times the stated load of the busiest rank over the mean.
    """
    held, total = layer.size("experts"), float(layer.sizes["experts"])
    chosen = float(layer.sizes["top_k"])
    mean_tokens = layer.routed_rows * total / (held * chosen)
    tokens = larger(mean_tokens, 1.0)
    hit = larger(held * hit_fraction(chosen / total, tokens), 1.0)
    rows = larger(tokens * chosen * held / total, 1.0)
    return hit, larger(rows / hit, 1.0)


def hit_fraction(probability: float, num_draws: Num) -> Num:
    """Return the chance that an expert is chosen by any of some tokens: 1 - (1 - p)^t [1].

    Few numbers of tokens occur in a column, so each is computed once, as a plain number.
    """
    values, inverse = np.unique(np.asarray(num_draws, dtype=float), return_inverse=True)
    if probability >= 1.0:
        return np.ones(np.shape(num_draws))[()]
    hits = np.array([-math.expm1(t * math.log1p(-probability)) for t in values.tolist()])
    return hits[inverse].reshape(np.shape(num_draws))[()]


def mean_keys_seen(new_tokens: Num, past_tokens: Num, window: float | None) -> Num:
    """Return the mean number of keys that a new token sees, itself included [tokens].

    Token i of s new ones behind c old ones sees min(c + i, w): with n of them below the window,
    (n c + n (n + 1) / 2 + (s - n) w) / s.
    """
    if window is None:
        return past_tokens + (new_tokens + 1.0) / 2.0
    below = smaller(positive_part(window - past_tokens), new_tokens)
    seen = below * past_tokens + below * (below + 1.0) / 2.0 + (new_tokens - below) * window
    return seen / new_tokens


def cached_tokens(num_tokens: Num, window: float | None) -> Num:
    """Return the tokens of one sequence that a layer keeps in its cache: no more than a window."""
    return num_tokens if window is None else smaller(num_tokens, float(window))


def cached_words_per_token(spec: AttentionSpec, layer: LocalLayer) -> Num:
    """Return the words that one device keeps for one token of one layer.

    Key and value heads are split over tp as far as there are heads; beyond, each is held by
    several ranks. The latent of MLA has no heads: every rank of tp holds it whole. Keys of an index
    are left out.
    """
    if spec.kind == "mla":
        return float((spec.kv_rank or 0) + spec.rope_head_size) + 0.0 * layer.degrees.tp
    return layer.size("key") + layer.size("value") * (not spec.caches_once)


def cached_words(spec: AttentionSpec, layer: LocalLayer, num_tokens: Num, cp: Num = 1.0) -> Num:
    """Return the words that one device keeps for some tokens of a sequence, of one layer.

    Those in the window, an entry for each stride, and the keys of an index, which have no heads:
    every rank of tp holds them whole. A layer that shares the cache of another keeps nothing.
    """
    if spec.shares_cache:
        return 0.0 * num_tokens
    kept = cached_tokens(num_tokens, spec.window)
    entries = num_tokens / float(spec.stride or 1)
    kept = kept + (entries if spec.stride is not None else 0.0)
    words = cached_words_per_token(spec, layer) * ceil_div(kept, cp)
    return words + float(spec.index_head_size) * ceil_div(entries, cp)


def flops_per_score(spec: AttentionSpec, *, reads_cache: bool) -> float:
    """Return the FLOPs of a query head for each key: score and weighted sum [FLOP].

    MLA on cached latents multiplies queries and results by the up-projections instead of the keys
    and values, so that both sides have the rank of the latent.
    Source: DeepSeek-AI 2024 (arXiv 2405.04434), section 2.1.2 (absorbed projections).
    """
    if spec.kind == "mla" and reads_cache:
        return 2.0 * (2.0 * (spec.kv_rank or 0) + spec.rope_head_size)
    return 2.0 * (spec.head_size + spec.rope_head_size + spec.value_head_size)


def _attention_forward(
    op: Op, layer: LocalLayer, rates: DeviceRates, shape: PassShape
) -> ForwardCost:
    """Return the attention core over cache and new tokens: arithmetic or traffic, the slower one.

    The cache of all sequences is read once, and the new keys and values are written into it. Of
    tokens that an index chooses each query reads its own; the index reads its keys of all.
    """
    spec = op.attention
    assert spec is not None
    keys = mean_keys_seen(shape.new_tokens, shape.past_tokens, spec.most_keys)
    stride = float(spec.stride or 1)
    joined: Num = 0.0
    if spec.stride is not None:
        past = shape.past_tokens / stride
        keys = keys + mean_keys_seen(shape.new_tokens / stride, past, spec.chosen_keys)
        joined = cached_tokens(past, spec.chosen_keys)
    per_score = flops_per_score(spec, reads_cache=shape.reads_cache)
    flops = layer.tokens * keys * layer.size("query_heads") * per_score
    if spec.index_heads:
        all_keys = mean_keys_seen(shape.new_tokens / stride, shape.past_tokens / stride, None)
        flops = flops + layer.tokens * all_keys * index_score_flops(spec)
    width = sum((layer.width(tensor) for tensor in op.inputs), layer.width(op.output))
    words, of_index = cached_words_per_token(spec, layer), float(spec.index_head_size)
    sequences = layer.degrees.micro_batch_size
    seen = cached_tokens(shape.past_tokens, spec.most_keys) + joined
    read = sequences * (seen * words + shape.past_tokens / stride * of_index)
    cache = shape.cache_word_bytes * read
    own = (words + of_index) * (not spec.shares_cache)
    written = shape.cache_word_bytes * layer.tokens * own
    moved = written + rates.activation_bytes * layer.tokens * width
    memory_s = cache_read_s(cache, layer, rates, shape) + moved / rates.memory_bytes_per_s
    materialised = op.words_per_element[0] * score_bytes(op, layer, rates, shape)
    core_flops_per_s = rates.attention_forward_flops_per_s * shape.constants.attention_rate_share
    if spec.kind == "mla" and shape.reads_cache:
        core_flops_per_s = core_flops_per_s * shape.constants.latent_rate_share
    return ForwardCost(
        attention_s=larger(flops / core_flops_per_s, memory_s) + traffic_s(materialised, rates),
        flops=flops,
        traffic_bytes=cache + moved + materialised,
        num_kernels=2.0 if op.moved is None else 5.0,
    )


def _scan_forward(op: Op, layer: LocalLayer, rates: DeviceRates, shape: PassShape) -> ForwardCost:
    """Return a scan that starts from the states of all sequences and leaves new ones.

    States are written once, and read once where sequences have any; so are the last inputs of the
    convolution. A single token has no chunks: its kernel updates the state in one go.
    """
    scan = local_scan(op, layer, shape.new_tokens)
    flops = layer.tokens * scan_flops_per_token(scan)
    trips = 2.0 if shape.reads_cache else 1.0
    states = trips * layer.degrees.micro_batch_size * state_bytes(op, layer, rates.activation_bytes)
    width = sum((layer.width(tensor) for tensor in op.inputs), layer.width(op.output))
    moved = where(
        scan.chunk > 1.0,
        scan_bytes(op, layer, scan, rates),
        layer.tokens * rates.activation_bytes * width,
    )
    return ForwardCost(
        attention_s=attention_s(
            flops, rates.attention_forward_flops_per_s, states + moved, rates
        ).time_s,
        flops=flops,
        traffic_bytes=states + moved,
        num_kernels=where(scan.chunk > 1.0, SCAN_KERNELS[scan.spec.kind][0], 1.0),
    )


def state_bytes(op: Op, layer: LocalLayer, activation_bytes: float) -> Num:
    """Return the state that a device keeps for a scan of one sequence of any length [bytes]."""
    spec = op.recurrence
    assert spec is not None
    states, last_inputs = kept_words(spec, layer.size("inner"), layer.size("state_key"))
    return STATE_WORD_BYTES * states + activation_bytes * last_inputs


def cache_read_s(cache_bytes: Num, layer: LocalLayer, rates: DeviceRates, shape: PassShape) -> Num:
    """Return the seconds in which attention reads the cache of all sequences.

    bytes (1 + extra (1 - 1/g)) / rate with g query heads to a key head, which read it again in
    part; at least bytes / (readers x rate of one core), where one core reads a head of a sequence.
    """
    constants = shape.constants
    key_heads = larger(layer.size("key") * layer.sizes["kv_heads"] / layer.sizes["key"], 1.0)
    sharing = larger(layer.size("query_heads") / key_heads, 1.0)
    again = 1.0 + constants.shared_cache_extra * (1.0 - 1.0 / sharing)
    rate = rates.memory_bytes_per_s * constants.cache_read_share
    readers = layer.degrees.micro_batch_size * key_heads
    pulled = rates.memory_bytes_per_s / rates.num_cores * constants.core_pull * readers
    return larger(cache_bytes * again / rate, cache_bytes / pulled)


def score_bytes(op: Op, layer: LocalLayer, rates: DeviceRates, shape: PassShape) -> Num:
    """Return the bytes of a score matrix that reaches memory: none with flash attention."""
    if not op.is_materialized_attention:
        return 0.0
    keys = shape.past_tokens + shape.new_tokens
    return rates.activation_bytes * layer.tokens * keys * layer.size("query_heads")


_TRANSIENT = "working_bytes"


@dataclass(frozen=True)
class PassTimes:
    """Parts of the time of a forward pass; numbers or columns."""

    matmul_compute_s: Num
    """Time of matrix products that arithmetic limits [s]."""
    matmul_memory_s: Num
    """Time of matrix products that memory traffic limits [s]."""
    attention_s: Num
    elementwise_s: Num
    launch_s: Num
    """Time added by launches and by starts of kernels [s]."""
    reduction_s: Num
    """Time of waiting at sums over the cores of a chip, one after another [s]."""
    mesh_s: Num
    """Time of these sums on the links between the cores [s]."""
    tp_comm_s: Num
    cp_comm_s: Num
    ep_comm_s: Num

    @property
    def total_s(self) -> Num:
        """Sum of the parts [s]."""
        names = [entry.name for entry in fields(self) if entry.name.endswith("_s")]
        total: Num = reduce(add, [getattr(self, name) for name in names])
        return total


@dataclass(frozen=True)
class PassCost(PassTimes):
    """A forward pass through one layer (or an edge) on one device; numbers or columns."""

    flops: Num
    """Executed FLOPs [FLOP]."""
    traffic_bytes: Num
    """Traffic of the main memory [bytes]."""
    link_bytes: Num
    """Bytes sent by the device inside the stage [bytes]."""
    working_bytes: Num
    """Largest transient of an operator [bytes]."""
    weight_bytes: Num
    """Resident weights [bytes]."""
    cache_bytes: Num
    """Key-value cache of one sequence at full length, and its states [bytes]."""


PASS_PARTS = tuple(entry.name for entry in fields(PassCost))
PASS_TIME_PARTS = tuple(entry.name for entry in fields(PassTimes))


def sum_of_passes(costs: Sequence[PassCost], counts: Sequence[Num]) -> PassCost:
    """Return ``counts[k]`` passes of each kind k, one by one; the largest transient stays."""
    totals: dict[str, Num] = {}
    for name in PASS_PARTS:
        largest = name == _TRANSIENT
        weights = [(count > 0) * 1.0 for count in counts] if largest else counts
        terms = [getattr(cost, name) * weight for cost, weight in zip(costs, weights, strict=True)]
        totals[name] = reduce(larger if largest else add, terms)
    return PassCost(**totals)


ATTENTION_SUMS = 3
"""Scores over the head, their normaliser over the keys, the values over the keys."""


def dependent_sums(layer: LayerGraph) -> int:
    """Return the number of sums over the cores of a chip that wait for one another in a layer.

    The longest chain of its operators: norms, products, attention and routing sum over cores; the
    other operators work where their operands are.
    """
    depth: dict[str, int] = {}
    for op in layer.ops:
        sums = ATTENTION_SUMS if op.attention else int(bool(op.contracted))
        sums = max(sums, op.kind is OpKind.ROUTE)
        reached = sums + max((depth.get(tensor.name, 0) for tensor in op.inputs), default=0)
        depth |= {tensor.name: reached for tensor in op.outputs}
    return max(depth.values(), default=0)


def layer_forward(
    layer: LayerGraph, local: LocalLayer, rates: DeviceRates, shape: PassShape
) -> tuple[ForwardCost, Windows]:
    """Return all operators of a layer added up, and the windows that communication overlaps."""
    costs = [(op, forward_cost(op, local, rates, shape)) for op in layer.ops]
    total = ForwardCost(
        **{f.name: reduce(add, [getattr(c, f.name) for _, c in costs]) for f in fields(ForwardCost)}
    )
    core_s: Num = 0.0
    matmul_s: Num = 0.0
    for op, cost in costs:
        core_s = core_s + cost.busy_s if op.kind is OpKind.ATTENTION else core_s
        matmul_s = matmul_s + cost.busy_s if op.kind is OpKind.MATMUL else matmul_s
    return total, Windows(core_s, 0.0, matmul_s)


def pass_cost(
    total: ForwardCost, comm: CommCost, rates: DeviceRates, working_bytes: Num, weight_bytes: Num,
    cache_bytes: Num, reduction_s: Num, mesh_s: Num, kernel_start_s: Num, zero: Num,
) -> PassCost:  # fmt: skip
    """Return the pass through one layer; ``zero`` gives every part the length of the columns."""
    starts_s = kernel_start_s * total.num_kernels
    return PassCost(
        matmul_compute_s=total.matmul_compute_s + zero,
        matmul_memory_s=total.matmul_memory_s + zero,
        attention_s=total.attention_s + zero,
        elementwise_s=total.elementwise_s + zero,
        launch_s=exposed_launch_s(total.busy_s, total.num_kernels, rates) + starts_s + zero,
        reduction_s=reduction_s + zero,
        mesh_s=mesh_s + zero,
        tp_comm_s=comm.tp_s + zero,
        cp_comm_s=comm.cp_s + zero,
        ep_comm_s=comm.ep_s + zero,
        flops=total.flops + zero,
        traffic_bytes=total.traffic_bytes + zero,
        link_bytes=comm.link_bytes + zero,
        working_bytes=working_bytes + zero,
        weight_bytes=weight_bytes + zero,
        cache_bytes=cache_bytes + zero,
    )


def host_s(constants: ServingConstantsOf[Num], num_sequences: Num) -> Num:
    """Return the time of the server outside the kernels of a pass [s]."""
    return constants.host_step_s + constants.host_sequence_s * num_sequences


def host_of_prompt_s(constants: ServingConstantsOf[Num], prompt_tokens: Num) -> Num:
    """Return the server's own time for a request until its first token [s].

    Cached tokens of the prompt count: the server reads the text before it looks for them.
    """
    return constants.host_prompt_s + constants.host_token_s * prompt_tokens


def live_bytes(op: Op, local: LocalLayer, rates: DeviceRates, shape: PassShape) -> Num:
    """Return the bytes of the inputs and outputs of an operator, which live together [bytes]."""

    def size(tensor: Tensor) -> Num:
        word = rates.activation_bytes if tensor.word_bytes is None else tensor.word_bytes
        rows = local.routed_rows if "routed_tokens" in tensor.dims else local.rows_of(op)
        return word * rows * local.width(tensor)

    scores = score_bytes(op, local, rates, shape)
    return scores + sum(size(tensor) for tensor in (*op.inputs, *op.outputs))
