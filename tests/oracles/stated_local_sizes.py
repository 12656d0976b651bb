"""Local sizes stated dim by dim and axis by axis: a second route to what the shardings imply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.base.arrays import ceil_div, larger
from meshwright.graph.op import TOKEN_DIMS, Op, OpKind, Tensor
from meshwright.sharding.axes import EXPERT_INNER_DIMS, INNER_DIMS
from meshwright.sharding.strategy import StrategyOf

_BY_KV_HEAD = frozenset({"key", "value", "kv_heads"})
_BY_GROUP = "state_key"
_SPLIT_BY_INPUT_STREAMS = (INNER_DIMS | EXPERT_INNER_DIMS | _BY_KV_HEAD) - {"vocab"}


@dataclass(frozen=True)
class StatedLayer:
    """A layer on one device: fixed sizes, degrees, and how its tokens are split."""

    sizes: Mapping[str, int]
    degrees: StrategyOf[Any]
    sequence_length: float
    sequence_parallel: bool
    expert_load_imbalance: float
    streams_inputs: bool = False
    """Inputs travel over tatp: it splits inner dims, and all tokens of its group pass them."""

    def size(self, dim: str) -> Any:
        """Return the local size of a dim that is no token dim.

        tatp leaves inner dims whole where weights travel past the tokens.
        """
        s, size = self.degrees, self.sizes[dim]
        columns = s.tatp if self.streams_inputs else 1.0
        if dim == "vocab":
            return ceil_div(size, s.tp * s.tatp)
        if dim in _BY_KV_HEAD:
            return larger(ceil_div(size, s.tp * columns), size / self.sizes["kv_heads"])
        if dim == _BY_GROUP:
            whole = size / self.sizes["state_groups"]
            return larger(ceil_div(size, s.tp * columns), whole)
        if dim in INNER_DIMS:
            return ceil_div(size, s.tp * columns)
        if dim in EXPERT_INNER_DIMS:
            return ceil_div(size, s.etp * columns)
        return ceil_div(size, s.ep) if dim == "experts" else float(size)

    def width(self, tensor: Tensor) -> Any:
        """Return the local elements of a tensor for each of its tokens."""
        width: Any = 1.0
        for dim in tensor.dims:
            if dim not in (*TOKEN_DIMS, "keys"):
                width = width * self.size(dim)
        return width

    @property
    def tokens(self) -> Any:
        """Tokens of one micro-batch on this device where a layer is split over tp by its width."""
        s = self.degrees
        return ceil_div(self.sequence_length, s.cp * s.tatp) * s.micro_batch_size

    @property
    def token_shard(self) -> Any:
        """Tokens where they are split over tp too, with sequence parallelism."""
        return ceil_div(self.tokens, self.degrees.tp) if self.sequence_parallel else self.tokens

    @property
    def routed_rows(self) -> Any:
        """Rows that visit the routed experts, at rest; the busiest rank is priced."""
        s = self.degrees
        mean = self.tokens / s.tp * s.etp * self.sizes.get("top_k", 1)
        return mean * self.expert_load_imbalance

    def rows_of(self, op: Op) -> Any:
        """Return the rows that an operator works on, on this device.

        The vocabulary is split over tatp instead of the tokens; where inputs travel, inner dims
        are.
        """
        passing = self.degrees.tatp if self.streams_inputs and _has_inner_dims(op) else 1.0
        if any("routed_tokens" in tensor.dims for tensor in (*op.inputs, *op.outputs)):
            return self.routed_rows * passing
        if "vocab" in op.output.dims or op.kind is OpKind.LOSS:
            return self.tokens * self.degrees.tatp
        return self.tokens * passing if splits_width(op) else self.token_shard


def splits_width(op: Op) -> bool:
    """Return whether tp splits the width of an operator; otherwise it can split its tokens."""
    return op.kind is OpKind.EMBEDDING or bool(_dims_of(op) & (INNER_DIMS | _BY_KV_HEAD))


def _has_inner_dims(op: Op) -> bool:
    """Return whether input streams split the width of an operator."""
    return bool(_dims_of(op) & _SPLIT_BY_INPUT_STREAMS)


def _dims_of(op: Op) -> set[str]:
    tensors = (*op.weights, *op.inputs, *op.outputs)
    return {dim for tensor in tensors for dim in tensor.dims}
