"""The price of a scan, and of what a recurrent layer holds, by hand."""

import numpy as np
import pytest
from small_problems import model, problem, states

from meshwright.catalog.models import load_model
from meshwright.cost.memory import parameters_on_device
from meshwright.cost.operator import local_scan, scan_bytes, scan_cost
from meshwright.graph.op import OpKind
from meshwright.graph.parameters import layer_parameters
from meshwright.graph.recurrence import repeated_scan_flops_per_token, scan_flops_per_token
from meshwright.graph.transformer import build_graph
from meshwright.sharding.derivation import derive_calls
from meshwright.sharding.local_sizes import LocalLayer, layer_axes, saved_elements
from meshwright.sharding.strategy import PlanOptions, make_strategy
from meshwright.spec.collective import CollectiveKind

OPTIONS = PlanOptions(sequence_parallel=True, zero_stage=0)


def layer_of(name="mamba-codestral-7b", index=0):
    return build_graph(load_model(name)).layers[index]


def local(layer, length=8192.0, **degrees):
    return LocalLayer(layer.sizes, layer_axes(layer, OPTIONS), make_strategy(**degrees), length)


def scan_of(layer):
    (op,) = (op for op in layer.ops if op.kind is OpKind.RECURRENCE)
    return op


@pytest.mark.parametrize("degrees", [{}, {"tp": 8}, {"tp": 2, "cp": 4}, {"cp": 8}])
def test_devices_share_the_flops_and_bytes_of_a_scan(degrees):
    layer = layer_of()
    op, whole, split = scan_of(layer), local(layer), local(layer, **degrees)
    rates, number = problem().rates, np.prod([*degrees.values()])
    one, part = (scan_cost(op, each, rates) for each in (whole, split))
    assert number * part.forward_flops == pytest.approx(one.forward_flops)
    assert number * part.backward_flops == pytest.approx(one.backward_flops)
    assert number * part.forward_traffic_bytes == pytest.approx(one.forward_traffic_bytes)


def test_price_of_a_scan_by_hand():
    layer, rates = layer_of(), problem().rates
    op, at = scan_of(layer), local(layer)
    scan = local_scan(op, at, 8192.0)
    cost = scan_cost(op, at, rates)
    assert cost.forward_flops == 8192 * scan_flops_per_token(scan)
    again = 8192 * repeated_scan_flops_per_token(scan)
    assert cost.backward_flops == 2 * cost.forward_flops + again
    # values, keys, queries and steps in, values out; a state of 8192 x 128 for each 256 tokens
    words = 8192 + 2 * 1024 + 128 + 8192
    moved = 8192 * (2 * words + 2 * 4 * 8192 * 128 / 256)
    assert scan_bytes(op, at, scan, rates) == moved
    arithmetic_s = cost.forward_flops / rates.attention_forward_flops_per_s
    assert cost.forward_s == max(arithmetic_s, moved / rates.memory_bytes_per_s)


def test_parameters_of_all_ranks_of_tp_are_those_of_the_layer():
    spec = load_model("mamba-codestral-7b")
    layer = layer_of()
    dense, expert = parameters_on_device(layer, OPTIONS, make_strategy(tp=8))
    replicated = spec.hidden_size  # the norm before
    held = 8 * (dense - replicated) + replicated
    assert (held, expert) == (layer_parameters(spec.layer_kinds[0], spec).num_params, 0.0)


def test_context_parallelism_trades_tokens_for_heads_and_back():
    calls = derive_calls(layer_of(), OPTIONS, ("cp",))
    moved = [call for call in calls if call.kind is CollectiveKind.ALL_TO_ALL]
    names = {call.tensor.name.removeprefix("recurrence.") for call in moved}
    forward = {"value.convolved", "key.convolved", "query.convolved", "step", "scan"}
    assert names == forward | {f"{name}.gradient" for name in forward}
    assert not any(call.streamed for call in moved)


def test_what_is_kept_for_the_backward_pass():
    # Mamba 2: the normalised input, what enters the convolution, the gate, steps, the result of
    # the scan, and that of the gated norm; convolved tensors are made again.
    kept = {entry.tensor.name for entry in saved_elements(layer_of(), OPTIONS)}
    assert {name.removeprefix("recurrence.") for name in kept} == {
        "layer_input", "norm.output", "value", "key", "query", "gate", "step", "scan", "gated_norm",
    }  # fmt: skip
    delta = {entry.tensor.name for entry in saved_elements(layer_of("qwen3-next-80b-a3b"), OPTIONS)}
    assert "recurrence.value.convolved" in delta
    assert "recurrence.inverse" in delta


def test_a_step_of_a_recurrent_model_grows_linearly_with_its_length():
    short, long = (
        problem(model(states()), sequence_length=length, global_batch_size=4)
        for length in (256, 512)
    )
    assert long.graph == short.graph
    per_token = []
    for asked in (short, long):
        layer, length = asked.graph.layers[0], float(asked.workload.sequence_length)
        at = LocalLayer(layer.sizes, layer_axes(layer, OPTIONS), make_strategy(), length)
        per_token.append(scan_cost(scan_of(layer), at, asked.rates).forward_s / length)
    assert per_token[0] == pytest.approx(per_token[1])
