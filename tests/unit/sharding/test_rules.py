"""Each rule refuses what it should, says why with numbers, and offers a change that is legal."""

from dataclasses import replace

import numpy as np
import pytest
from offered_changes import with_change

from meshwright.sharding import launching
from meshwright.sharding.axes import all_refusals, all_rules, axis_rules, first_refusals, refusals
from meshwright.sharding.dealing import chunk_lengths
from meshwright.sharding.fixes import found_faults
from meshwright.sharding.rules import Case
from meshwright.sharding.strategy import (
    ContextKind,
    PlanOptions,
    Recompute,
    ScheduleKind,
    Streamed,
    make_strategy,
    row,
    stack,
)
from meshwright.spec.model import (
    AttentionSpec,
    ExpertSpec,
    FeedForwardSpec,
    LayerSpec,
    ModelSpec,
    RecurrenceSpec,
)
from meshwright.spec.workload import Decode, OptimizerPreset, Training

ATTENTION = AttentionSpec(num_heads=32, num_kv_heads=8, head_size=128, value_head_size=128)
DENSE = {"feed_forward": FeedForwardSpec(ffn_size=16384, gated=True)}
STATES = DENSE | {
    "attention": None,
    "recurrence": RecurrenceSpec(
        kind="mamba2", num_heads=128, head_size=64, num_groups=8, state_size=128, conv_size=4,
        chunk_size=256,
    ),
}  # fmt: skip
EXPERTS = {"experts": ExpertSpec(num_experts=64, top_k=4, ffn_size=2048)}
OPTIMIZER = OptimizerPreset(
    name="adam", weight_bytes_per_param=2, gradient_bytes_per_param=4, state_bytes_per_param=12
)
PLAIN = PlanOptions(sequence_parallel=False, zero_stage=0)
SPLIT = replace(PLAIN, sequence_parallel=True)
INTERLEAVED = replace(PLAIN, schedule=ScheduleKind.INTERLEAVED)
ULYSSES = replace(PLAIN, context_kind=ContextKind.ULYSSES)
INPUTS = replace(PLAIN, streamed=Streamed.INPUTS)
TRAINING = Training(global_batch_size=64, sequence_length=4096, optimizer=OPTIMIZER)
DECODE = Decode(batch_size=64, context_length=4096)


def model_of(network=DENSE, layers=32):
    return ModelSpec(
        name="test",
        architecture="test",
        hidden_size=4096,
        vocab_size=32000,
        layer_kinds=(LayerSpec(**{"attention": ATTENTION, **network}),),
        layer_pattern=(0,) * layers,
    )


def names(plan_options, network=DENSE, workload=TRAINING, **degrees):
    columns = stack([make_strategy(**degrees)])
    found = all_refusals(model_of(network), workload, columns, plan_options)
    return {refusal.name for refusal in found}


BREAKING = {
    "tp-heads": (PLAIN, DENSE, {"tp": 3}, "32 heads are not divisible by tp 3"),
    "tp-kv-heads": (PLAIN, DENSE, {"tp": 12}, "8 key and value heads and tp 12: neither divides"),
    "tp-width": (PLAIN, DENSE, {"tp": 3}, "inner width 16384 is not divisible by tp 3"),
    "sp-without-tp": (SPLIT, DENSE, {}, "sequence parallelism with tp 1 splits nothing"),
    "sp-sequence": (SPLIT, DENSE, {"tp": 3}, "sequence 4096 is not divisible by cp 1 x tp 3"),
    "cp-sequence": (PLAIN, DENSE, {"cp": 3}, "sequence 4096 does not divide into equal parts"),
    "cp-heads": (
        ULYSSES,
        DENSE,
        {"cp": 64},
        "32 heads (8 key heads) do not divide by tp 1 x cp 64",
    ),
    "ulysses-without-cp": (ULYSSES, DENSE, {}, "ulysses with cp 1 changes nothing"),
    "cp-states": (
        PLAIN,
        STATES,
        {"tp": 2, "cp": 6},
        "128 heads and 8 groups of a recurrence do not divide by tp 2 x cp 6",
    ),
    "tp-states": (PLAIN, STATES, {"tp": 16}, "128 heads and 8 groups of a recurrence are not"),
    "tatp-states": (PLAIN, STATES, {"tatp": 4}, "recurrent layers do not stream: tatp 4"),
    "dp-even": (
        PLAIN,
        DENSE,
        {"dp_shard": 3},
        "64 sequences are not divisible by dp 3 x micro-batch 1",
    ),
    "dp-batch": (
        PLAIN,
        DENSE,
        {"dp_shard": 32, "micro_batch_size": 4},
        "dp 32 x micro-batch 4 exceeds the batch of 64 sequences",
    ),
    "zero-without-shards": (
        replace(PLAIN, zero_stage=1),
        DENSE,
        {"dp_shard": 1, "dp_replicate": 4},
        "ZeRO 1 over dp_shard 1 and cp 1 shards nothing",
    ),
    "ep-dense": (PLAIN, DENSE, {"ep": 2, "dp_shard": 2}, "ep 2, etp 1 in a model without experts"),
    "ep-experts": (
        PLAIN,
        EXPERTS,
        {"ep": 3, "dp_shard": 3},
        "64 experts are not divisible by ep 3",
    ),
    "ep-devices": (
        PLAIN,
        EXPERTS,
        {"ep": 8, "dp_shard": 4},
        "ep 8 x etp 1 does not divide dp 4 (dp_shard 4) x cp 1 x tp 1",
    ),
    "ep-overlap": (
        replace(PLAIN, overlap_expert_parallel=True),
        EXPERTS,
        {"dp_shard": 4},
        "communication of experts overlapped with ep 1 under schedule 1f1b",
    ),
    "recompute-modules": (
        replace(PLAIN, recompute=Recompute.SELECTIVE, recompute_modules=("moe_act",)),
        DENSE,
        {},
        "the model has not all of the modules moe_act",
    ),
    "etp-width": (
        PLAIN,
        EXPERTS,
        {"tp": 32, "etp": 3},
        "expert width 2048 is not divisible by etp 3",
    ),
    "pp-layers": (PLAIN, DENSE, {"pp": 33}, "pp 33 x 1 chunks are too many for 32 layers"),
    "edge-layers-without-pp": (
        replace(PLAIN, head_layers=2),
        DENSE,
        {},
        "embedding counted as 0 layers, head as 2, with pp 1",
    ),
    "pp-stage-layers": (
        replace(PLAIN, stage_layers=(9, 7, 7, 8)),
        DENSE,
        {"pp": 4},
        "stages of 9+7*2+8 layers with pp 4 x 1 and 32 layers",
    ),
    "recompute-runs": (
        replace(PLAIN, recompute=Recompute.FULL, recompute_layers=2, recompute_run=4),
        DENSE,
        {},
        "recomputation of 2 layers of each chunk, in runs of 4",
    ),
    "pp-micro-batches": (
        INTERLEAVED,
        DENSE,
        {"pp": 4, "num_virtual_stages": 2, "dp_shard": 32},
        "2 micro-batches are not divisible by pp 4 under interleaving",
    ),
    "pp-schedule": (PLAIN, DENSE, {"pp": 4, "num_virtual_stages": 2}, "2 virtual stages under"),
    "schedule-without-pp": (
        replace(PLAIN, schedule=ScheduleKind.GPIPE),
        DENSE,
        {},
        "schedule gpipe with 1 virtual stages and pp 1",
    ),
    "vocabulary-parallel-schedule": (
        replace(PLAIN, vocabulary_parallel=True),
        DENSE,
        {},
        "vocabulary parallelism with pp 1 under schedule 1f1b",
    ),
    "tatp-rows": (PLAIN, DENSE, {"tatp": 64}, "1 x 4096 tokens over cp 1 x tatp 64 are fewer"),
    "tatp-columns": (PLAIN, DENSE, {"tatp": 64}, "widths 4096 and 16384 over tp 1 x tatp 64 leave"),
    "tatp-both": (
        replace(PLAIN, streamed=Streamed.BOTH),
        DENSE,
        {"tp": 1, "tatp": 4},
        "a block of two sides, not on tp 1 x tatp 4",
    ),
}


def test_every_rule_has_a_breaking_case():
    of_frameworks = {rule.name for rule in launching.rules()}
    assert {*BREAKING, "cp-decode"} | of_frameworks == set(all_rules())


@pytest.mark.parametrize("name", BREAKING)
def test_a_broken_rule_refuses_explains_and_offers_a_change(name):
    plan_options, network, degrees, message = BREAKING[name]
    columns = stack([make_strategy(**degrees)])
    model = model_of(network)
    found = {r.name: r for r in all_refusals(model, TRAINING, columns, plan_options)}
    case = Case(model, TRAINING, plan_options, columns)
    assert message in found[name].text(case, 0)
    rules = (*axis_rules(), *launching.rules())
    _, offer = found_faults(rules, case, 512)
    assert offer
    assert not list(refusals(rules, changed(case, offer)))


def changed(case, offer):
    """Return a case with an offer applied."""
    strategy, plan_options = with_change(row(case.s, 0), case.plan_options, offer)
    return replace(case, s=stack([strategy]), plan_options=plan_options)


@pytest.mark.parametrize(
    ("plan_options", "network", "degrees"),
    [
        (PLAIN, DENSE, {}),
        (SPLIT, DENSE, {"tp": 16, "pp": 4, "dp_shard": 4}),
        (PLAIN, DENSE, {"tp": 16}),  # each of 8 key heads on two ranks
        (PLAIN, DENSE, {"pp": 3}),  # uneven stages: 11, 11, 10
        (INTERLEAVED, DENSE, {"pp": 4, "num_virtual_stages": 3, "dp_shard": 16}),
        (replace(PLAIN, head_layers=7), DENSE, {"pp": 4}),  # 10, 10, 10, 2
        (replace(PLAIN, stage_layers=(9, 7, 7, 9)), DENSE, {"pp": 4}),
        (SPLIT, DENSE, {"tp": 8, "cp": 4}),
        (SPLIT, STATES, {"tp": 8, "cp": 4}),  # each of 8 groups on four ranks of cp
        (INTERLEAVED, DENSE, {"pp": 4, "num_virtual_stages": 8, "dp_shard": 16}),
        (replace(PLAIN, zero_stage=1), DENSE, {"cp": 4}),
        (SPLIT, EXPERTS, {"tp": 4, "dp_shard": 4, "ep": 16}),
        (PLAIN, DENSE, {"tatp": 32}),
        (INPUTS, DENSE, {"tatp": 16}),
    ],
)
def test_legal_strategies_are_not_refused(plan_options, network, degrees):
    assert names(plan_options, network, **degrees) == set()


@pytest.mark.parametrize(
    ("plan_options", "degrees"),
    [
        (INTERLEAVED, {"pp": 7, "num_virtual_stages": 5}),  # 35 chunks: one in the middle is empty
        (replace(INTERLEAVED, head_layers=2), {"pp": 17, "num_virtual_stages": 2}),
        (replace(PLAIN, head_layers=10), {"pp": 4}),  # 11, 11, 10 and nothing
    ],
)
def test_chunks_without_layers_are_refused(plan_options, degrees):
    assert "pp-layers" in names(plan_options, **degrees)


def test_each_row_is_refused_by_the_first_rule_against_it():
    degrees = [{"tp": 3}, {}, {"tp": 12}, {"cp": 3}, {"tp": 2}]
    columns = stack([make_strategy(**each) for each in degrees])
    left, expected = np.ones(len(degrees), dtype=bool), {}
    for refusal in all_refusals(model_of(), TRAINING, columns, PLAIN):
        if (refusal.mask & left).any():
            expected[refusal.name] = np.flatnonzero(refusal.mask & left).tolist()
        left &= ~refusal.mask
    case = Case(model_of(), TRAINING, PLAIN, columns)
    assert {name: rows.tolist() for name, rows in first_refusals(case)} == expected
    assert len(expected) > 1
    assert left.tolist() == [False, True, False, False, True]


def test_chunks_without_layers_are_not_dealt(monkeypatch):
    """16,384 stages of 512 chunks would hold 64 MiB of layers; 32 layers fill at most 34 chunks."""
    made = []

    def recorded(num_layers, num_chunks, plan_options):
        made.append(num_chunks)
        return chunk_lengths(num_layers, num_chunks, plan_options)

    monkeypatch.setattr("meshwright.sharding.rules.chunk_lengths", recorded)
    assert "pp-layers" in names(INTERLEAVED, pp=16384, num_virtual_stages=512)
    assert made == []
    assert "pp-layers" not in names(INTERLEAVED, pp=17, num_virtual_stages=2)
    assert made
    assert max(made) == 34


def test_both_ends_of_an_interleaved_pipeline_may_hold_no_layer():
    """17 x 2 chunks of 32 layers; 64 micro-batches make no rounds of 17."""
    assert names(INTERLEAVED, pp=17, num_virtual_stages=2) == {"pp-micro-batches"}


def test_streamed_inputs_split_heads():
    assert names(INPUTS, tatp=12) >= {"tp-heads", "tp-kv-heads"}
    assert "tp-heads" not in names(PLAIN, tatp=12)


def test_decoding_does_not_split_its_one_token():
    assert names(PLAIN, workload=DECODE, cp=2) == {"cp-decode"}
    assert names(SPLIT, workload=DECODE, tp=8) == set()


def test_experts_stay_within_the_shards_of_one_replica_under_zero():
    degrees = {"dp_replicate": 4, "dp_shard": 2, "ep": 8}
    assert "ep-devices" in names(replace(PLAIN, zero_stage=1), EXPERTS, **degrees)
    assert "ep-devices" not in names(PLAIN, EXPERTS, **degrees)


def test_the_nearest_change_is_the_least_ratio():
    """From tp 24, 32 heads: 32 is nearer than 16."""
    case = Case(model_of(), TRAINING, PLAIN, stack([make_strategy(tp=24)]))
    assert found_faults(axis_rules(), case, 64)[1] == "tp=32"


def test_masks_mark_the_rows_that_break_a_rule():
    columns = stack([make_strategy(tp=n) for n in (1, 2, 3, 4, 5)])
    found = {r.name: r.mask for r in all_refusals(model_of(), TRAINING, columns, PLAIN)}
    assert np.flatnonzero(found["tp-heads"]).tolist() == [2, 4]


@pytest.mark.parametrize(
    ("plan_options", "network", "degrees"),
    [
        (replace(PLAIN, zero_stage=3), DENSE, {}),  # one shard: ZeRO is a no-op
        (PLAIN, DENSE, {"cp": 64}),  # 64 tokens a rank
        (PLAIN, EXPERTS, {"tp": 4}),  # few tokens an expert
        (PLAIN, EXPERTS, {"tp": 32, "etp": 32}),  # 64 columns of an expert
    ],
)
def test_what_is_slow_or_without_effect_is_no_law(plan_options, network, degrees):
    assert names(plan_options, network, **degrees) == set()
