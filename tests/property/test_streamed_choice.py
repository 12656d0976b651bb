"""Left open, what streams is never dearer than either tensor alone, and the same row by row."""

import random

import numpy as np
import pytest
from small_problems import MODELS, SYSTEMS, problem, random_strategy

from meshwright.cost.layer import price_layers
from meshwright.sharding.axes import may_stream_inputs
from meshwright.sharding.strategy import (
    ContextKind,
    PlanOptions,
    Recompute,
    Streamed,
    StreamForm,
    stack,
)
from meshwright.spec.workload import SoftwareStack

GRIDS = SYSTEMS[4:6]


def random_case(seed):
    """Return a problem on a grid, plan options, and columns of strategies, some without tatp."""
    chance = random.Random(seed)
    what = problem(
        chance.choice(MODELS)(2),
        chance.choice(GRIDS)(),
        sequence_length=chance.choice([64, 256, 1024]),
        software=SoftwareStack(cuda_graphs=True),
        causal=chance.random() < 0.8,
    )
    strategies = [random_strategy(chance, what) for _ in range(6)]
    plan_options = PlanOptions(
        sequence_parallel=chance.random() < 0.5,
        context_kind=chance.choice(list(ContextKind)),
        recompute=chance.choice(list(Recompute)),
        stream_form=chance.choice(list(StreamForm)),
    )
    return what, plan_options, strategies


def layers_of(what, plan_options, columns, streamed):
    """Return the prices of the kinds of layers with one tensor streamed, or the choice open."""
    chosen = PlanOptions(**(vars(plan_options) | {"streamed": streamed}))
    network = what.network(chosen.axis_order, columns)
    recompute = chosen.recompute
    return price_layers(what, chosen, network, (recompute,), uses_tatp=True)[recompute][:-2]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_an_open_choice_is_never_dearer(seed):
    """Without launches, which bound a layer as a whole, the price is a sum over blocks."""
    what, plan_options, strategies = random_case(seed)
    columns = stack(strategies)
    found = {tensor: layers_of(what, plan_options, columns, tensor) for tensor in Streamed}
    for kind, layer in enumerate(what.graph.layers):
        attentions = [op.attention for op in layer.ops if op.attention is not None]
        legal = may_stream_inputs(attentions, columns, plan_options)
        open_s = found[Streamed.AUTO][kind].total_s
        weights_s = found[Streamed.WEIGHTS][kind].total_s
        inputs_s = found[Streamed.INPUTS][kind].total_s
        assert (open_s <= weights_s * (1 + 1e-12)).all()
        assert (open_s <= inputs_s * (1 + 1e-12))[legal].all()
        alone = columns.tatp == 1
        assert np.array_equal(open_s[alone], weights_s[alone])


@pytest.mark.parametrize("seed", range(6))
def test_a_row_chooses_as_it_would_alone(seed):
    what, plan_options, strategies = random_case(seed)
    together = layers_of(what, plan_options, stack(strategies), Streamed.AUTO)
    for row, strategy in enumerate(strategies):
        alone = layers_of(what, plan_options, stack([strategy]), Streamed.AUTO)
        for kind, cost in enumerate(alone):
            for name, value in vars(cost).items():
                assert getattr(together[kind], name)[row] == value[0], name
