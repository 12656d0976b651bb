"""The operators of a recurrent layer, the arithmetic of its scan, and the state that it keeps.

All kinds project a gate, values, keys, queries and numbers for each head; a short convolution runs
over values, keys and queries; the scan works by chunks; a norm with the gate and a projection
follow. A state space reads and writes its state by queries and keys; the delta rules first
subtract from each value the one that the state already holds for its key. A short convolution
alone has no scan: it runs over values times keys, and its gate multiplies the result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshwright.base.arrays import Num, smaller
from meshwright.graph.common import product_op
from meshwright.graph.op import Op, OpKind, Tensor
from meshwright.spec.model import RecurrenceSpec

RECURRENCE = "recurrence"
"""Region of the graph."""
STATE_WORD_BYTES = 4.0
"""States are kept in FP32: the whole of a text is summed up in them."""
_STEPS = {"mamba2": ("step",), "gated_delta": ("decay", "write"), "kda": ("write",)}
"""Numbers for each token and head: the time step, or the decay and the strength of writing."""
_HEADS, _CHANNELS = "inner_heads", "state_key"
_VECTORS = {
    "mamba2": {"decay_rate": _HEADS, "step_bias": _HEADS, "skip": _HEADS},
    "gated_delta": {"decay_rate": _HEADS, "step_bias": _HEADS},
    "kda": {"decay_rate": _HEADS, "step_bias": _CHANNELS},
}
"""Learned numbers of each head, or of each channel of the keys."""


def recurrence_sizes(spec: RecurrenceSpec) -> dict[str, int]:
    """Return the sizes of the dims of a recurrence."""
    return {
        "inner": spec.num_heads * spec.head_size,
        "inner_heads": spec.num_heads,
        "inner_head_size": spec.head_size,
        "state_key": spec.num_groups * spec.state_size,
        "state_groups": spec.num_groups,
        "conv": spec.conv_size,
        "chunk": spec.chunk_size,
        **({"gate_rank": spec.gate_rank} if spec.gate_rank else {}),
    }


def recurrence_ops(spec: RecurrenceSpec, source: Tensor) -> tuple[list[Op], tuple[Tensor]]:
    """Return the operators from the normalised input to the output projection, and its output.

    Source: Dao and Gu 2024 (arXiv 2405.21060), section 7.1 and figure 6; Yang et al. 2024
    (arXiv 2412.06464), section 3.3 and figure 1; Kimi Team 2025 (arXiv 2510.26692), section 4.
    """
    gate = Tensor("recurrence.gate", ("tokens", "inner"))
    value = Tensor("recurrence.value", ("tokens", "inner"))
    key = Tensor("recurrence.key", ("tokens", "state_key"))
    output = Tensor("recurrence.output", ("tokens", "hidden"))
    made: tuple[Tensor, ...] = (gate, value, key)
    if spec.kind == "short_conv":
        ops = [product_op("recurrence.input", source, made, RECURRENCE, bias=spec.bias)]
        ops.append(_short_convolution(spec, made))
    else:
        query = Tensor("recurrence.query", ("tokens", "state_key"))
        steps = tuple(
            Tensor(f"recurrence.{name}", ("tokens", "inner_heads")) for name in _STEPS[spec.kind]
        )
        made = (value, key, query, *steps)
        if spec.kind == "kda":
            ops, (decay, gate) = _low_rank_gates(source, gate)
            ops.insert(0, product_op("recurrence.input", source, made, RECURRENCE))
            steps = (decay, *steps)
        else:
            made = (gate, *made)
            ops = [product_op("recurrence.input", source, made, RECURRENCE, bias=spec.bias)]
        conv = _convolution(spec, (value, key, query))
        scan = _scan(spec, conv.outputs, steps)
        ops += [conv, scan, _gated_norm(spec, scan.output, gate)]
    heads, bias = ops[-1].output, spec.bias
    ops.append(product_op("recurrence.output", heads, (output,), RECURRENCE, bias=bias))
    return ops, (output,)


def _low_rank_gates(source: Tensor, gate: Tensor) -> tuple[list[Op], tuple[Tensor, Tensor]]:
    """Return the products that make the decay of each channel and the gate, and both.

    Source: Kimi Team 2025 (arXiv 2510.26692), section 4.
    """
    ops, decay = [], Tensor("recurrence.decay", ("tokens", "state_key"))
    for wide in (decay, gate):
        low = Tensor(f"{wide.name}_down", ("tokens", "gate_rank"))
        ops.append(product_op(low.name, source, (low,), RECURRENCE))
        ops.append(product_op(f"{wide.name}_up", low, (wide,), RECURRENCE))
    return ops, (decay, gate)


def _short_convolution(spec: RecurrenceSpec, parts: tuple[Tensor, ...]) -> Op:
    """Return the convolution of values times keys, times the gate, as one kernel.

    Forward reads three rows and writes one; backward reads these and a gradient and writes three.
    Source: Liquid AI 2025 (arXiv 2511.23404), section 2.
    """
    taps = Tensor("recurrence.taps", ("conv", "inner"))
    bias = (Tensor("recurrence.taps.bias", ("inner",)),) if spec.conv_bias else ()
    return Op(
        name="recurrence.conv",
        kind=OpKind.ELEMENTWISE,
        inputs=parts,
        output=Tensor("recurrence.convolved", ("tokens", "inner")),
        weights=(taps, *bias),
        saved=parts,
        words_per_element=(4.0, 7.0),
        recurrence=spec,
        region=RECURRENCE,
    )


def _convolution(spec: RecurrenceSpec, sources: tuple[Tensor, ...]) -> Op:
    """Return the convolution of each channel over the last tokens, with its activation function.

    Forward reads and writes once; backward reads input and gradient and writes one gradient. The
    kernels of Mamba 2 do not keep its result, so that their backward pass first makes it again.
    Source: state-spaces/mamba, ``mamba_split_conv1d_scan_combined``.
    """
    value, *others = (Tensor(f"{source.name}.convolved", source.dims) for source in sources)
    weights = [Tensor(f"{source.name}.taps", ("conv", source.dims[-1])) for source in sources]
    if spec.conv_bias:
        weights += [Tensor(f"{source.name}.taps.bias", source.dims[-1:]) for source in sources]
    return Op(
        name="recurrence.conv",
        kind=OpKind.ELEMENTWISE,
        inputs=sources,
        output=value,
        other_outputs=tuple(others),
        weights=tuple(weights),
        saved=sources,
        words_per_element=(2.0, 5.0 if spec.kind == "mamba2" else 3.0),
        region=RECURRENCE,
    )


def _scan(spec: RecurrenceSpec, mixed: tuple[Tensor, ...], steps: tuple[Tensor, ...]) -> Op:
    """Return the scan over the chunks of each sequence.

    States of chunks are made again in the backward pass. The delta rule keeps its inputs, and for
    each chunk the inverse of the matrix by which its tokens act on each other. Source:
    state-spaces/mamba, ``_mamba_chunk_scan_combined_bwd``; flash-linear-attention,
    ``chunk_gated_delta_rule``.
    """
    kept = steps
    if spec.kind != "mamba2":
        inverse = Tensor("recurrence.inverse", ("tokens", "inner_heads", "chunk"))
        kept = (*mixed, *steps, inverse)
    return Op(
        name="recurrence.scan",
        kind=OpKind.RECURRENCE,
        inputs=(*mixed, *steps),
        output=Tensor("recurrence.scan", ("tokens", "inner")),
        weights=tuple(
            Tensor(f"recurrence.{name}", (dim,)) for name, dim in _VECTORS[spec.kind].items()
        ),
        saved=kept,
        recurrence=spec,
        region=RECURRENCE,
    )


def _gated_norm(spec: RecurrenceSpec, source: Tensor, gate: Tensor) -> Op:
    """Return the norm over each group, or each head of the delta rule, times the gate.

    Forward reads both and writes once; backward reads both and a gradient and writes two. Groups
    are whole on a device; a single one is the whole row.
    """
    is_head = spec.kind != "mamba2"
    weight = Tensor("recurrence.gated_norm.weight", ("inner_head_size" if is_head else "inner",))
    gated = Op(
        name="recurrence.gated_norm",
        kind=OpKind.NORM,
        inputs=(source, gate),
        output=Tensor("recurrence.gated_norm", source.dims),
        weights=(weight,),
        contracted=("inner",) if not is_head and spec.num_groups == 1 else (),
        saved=(source, gate),
        words_per_element=(3.0, 5.0),
        region=RECURRENCE,
    )
    if spec.output_norm:
        return gated
    return replace(gated, kind=OpKind.ELEMENTWISE, weights=(), contracted=())


@dataclass(frozen=True)
class Scan:
    """The scan of one token: heads and groups of a device, or of all; numbers or columns."""

    spec: RecurrenceSpec
    sequence_length: Num
    """Tokens of one sequence [tokens]."""
    num_heads: Num
    num_groups: Num

    @classmethod
    def whole(cls, spec: RecurrenceSpec, sequence_length: Num) -> Scan:
        """Return the scan over all heads and groups."""
        return cls(spec, sequence_length, float(spec.num_heads), float(spec.num_groups))

    @property
    def chunk(self) -> Num:
        """Tokens of a chunk, which is no longer than the sequence [tokens]."""
        return smaller(float(self.spec.chunk_size), self.sequence_length)

    @property
    def state_words(self) -> Num:
        """Words of the states of one sequence."""
        return self.num_heads * float(self.spec.state_size * self.spec.head_size)


def scan_flops_per_token(scan: Scan, seen: float = 1.0) -> Num:
    """Return the forward FLOPs of a scan for one token [FLOP].

    With H heads of P, G groups of N and chunks of C tokens, of which a token sees c:

    * ``mamba2``: scores of queries and keys 2 c G N, their sum of values 2 c H P, the state of a
      chunk 2 H N P, its result 2 H N P, and passing it to the next chunk 2 H N P / C.
    * ``gated_delta``, ``kda``: for each head products of keys with keys and with queries 4 c N, the
      inverse of the unit triangle of a chunk C^2 / 3, its products with keys and values
      2 c (N + P), the values in the state 2 N P, the sum of new values 2 c P, the state and its
      result 4 N P, passing it on 2 N P / C.

    Parameters
    ----------
    seen
        Share of its chunk that a token sees: 1 where kernels mask afterwards, 1/2 under a causal
        mask [1].

    Source: Dao and Gu 2024 (arXiv 2405.21060), section 6 (blocks of the matrix on the diagonal,
    and factors of the others); Yang et al. 2024 (arXiv 2412.06464), section 3.3, and Yang et al.
    2024 (arXiv 2406.06484), section 3 (UT transform).
    """
    scores, keys, values, state = _terms(scan, seen)
    if scan.spec.kind == "mamba2":
        return scores + values + 2.0 * state + state / scan.chunk
    inverse = scan.num_heads * scan.chunk * scan.chunk / 3.0
    return 3.0 * keys + 2.0 * values + inverse + 3.0 * state + state / scan.chunk


def repeated_scan_flops_per_token(scan: Scan, seen: float = 1.0) -> Num:
    """Return the FLOPs of a scan that the kernels of the backward pass do again [FLOP].

    ``mamba2``: scores, and the states of chunks. ``gated_delta``, which keeps the inverse: its
    products with keys and values, scores, the states, and the values in them.

    Source: as the scan keeps its tensors, see :func:`recurrence_ops`.
    """
    scores, keys, values, state = _terms(scan, seen)
    if scan.spec.kind == "mamba2":
        return scores + state + state / scan.chunk
    return 2.0 * keys + values + 2.0 * state + state / scan.chunk


def _terms(scan: Scan, seen: float) -> tuple[Num, Num, Num, Num]:
    """Return scores by group, keys and values by head, and a product with the state [FLOP]."""
    per_row = 2.0 * seen * scan.chunk
    keys = float(scan.spec.state_size)
    return (
        per_row * scan.num_groups * keys,
        per_row * scan.num_heads * keys,
        per_row * scan.num_heads * float(scan.spec.head_size),
        2.0 * scan.state_words,
    )


def kept_words(spec: RecurrenceSpec, inner: Num, keys: Num) -> tuple[Num, Num]:
    """Return the words that one sequence of any length keeps: states, and inputs of convolutions.

    States are inner x state size; of a short convolution there are none, and its inputs are
    products, as wide as its values.

    Parameters
    ----------
    inner, keys
        Width of all values, and of all keys: of a device, or of all.
    """
    if spec.kind == "short_conv":
        return 0.0 * inner, float(spec.conv_size - 1) * inner
    return inner * float(spec.state_size), float(spec.conv_size - 1) * (inner + 2.0 * keys)


def whole_kept_words(spec: RecurrenceSpec) -> tuple[Num, Num]:
    """Return :func:`kept_words` over all heads."""
    return kept_words(
        spec, float(spec.num_heads * spec.head_size), float(spec.num_groups * spec.state_size)
    )
