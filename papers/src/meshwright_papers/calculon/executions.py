"""Training plans as columns: the 23 fields of the peer's execution, one column each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.base.arrays import BoolArray, FloatArray, IntArray
from meshwright.base.errors import Fault, SpecError, nearest
from meshwright_papers.calculon.machine import BYTES_PER_ELEMENT, Application

DATA_TYPES = tuple(BYTES_PER_ELEMENT)
ATTENTIONS = ("multihead", "multiquery")
RECOMPUTES = ("none", "attn_only", "full")
COMMUNICATIONS = ("ar", "p2p_rs_ag", "rs_ag")
OVERLAPS = ("none", "ring", "pipe")
NO_RECOMPUTE, ATTENTION_RECOMPUTE, FULL_RECOMPUTE = range(3)
ALL_REDUCE, SPLIT_AT_STAGE_ENDS, SEQUENCE_PARALLEL = range(3)
NO_OVERLAP, RING_OVERLAP, PIPE_OVERLAP = range(3)


@dataclass(frozen=True)
class Executions:
    """Plans as columns of equal length; a category is the index in its tuple above."""

    num_processors: FloatArray
    tp: FloatArray
    pp: FloatArray
    dp: FloatArray
    tp_network: IntArray
    pp_network: IntArray
    dp_network: IntArray
    global_batch_size: FloatArray
    micro_batch_size: FloatArray
    data_type: IntArray
    fused_activation: BoolArray
    attention: IntArray
    recompute: IntArray
    num_virtual_stages: FloatArray
    shard_optimizer: BoolArray
    communication: IntArray
    """Sums of tensor-parallel results: whole, split at stage ends, or always split."""
    overlap: IntArray
    """Overlap of tensor-parallel transfers with matrix products."""
    gather_again: BoolArray
    """Whether activations are gathered again for the backward pass (sequence parallelism)."""
    overlap_gradients: BoolArray
    offload_weights: BoolArray
    offload_activations: BoolArray
    offload_optimizer: BoolArray
    is_training: BoolArray

    def __len__(self) -> int:
        return int(self.tp.size)

    def take(self, rows: NDArray[Any]) -> Executions:
        """Return some of the plans, by index or by mask."""
        return Executions(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    def row(self, index: int) -> dict[str, Any]:
        """Return one plan under the peer's field names, so that the peer could run it."""
        return {
            peer: _python_value(getattr(self, ours)[index], names)
            for peer, (ours, names) in PEER_FIELDS.items()
        }


PEER_FIELDS: Mapping[str, tuple[str, tuple[str, ...] | type]] = {
    "num_procs": ("num_processors", int),
    "tensor_par": ("tp", int),
    "pipeline_par": ("pp", int),
    "data_par": ("dp", int),
    "tensor_par_net": ("tp_network", int),
    "pipeline_par_net": ("pp_network", int),
    "data_par_net": ("dp_network", int),
    "batch_size": ("global_batch_size", int),
    "microbatch_size": ("micro_batch_size", int),
    "datatype": ("data_type", DATA_TYPES),
    "fused_activation": ("fused_activation", bool),
    "attention_type": ("attention", ATTENTIONS),
    "activation_recompute": ("recompute", RECOMPUTES),
    "pipeline_interleaving": ("num_virtual_stages", int),
    "optimizer_sharding": ("shard_optimizer", bool),
    "tensor_par_comm_type": ("communication", COMMUNICATIONS),
    "tensor_par_overlap": ("overlap", OVERLAPS),
    "seq_par_ag_redo": ("gather_again", bool),
    "data_par_overlap": ("overlap_gradients", bool),
    "weight_offload": ("offload_weights", bool),
    "activations_offload": ("offload_activations", bool),
    "optimizer_offload": ("offload_optimizer", bool),
    "training": ("is_training", bool),
}
"""The peer's name of each field, ours, and the values it takes."""

_COLUMN_TYPES = {"FloatArray": np.float64, "IntArray": np.int64, "BoolArray": np.bool_}


def executions_from_rows(
    rows: Sequence[Mapping[str, Any]], application: Application, num_networks: int
) -> Executions:
    """Return plans that are given under the peer's field names.

    Raises
    ------
    SpecError
        With every fault of every row: unknown or missing fields, wrong values, and plans that
        the peer refuses as malformed (degrees that do not divide, overlap without an axis, ...).
    """
    faults = [fault for i, row in enumerate(rows) for fault in _value_faults(f"rows[{i}]", row)]
    if faults:
        raise SpecError(faults)
    columns: dict[str, Any] = {
        f.name: np.array([_stored(row, f.name) for row in rows], dtype=_COLUMN_TYPES[str(f.type)])
        for f in fields(Executions)
    }
    executions = Executions(**columns)
    check_executions(executions, application, num_networks)
    return executions


def check_executions(executions: Executions, application: Application, num_networks: int) -> None:
    """Refuse malformed plans, with a fault per rule and the first row that breaks it."""
    faults = []
    for name, broken, message in _rules(executions, application, num_networks):
        if broken.any():
            where = f"rows[{int(np.flatnonzero(broken)[0])}].{name}"
            faults.append(Fault(where, f"{message} ({int(broken.sum())} of {len(executions)})"))
    if faults:
        raise SpecError(faults)


def _rules(e: Executions, app: Application, num_networks: int) -> list[tuple[str, BoolArray, str]]:
    """Return the rules of a well-formed plan: field, rows that break it, message."""
    local_batch = e.global_batch_size / e.dp
    return [
        ("num_procs", e.tp * e.pp * e.dp != e.num_processors, "must be tensor * pipeline * data"),
        ("tensor_par", _not_dividing(e.tp, app), "must divide hidden, feedforward and heads"),
        ("tensor_par", (e.micro_batch_size * app.sequence_size) % e.tp != 0,
         "must divide the tokens of a micro-batch"),
        ("tensor_par_net", e.tp_network >= num_networks, "the system has fewer network tiers"),
        ("pipeline_par_net", e.pp_network >= num_networks, "the system has fewer network tiers"),
        ("data_par_net", e.dp_network >= num_networks, "the system has fewer network tiers"),
        ("batch_size", e.global_batch_size % e.dp != 0, "must be a multiple of data_par"),
        ("microbatch_size", local_batch % e.micro_batch_size != 0, "must divide the local batch"),
        ("activation_recompute", (e.recompute != NO_RECOMPUTE) & ~e.is_training,
         "nothing is recomputed in inference"),
        ("pipeline_interleaving", (e.pp == 1) & (e.num_virtual_stages != 1), "must be 1"),
        ("optimizer_sharding", e.shard_optimizer & (e.dp == 1), "needs data_par above 1"),
        ("tensor_par_overlap", (e.overlap != NO_OVERLAP) & (e.tp == 1), "needs tensor_par above 1"),
        ("seq_par_ag_redo", e.gather_again & (e.communication != SEQUENCE_PARALLEL),
         "needs tensor_par_comm_type rs_ag"),
        ("seq_par_ag_redo", e.gather_again & (e.recompute == FULL_RECOMPUTE),
         "is part of full recompute already"),
        ("data_par_overlap", e.overlap_gradients & ((e.dp == 1) | ~e.is_training),
         "needs training and data_par above 1"),
        ("optimizer_offload", e.offload_optimizer & ~e.is_training, "needs training"),
    ]  # fmt: skip


def _not_dividing(tp: FloatArray, app: Application) -> BoolArray:
    """Return the rows with a tensor degree that does not divide the dims that it splits."""
    split = (app.hidden_size % tp) + (app.feedforward_size % tp) + (app.num_heads % tp)
    return np.asarray(split != 0)


def _value_faults(path: str, row: Mapping[str, Any]) -> list[Fault]:
    """Return the faults in the fields of one row."""
    faults = [
        Fault(f"{path}.{name}", "is not a field of an execution", nearest(name, PEER_FIELDS))
        for name in row
        if name not in PEER_FIELDS
    ]
    for name, (_, allowed) in PEER_FIELDS.items():
        if name not in row:
            faults.append(Fault(f"{path}.{name}", "is missing"))
        elif isinstance(allowed, tuple) and row[name] not in allowed:
            expected = ", ".join(allowed)
            faults.append(Fault(f"{path}.{name}", f"is one of {expected}, found {row[name]!r}"))
        elif isinstance(allowed, type) and type(row[name]) is not allowed:
            expected = {int: "a whole number", bool: "true or false"}[allowed]
            faults.append(Fault(f"{path}.{name}", f"expected {expected}, found {row[name]!r}"))
        elif allowed is int and row[name] < (0 if name.endswith("_net") else 1):
            faults.append(Fault(f"{path}.{name}", f"is too small: {row[name]!r}"))
    return faults


def _stored(row: Mapping[str, Any], ours: str) -> Any:
    """Return the value that a column holds for one row."""
    for peer, (name, allowed) in PEER_FIELDS.items():
        if name == ours:
            return allowed.index(row[peer]) if isinstance(allowed, tuple) else row[peer]
    raise KeyError(ours)


def _python_value(value: Any, names: tuple[str, ...] | type) -> Any:
    """Return a stored value as the peer writes it."""
    return names[int(value)] if isinstance(names, tuple) else names(value)
