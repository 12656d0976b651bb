"""Rows of layers from a model: serving through the price of a pass, training through its layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.cost.communication import Collectives
from meshwright.cost.layer import price_layers
from meshwright.cost.problem import Problem
from meshwright.serve.layers import PASS_TIME_PARTS
from meshwright.serve.passes import piece_cost
from meshwright.serve.problem import ServingProblem
from meshwright.sharding.strategy import PlanOptions, Recompute, stack
from meshwright.spec.model import ModelSpec
from meshwright.sram.row import LayerRow
from meshwright.sram.setting import Setting

TOKEN_ID_BYTES = 4.0
"""Of one token that the last stage hands to the first."""
STRUCTURE = PlanOptions(sequence_parallel=False, zero_stage=0)


def computed_rows(setting: Setting, group_sizes: Sequence[int], batch: int) -> list[LayerRow]:
    """Return the row of a model for each size of its groups of sequences.

    Parameters
    ----------
    batch
        Sequences in flight in a row of stages: serving holds the cache of all of them.
    """
    problem = setting.problem
    if isinstance(problem, ServingProblem):
        return _serving_rows(problem, setting, group_sizes, batch)
    return _training_rows(problem, setting, group_sizes)


def row_names(model: ModelSpec) -> tuple[str, ...]:
    """Return the names of the layers of a model, and of what stands before and after them."""
    return ("embedding", *(f"layer {number}" for number in range(model.num_layers)), "head")


def _order(model: ModelSpec) -> list[int]:
    """Return the piece of the model at each place of its row: embedding, layers, head."""
    kinds = len(model.layer_kinds)
    return [kinds, *model.layer_pattern, kinds + 1]


def _serving_rows(
    problem: ServingProblem, setting: Setting, group_sizes: Sequence[int], batch: int
) -> list[LayerRow]:
    """Return the rows of a forward pass; what stays are weights and the cache of the batch."""
    strategy = stack([setting.strategy(size) for size in group_sizes])
    network = problem.network(STRUCTURE.axis_order, strategy)
    collectives = Collectives(network, problem.collective_start_s)
    costs = [
        piece_cost(problem, STRUCTURE, strategy, piece, index, collectives)
        for index, piece in enumerate(problem.pieces)
    ]
    column = _columns(costs, _order(problem.model))
    rows = []
    for number, size in enumerate(group_sizes):
        sent = size * problem.pass_length * problem.model.hidden_size
        rows.append(
            LayerRow(
                names=row_names(problem.model),
                resident_bytes={
                    "weights": column("weight_bytes", number),
                    "kv_cache": batch * column("cache_bytes", number),
                },
                transient_bytes={"activations": column("working_bytes", number)},
                kept_bytes=np.zeros(problem.model.num_layers + 2),
                time_parts_s={name: column(name, number) for name in PASS_TIME_PARTS},
                output_bytes=_outputs(problem.rates.activation_bytes * sent,
                                      TOKEN_ID_BYTES * size * problem.is_decode,
                                      problem.model.num_layers),
            )
        )  # fmt: skip
    return rows


def _training_rows(
    problem: Problem, setting: Setting, group_sizes: Sequence[int]
) -> list[LayerRow]:
    """Return the rows of a forward and a backward pass; what stays is the state of the weights."""
    strategy = stack([setting.strategy(size) for size in group_sizes])
    network = problem.network(STRUCTURE.axis_order, strategy)
    prices = price_layers(problem, STRUCTURE, network, (Recompute.NONE,), uses_tatp=False)
    priced = prices[Recompute.NONE]
    costs = [*priced.kinds, priced.embedding, priced.head]
    column, optimizer = _columns(costs, _order(problem.model)), problem.workload.optimizer
    held = {
        "weights": optimizer.weight_bytes_per_param,
        "gradients": optimizer.gradient_bytes_per_param,
        "optimizer": optimizer.state_bytes_per_param,
    }
    rows = []
    for number, size in enumerate(group_sizes):
        params = column("dense_params", number) + column("expert_params", number)
        sent = size * problem.pass_length * problem.model.hidden_size
        rows.append(
            LayerRow(
                names=row_names(problem.model),
                resident_bytes={name: each * params for name, each in held.items()},
                transient_bytes={"activations": column("working_bytes", number)},
                kept_bytes=column("kept_bytes", number),
                time_parts_s=_training_parts(column, number),
                output_bytes=_outputs(problem.rates.activation_bytes * sent, 0.0,
                                      problem.model.num_layers),
            )
        )  # fmt: skip
    return rows


def _training_parts(column: Any, number: int) -> Mapping[str, FloatArray]:
    """Return the seconds of a micro-batch in a layer, forward and backward, by part."""
    backward = column("input_gradient_s", number) + column("weight_gradient_s", number)
    return {
        "forward_s": column("forward_s", number),
        "backward_s": backward,
        "launch_s": column("launch_s", number),
        "tp_comm_s": column("tp_s", number),
        "ep_comm_s": column("ep_s", number),
    }


def _columns(costs: Sequence[Any], order: Sequence[int]) -> Any:
    """Return what gives a part of the price, in one row of the columns, of each layer in order."""

    def column(name: str, number: int) -> FloatArray:
        parts = [np.asarray(getattr(cost, name)).reshape(-1) for cost in costs]
        values = [float(part[number] if len(part) > 1 else part[0]) for part in parts]
        return np.array([values[kind] for kind in order])

    return column


def _outputs(sent_bytes: float, returned_bytes: float, num_layers: int) -> FloatArray:
    """Return what each layer hands on: the residual stream; the head token ids, or nothing."""
    return np.array([*[sent_bytes] * (num_layers + 1), returned_bytes])
