"""Evaluates columns of plans, each in full: time parts, memory parts, refusals, efficiency."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from meshwright.base.arrays import BoolArray, FloatArray, IntArray, ceil_div, where
from meshwright_papers.baselines.calculon.block import BlockStructure, block_choices
from meshwright_papers.baselines.calculon.block_cost import (
    BlockCost,
    OptimizerCost,
    block_cost,
    optimizer_cost,
)
from meshwright_papers.baselines.calculon.declarations import Application, System
from meshwright_papers.baselines.calculon.executions import (
    ALL_REDUCE,
    ATTENTIONS,
    DATA_TYPES,
    NO_OVERLAP,
    Executions,
    check_executions,
)
from meshwright_papers.baselines.calculon.hardware import Machine, machine_of
from meshwright_papers.baselines.calculon.memory import Layout, Memory, Offload, memory_of
from meshwright_papers.baselines.calculon.step_time import (
    DataAxis,
    StepTime,
    block_sum_s,
    overlapped_sum_s,
    sent_bytes,
    stage_time,
    step_time,
)

REFUSALS = ("", "network", "interleaving", "offload", "memory")
FITS, NETWORK, INTERLEAVING, OFFLOAD, MEMORY = range(5)
LEAST_OFFLOAD_BLOCKS = 3


@dataclass(frozen=True)
class Evaluation:
    """Plans and what they cost, as columns; a refused plan has its numbers too."""

    time: StepTime
    memory: Memory
    refusal: IntArray
    """Index in ``REFUSALS``; the first rule that a plan breaks."""
    total_s: FloatArray
    samples_per_s: FloatArray
    utilization: FloatArray
    """Useful FLOPs of the blocks over the matrix peak; the optimizer step is counted once per
    micro-batch, as the peer does."""

    @property
    def fits(self) -> BoolArray:
        """Whether the peer accepts the plan."""
        return np.asarray(self.refusal == FITS)


def evaluate(application: Application, system: System, executions: Executions) -> Evaluation:
    """Return the cost of each plan under the peer's assumptions.

    Parameters
    ----------
    application
        The model: a stack of equal blocks.
    system
        Its engines, memories and networks.
    executions
        The plans, one per row; see :func:`executions_from_rows`.

    Raises
    ------
    SpecError
        When a plan is malformed (degrees that do not divide, ...). A plan that does not fit is
        no error: its ``refusal`` says why.
    """
    check_executions(executions, application, len(system.networks))
    kinds = np.stack(
        [executions.data_type, executions.attention, executions.overlap != NO_OVERLAP,
         executions.is_training]
    )  # fmt: skip
    groups, group_of_row = np.unique(kinds, axis=1, return_inverse=True)
    rows_of = [np.flatnonzero(group_of_row.ravel() == g) for g in range(groups.shape[1])]
    results = [_evaluate_group(application, system, executions.take(rows)) for rows in rows_of]
    merged: Evaluation = _scattered(results, rows_of, len(executions))
    return merged


def _scattered(results: list[Any], rows_of: list[IntArray], num_rows: int) -> Any:
    """Return the columns of the groups at the rows they came from."""
    first = results[0]
    if hasattr(first, "__dataclass_fields__"):
        return type(first)(
            **{
                f.name: _scattered([getattr(r, f.name) for r in results], rows_of, num_rows)
                for f in fields(first)
            }
        )
    column = np.empty(num_rows, dtype=np.asarray(first).dtype)
    for values, rows in zip(results, rows_of, strict=True):
        column[rows] = values
    return column


def structure_of(executions: Executions) -> BlockStructure:
    """Return what the first plan, and all of its kind, are made of."""
    return BlockStructure(
        is_multiquery=ATTENTIONS[int(executions.attention[0])] == "multiquery",
        is_tiled=bool(executions.overlap[0] != NO_OVERLAP),
        is_training=bool(executions.is_training[0]),
    )


def layout_of(application: Application, e: Executions) -> Layout:
    """Return how the blocks of each plan are dealt out."""
    blocks = ceil_div(application.num_blocks, e.pp)
    return Layout(
        pp=e.pp,
        num_blocks=blocks,
        num_missing_blocks=blocks * e.pp - application.num_blocks,
        num_virtual_stages=e.num_virtual_stages,
        num_micro_batches=e.global_batch_size / e.dp / e.micro_batch_size,
    )


def _evaluate_group(application: Application, system: System, e: Executions) -> Evaluation:
    """Return the cost of plans of one structure."""
    machine = machine_of(system, DATA_TYPES[int(e.data_type[0])])
    structure = structure_of(e)
    trains = structure.is_training
    choices = block_choices(e, e.tp, machine.links(e.tp_network), e.fused_activation)
    block = block_cost(application, machine, structure, choices)
    optimizer = optimizer_cost(machine, block.weights, where(e.shard_optimizer, e.dp, 1.0))
    layout = layout_of(application, e)
    offload = Offload.of(e.offload_weights, e.offload_activations, e.offload_optimizer)
    memory = memory_of(block, optimizer, layout, offload, is_training=trains)
    sent = sent_bytes(
        application, machine.bytes_per_element, e.tp, e.pp,
        e.micro_batch_size, e.communication != ALL_REDUCE,
    )  # fmt: skip
    stage = stage_time(
        machine, block, optimizer, offload, sent,
        machine.links(e.pp_network), is_training=trains,
    )  # fmt: skip
    axis = data_axis(machine, e)
    plain_s = layout.num_blocks * block_sum_s(block, axis)
    hidden_s = overlapped_sum_s(block, optimizer, stage, layout, axis)
    data_s = where(e.overlap_gradients, hidden_s, plain_s) * trains
    time = step_time(block, optimizer, stage, layout, data_s, is_training=trains)
    total_s = time.total_s
    useful = layout.num_blocks * layout.num_micro_batches * _useful_flops(block, optimizer, trains)
    return Evaluation(
        time=_full(time, len(e)),
        memory=_full(memory, len(e)),
        refusal=_refusals(machine, layout, memory, e),
        total_s=total_s,
        samples_per_s=e.global_batch_size / total_s,
        utilization=useful / machine.matrix.peak_per_s / total_s,
    )


def _useful_flops(block: BlockCost, optimizer: OptimizerCost, is_training: bool) -> Any:
    return block.useful_flops + optimizer.flops * is_training


def _full(record: Any, num_rows: int) -> Any:
    """Return a record whose every entry is a column."""
    return type(record)(
        **{f.name: getattr(record, f.name) + np.zeros(num_rows) for f in fields(record)}
    )


def data_axis(machine: Machine, e: Executions) -> DataAxis:
    """Return the data axis of each plan."""
    return DataAxis(
        dp=e.dp,
        links=machine.links(e.dp_network),
        shards_optimizer=e.shard_optimizer.astype(np.float64),
        shares_tensor_network=(e.dp_network == e.tp_network).astype(np.float64),
        shares_pipeline_network=(e.dp_network == e.pp_network).astype(np.float64),
    )


def network_fits(machine: Machine, degrees: Any, tiers: Any) -> Any:
    """Tell whether each network tier can hold the axes that are put on it.

    The product of the degrees on a tier may not exceed its size, and must divide it where the
    tier has to be filled. An axis of degree 1 uses no network.

    Parameters
    ----------
    degrees, tiers
        Per axis (tensor, pipeline, data), its degree and its network tier; columns.
    """
    fits: Any = True
    for tier in range(machine.num_networks):
        product: Any = 1.0
        for degree, used in zip(degrees, tiers, strict=True):
            product = product * where(used == tier, degree, 1.0)
        size = machine.network_sizes[tier]
        divides = (size % product == 0) | (machine.must_be_filled[tier] == 0)
        fits = fits & (product <= size) & divides
    return fits


def _refusals(machine: Machine, layout: Layout, memory: Memory, e: Executions) -> IntArray:
    """Return why each plan is refused, in the order in which the peer looks."""
    tiers = (e.tp_network, e.pp_network, e.dp_network)
    offloads = e.offload_weights | e.offload_activations | e.offload_optimizer
    too_much = (memory.near_bytes > machine.memory_capacity_bytes) | (
        memory.host_bytes > machine.host_capacity_bytes
    )
    return np.select(
        [
            ~network_fits(machine, (e.tp, e.pp, e.dp), tiers),
            layout.num_blocks % e.num_virtual_stages != 0,
            offloads & (layout.num_blocks < LEAST_OFFLOAD_BLOCKS),
            np.broadcast_to(too_much, e.tp.shape),
        ],
        [NETWORK, INTERLEAVING, OFFLOAD, MEMORY],
        default=FITS,
    )
