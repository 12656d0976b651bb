"""Local sizes: what one device holds of each dim under the degrees of the axes.

Where a degree does not divide a dim, the largest shard is priced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from meshwright.base.arrays import ceil_div, larger
from meshwright.graph.op import Op, OpKind, Tensor

_ON_TP = frozenset(
    {"query", "query_heads", "heads", "key_content", "ffn", "ffn_in", "shared_ffn",
     "shared_ffn_in", "vocab"}
)  # fmt: skip
_ON_TP_BY_KV_HEAD = frozenset({"key", "value", "kv_heads"})
_ON_ETP = frozenset({"expert_ffn", "expert_ffn_in"})


@dataclass(frozen=True)
class LocalRows:
    """One way to split a layer for each row: the degrees that a layer sees, and its micro-batch.

    ``cp_stride`` and the other strides are the devices between neighbours on an axis.
    """

    tp: Any
    tatp: Any
    cp: Any
    ep: Any
    etp: Any
    micro_batch_size: Any
    tp_stride: Any
    tatp_stride: Any
    cp_stride: Any


LOCAL_FIELDS = tuple(entry.name for entry in fields(LocalRows))


@dataclass(frozen=True)
class LocalLayer:
    """A layer on one device: fixed sizes, degrees, and how its tokens are split."""

    sizes: Mapping[str, int]
    rows: LocalRows
    sequence_length: float
    sequence_parallel: bool
    expert_load_imbalance: float

    def size(self, dim: str) -> Any:
        """Return the local size of a dim that is no token dim."""
        rows, size = self.rows, self.sizes[dim]
        if dim in _ON_TP:
            return ceil_div(size, rows.tp)
        if dim in _ON_TP_BY_KV_HEAD:
            return larger(ceil_div(size, rows.tp), size / self.sizes["kv_heads"])
        if dim in _ON_ETP:
            return ceil_div(size, rows.etp)
        return ceil_div(size, rows.ep) if dim == "experts" else float(size)

    def width(self, tensor: Tensor) -> Any:
        """Return the local elements of a tensor for each of its tokens."""
        width: Any = 1.0
        for dim in tensor.dims:
            if dim not in ("tokens", "routed_tokens", "keys"):
                width = width * self.size(dim)
        return width

    @property
    def tokens(self) -> Any:
        """Tokens of one micro-batch on this device where a layer is split over tp by its width."""
        rows = self.rows
        return ceil_div(self.sequence_length, rows.cp * rows.tatp) * rows.micro_batch_size

    @property
    def token_shard(self) -> Any:
        """Tokens where they are split over tp too, with sequence parallelism."""
        return ceil_div(self.tokens, self.rows.tp) if self.sequence_parallel else self.tokens

    @property
    def routed_rows(self) -> Any:
        """Rows that visit the routed experts of this device; the busiest rank is priced."""
        rows = self.rows
        mean = self.tokens / rows.tp * rows.etp * self.sizes.get("top_k", 1)
        return mean * self.expert_load_imbalance

    def rows_of(self, op: Op) -> Any:
        """Return the rows that an operator works on, on this device."""
        if any("routed_tokens" in tensor.dims for tensor in (*op.inputs, *op.outputs)):
            return self.routed_rows
        return self.tokens if splits_width(op) else self.token_shard


def splits_width(op: Op) -> bool:
    """Return whether tp splits the width of an operator; otherwise it can split its tokens."""
    if op.kind in (OpKind.ATTENTION, OpKind.LOSS, OpKind.EMBEDDING):
        return True
    tensors = (*op.weights, *op.inputs, *op.outputs)
    dims = {dim for tensor in tensors for dim in tensor.dims}
    return bool(dims & (_ON_TP | _ON_TP_BY_KV_HEAD))
