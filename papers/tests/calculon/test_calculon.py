"""The peer's formulas by hand, and what is said about wrong input."""

import numpy as np
import pytest

from meshwright.base.errors import SpecError, UnknownNameError
from meshwright_papers.calculon.block import Joint, dropout, exposed_joint, matrix_layer
from meshwright_papers.calculon.block_cost import Pair, optimizer_cost
from meshwright_papers.calculon.executions import executions_from_rows
from meshwright_papers.calculon.machine import (
    Application,
    Engine,
    FlopsStep,
    Rate,
    application_named,
    machine_of,
    system_named,
)
from meshwright_papers.calculon.search import Space, block_keys, divisions, divisors
from meshwright_papers.calculon.step import Layout, network_fits

APPLICATION = application_named("gpt3-175B")
MACHINE = machine_of(system_named("a100_80g"), "float16")
PLAN = {
    "num_procs": 64, "tensor_par": 8, "pipeline_par": 4, "data_par": 2, "tensor_par_net": 0,
    "pipeline_par_net": 1, "data_par_net": 1, "batch_size": 16, "microbatch_size": 1,
    "datatype": "float16", "fused_activation": True, "attention_type": "multihead",
    "activation_recompute": "full", "pipeline_interleaving": 1, "optimizer_sharding": False,
    "tensor_par_comm_type": "ar", "tensor_par_overlap": "none", "seq_par_ag_redo": False,
    "data_par_overlap": False, "weight_offload": False, "activations_offload": False,
    "optimizer_offload": False, "training": True,
}  # fmt: skip


def test_a_rate_takes_the_efficiency_of_the_step_that_is_reached():
    rate = Rate(100.0, (0.0, 10.0), (0.5, 1.0))
    assert rate.seconds(np.array([0.0, 5.0, 10.0, 20.0])).tolist() == [0.0, 0.1, 0.1, 0.2]


def test_a_transfer_pays_latency_once_and_its_share_of_the_offset():
    """Tier 0: 1.5 * (1 - 1/8) of 1e9 B over 300 GB/s * 0.65, and 10 us."""
    seconds = MACHINE.links(0).seconds("all_gather", np.float64(1e9), 8)
    assert seconds == pytest.approx(1e-5 + 1.5e9 * (1 - 1 / 8) / (300e9 * 0.65), rel=1e-12)


def test_a_matrix_layer_costs_two_flops_per_product_each_way():
    """4 x 3 by 3 x 5 in words of 2 B: 120 FLOP; 12 + 20 + 15 elements touched and kept."""
    layer = matrix_layer("m", 2.0, 4, 3, 5)
    assert layer.forward.flops == layer.input_gradient.flops == layer.weight_gradient.flops == 120
    assert layer.forward.num_bytes == 2 * (12 + 20 + 15)
    assert (layer.activation_bytes, layer.gradient_bytes, layer.num_weights) == (24, 40, 15)


def test_a_joint_costs_nothing_without_tensor_parallelism():
    joint = Joint(is_opening=False, again=np.float64(0))
    layer = exposed_joint("j", 2.0, 1000.0, np.float64(1), joint, split=np.float64(0))
    assert layer.forward.flops == layer.forward.num_bytes == layer.activation_bytes == 0


def test_dropout_keeps_one_byte_per_element():
    assert dropout("d", 2.0, 10).activation_bytes == 10


def test_adam_keeps_twelve_bytes_per_weight_in_half_precision():
    """1000 weights over 4 shards: 250 * 11 FLOP, 3 * 4 B states, 2 B gradients; 4 B at work."""
    cost = optimizer_cost(MACHINE, [1000.0], 4.0)
    assert (cost.flops, cost.state_bytes, cost.gradient_bytes) == (2750, 3000, 500)
    assert cost.whole_gradient_bytes == 4000


def test_a_chunk_is_base_blocks_and_one_edge_block():
    assert Pair(2.0, 5.0).of_chunk(4) == 3 * 2.0 + 5.0


def test_interleaving_holds_more_micro_batches():
    """4 stages, 3 chunks each: 4 * (1 + 3 / 12) = 5; with 2 micro-batches and no chunks: 2."""
    assert Layout(4.0, 12.0, 0.0, 3.0, 8.0).micro_batches_in_flight == 5
    assert Layout(4.0, 12.0, 0.0, 1.0, 2.0).micro_batches_in_flight == 2


@pytest.mark.parametrize(
    ("degrees", "tiers", "fits"),
    [
        ((8, 4, 2), (0, 1, 1), True),
        ((4, 4, 2), (0, 1, 1), True),
        ((6, 4, 2), (0, 1, 1), False),
        ((4, 4, 4), (0, 1, 0), False),
        ((4, 4, 2), (0, 1, 0), True),
        ((1, 1, 16), (0, 0, 0), False),
    ],
    ids=["full", "half", "6-not-in-8", "16-over-8", "4x2-share", "16-over-8-alone"],
)
def test_a_tier_holds_axes_whose_product_divides_it(degrees, tiers, fits):
    assert bool(network_fits(MACHINE, degrees, tiers)) is fits


def test_divisors_rise():
    assert divisors(12) == (1, 2, 3, 4, 6, 12)


def test_forms_of_a_block():
    """Full: 3; selective and none: 4 each, as sequence parallelism may gather again; 11 in all."""
    assert block_keys((0,), (1, 2)).overlap.size == 11 * 2


def test_divisions_of_six_processors():
    """Heads 96, blocks 96: every ordered split of 6 into three; batch 4 leaves out dp = 6."""
    found = list(divisions(Space(APPLICATION, system_named("a100_80g"), 6, 4)))
    assert {part.degrees for part in found} == {
        (1, 2, 3), (1, 3, 2), (1, 6, 1), (2, 1, 3), (2, 3, 1), (3, 1, 2), (3, 2, 1), (6, 1, 1)
    }  # fmt: skip
    assert {part.dp: part.global_batch_size for part in found} == {1: 4, 2: 4, 3: 3}


def test_every_wrong_field_of_every_row_is_told():
    wrong = PLAN | {"datatype": "float12", "batch_size": "16", "tensor_par": 0}
    missing = {k: v for k, v in PLAN.items() if k != "training"} | {"trainin": True}
    with pytest.raises(SpecError) as caught:
        executions_from_rows([wrong, missing], APPLICATION, 2)
    assert {fault.path for fault in caught.value.faults} == {
        "rows[0].datatype", "rows[0].batch_size", "rows[0].tensor_par",
        "rows[1].trainin", "rows[1].training",
    }  # fmt: skip
    assert "did you mean training?" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"num_procs": 65}, "num_procs"),
        ({"tensor_par": 5, "num_procs": 40}, "tensor_par"),
        ({"microbatch_size": 3}, "microbatch_size"),
        ({"pipeline_par_net": 2}, "pipeline_par_net"),
        ({"seq_par_ag_redo": True}, "seq_par_ag_redo"),
        ({"training": False}, "activation_recompute"),
    ],
)
def test_a_malformed_plan_is_refused(change, field):
    with pytest.raises(SpecError) as caught:
        executions_from_rows([PLAN, PLAN | change], APPLICATION, 2)
    assert f"rows[1].{field}" in {fault.path for fault in caught.value.faults}


def test_unknown_names_and_types_are_told():
    with pytest.raises(UnknownNameError, match="gpt3-175B"):
        application_named("gpt3-17B")
    with pytest.raises(SpecError, match=r"matrix\.float8: the engine has no such data type"):
        machine_of(system_named("a100_80g"), "float8")


def test_steps_must_cover_all_sizes():
    with pytest.raises(ValueError, match="the last step must start at 0"):
        Engine(peak_flops_per_s=1e12, steps=(FlopsStep(at_least_flops=1e9, efficiency=0.5),))


def test_embeddings_are_not_part_of_the_application():
    assert set(Application.model_fields) == {
        "hidden_size", "feedforward_size", "sequence_size", "num_heads", "head_size", "num_blocks"
    }  # fmt: skip
