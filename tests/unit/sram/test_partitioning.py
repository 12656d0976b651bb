"""Layers cut into stages: published capacities, objectives, levels, proposals, mixed devices."""

import json
from itertools import pairwise

import numpy as np
import pytest
from tests.oracles.decode_groups import decode_schedule, measured_rates

from meshwright.base.errors import SpecError
from meshwright.catalog.answer_file import plain_data
from meshwright.catalog.footprint_files import FootprintFile, LayerFootprint
from meshwright.catalog.models import load_model
from meshwright.catalog.systems import load_system
from meshwright.cost.problem import UNCALIBRATED_NOTE
from meshwright.spec.workload import Decode, Precision, Prefill, SoftwareStack
from meshwright.sram.partition import Cut, partition, partition_measured
from meshwright.train.question import training
from meshwright.view.terminal import text_of

RECORDED = SoftwareStack(cuda_graphs=True)
INT8 = Precision(matmul="int8", weight="int8", activation="fp16")


def decode(batch=1, context=4096, **more):
    return Decode(batch_size=batch, context_length=context, software=RECORDED, **more)


def equal_layers(count, size_bytes, **more):
    layer = LayerFootprint(name="layer", repeat=count, size_bytes=size_bytes, **more)
    return FootprintFile(name="equal", layers=(layer,))


def test_a_70b_model_fills_four_wafers():
    """Cerebras 2024: 140 GB of weights at 16 bit over 44 GB."""
    plan = partition("llama3-70b", "4xWSE-3", decode())
    assert plan.fits
    assert (plan.proof.weights_lower_bound, plan.proof.num_stages, len(plan.stages)) == (4, 4, 4)
    assert plan.num_devices_used == 4


def test_a_405b_model_needs_nineteen_wafers_of_bytes_and_twenty_one_of_whole_layers():
    """810 GB / 44 GB = 18.4; six layers of 6.4 GB fill a wafer to 87 %, and 126 / 6 = 21."""
    plan = partition("llama3.1-405b", "21xWSE-3", decode())
    assert plan.proof.weights_lower_bound == 19
    assert plan.proof.num_stages == len(plan.stages) == 21
    short = partition("llama3.1-405b", "20xWSE-3", decode())
    assert not short.fits
    offers = {offer.kind: offer for offer in short.proposals}
    assert (offers["devices"].num_devices, len(short.stages)) == (21, 21)


def test_70b_at_8_bit_on_language_units():
    """80 layers of 0.875 GB, 230 MB each: bound 305; four devices a layer make 320."""
    plan = partition_measured(equal_layers(80, 0.875e9), Cut(capacity_bytes=230e6))
    assert not plan.fits
    assert plan.stages == ()
    assert len(plan.too_large) == 80
    assert plan.proof.lower_bound == 305
    (split,) = [offer for offer in plan.proposals if offer.kind == "split"]
    assert (split.num_stages, split.num_devices) == (80, 320)
    quarter = partition_measured(equal_layers(80, 0.875e9 / 4), Cut(capacity_bytes=230e6))
    assert len(quarter.stages) == 80


def test_the_model_itself_needs_its_embedding_too():
    plan = partition("llama3-70b", "64xGroq-LPU", decode(precision=INT8))
    assert len(plan.too_large) == 82
    (split,) = [offer for offer in plan.proposals if offer.kind == "split"]
    assert split.num_devices == 22 * 16  # 16 divides the heads, and holds a sixteenth of 2.1 GB
    split_up = partition("llama3-70b", "64xGroq-LPU", decode(precision=INT8),
                                 Cut(tensor_degree=16))  # fmt: skip
    assert (len(split_up.stages), split_up.fits) == (22, False)


@pytest.mark.parametrize(
    ("model", "system", "batch", "cut"),
    [
        ("llama3-70b", "4xWSE-3", 16, Cut()),
        ("llama3-70b", "16xWSE-3", 40, Cut(objective="time", num_groups=8)),
        ("llama3-70b", "12xWSE-3", 9, Cut(objective="count", num_groups=9)),
        ("llama3-70b", "64xH100", 30, Cut(level="hbm", num_groups=7)),
        ("mixtral-8x7b", "16xH100", 12, Cut(level="hbm", tensor_degree=2, expert_degree=2)),
        ("llama3-8b", "8xWSE-3", 5, Cut(objective="time", num_groups=5)),
    ],
)
def test_littles_law_holds_in_the_schedule_of_an_answer(model, system, batch, cut):
    """The stages of each answer, played round by round, yield what the closed form says."""
    plan = partition(model, system, decode(batch), cut)
    assert plan.fits
    price = plan.rates
    occupied = [stage.work_s + stage.send_s for stage in plan.stages]
    schedule = decode_schedule(occupied, plan.num_groups, 120)
    tokens_per_s, token_s = measured_rates(schedule, batch / plan.num_groups)
    late = 1 + price.time_parts_s["jitter_s"] / (price.latency_s - price.time_parts_s["jitter_s"])
    assert token_s * late == pytest.approx(price.latency_s)
    assert tokens_per_s * plan.replicas / late == pytest.approx(price.tokens_per_s)
    assert tokens_per_s * token_s == pytest.approx(batch)
    assert price.tokens_per_s * price.latency_s == pytest.approx(price.sequences_in_flight)
    assert price.sequences_in_flight == batch * plan.replicas
    assert sum(price.time_parts_s.values()) == pytest.approx(price.latency_s)


def fullest(plan):
    return max(stage.filled_fraction for stage in plan.stages)


def test_objectives_are_best_in_what_they_say():
    plans = {
        name: partition("llama3-70b", "16xWSE-3", decode(64), Cut(objective=name, num_groups=8))
        for name in ("count", "balance", "time")
    }
    assert len(plans["count"].stages) == len(plans["balance"].stages)
    assert fullest(plans["balance"]) < fullest(plans["count"]) <= 1
    rate = {name: plan.rates.tokens_per_s for name, plan in plans.items()}
    assert rate["time"] > rate["balance"]
    for plan in plans.values():
        assert [s.devices[0] for s in plan.stages] == list(range(len(plan.stages)))
        assert sum(stage.num_layers for stage in plan.stages) == 82


def test_every_layer_has_one_place_in_its_order():
    plan = partition("llama3-8b", "8xWSE-3", decode(2))
    names = ["embedding", *(f"layer {number}" for number in range(32)), "head"]
    ends = [(names.index(s.first_layer), names.index(s.last_layer)) for s in plan.stages]
    assert ends[0][0] == 0
    assert ends[-1][1] == 33
    assert all(second[0] == first[1] + 1 for first, second in pairwise(ends))


def test_spare_devices_hold_replicas():
    one = partition("llama3-70b", "4xWSE-3", decode())
    two = partition("llama3-70b", "9xWSE-3", decode())
    assert (two.replicas, two.num_devices_used) == (2, 8)
    assert two.rates.tokens_per_s == pytest.approx(2 * one.rates.tokens_per_s)
    assert any("1 of 9 devices stay idle" in note for note in two.warnings)


def test_levels_are_compared_and_the_cache_is_too_small():
    plan = partition("llama3-8b", "8xH100", decode(), Cut(level="hbm"))
    near, far = plan.levels
    assert (near.name, near.num_stages, far.name, far.num_stages) == ("l2", None, "hbm", 1)
    assert far.tokens_per_s == plan.rates.tokens_per_s


def test_batches_lie_on_a_front_up_to_the_largest():
    plan = partition("llama3-70b", "4xWSE-3", decode(8))
    rates = [(entry.tokens_per_s, entry.latency_s) for entry in plan.batches]
    assert rates == sorted(rates)
    # room beside the weights over the cache of a sequence, stage by stage
    free = [stage.room_bytes - stage.load_parts_bytes["weights"] for stage in plan.stages]
    cache = [stage.reserved_parts_bytes["kv_cache"] / 8 for stage in plan.stages]
    assert plan.largest_batch <= min(np.array(free) / np.array(cache)) + 1
    more = partition("llama3-70b", "4xWSE-3", decode(plan.largest_batch + 1))
    assert not more.fits
    assert partition("llama3-70b", "4xWSE-3", decode(plan.largest_batch)).fits


def test_proposals_that_leave_the_model_as_it_is_come_first_the_cheapest_ahead():
    asked = decode(3000)
    plan = partition("llama3-70b", "8xWSE-3", asked)
    kinds = [offer.kind for offer in plan.proposals]
    assert kinds[0] == "batch"
    exact = [offer for offer in plan.proposals if not offer.changes_numbers]
    assert list(plan.proposals[: len(exact)]) == exact
    costs = [offer.device_s_per_token for offer in exact if offer.device_s_per_token is not None]
    assert costs == sorted(costs)
    smaller = int(exact[0].what.split()[-1])
    assert partition("llama3-70b", "8xWSE-3", decode(smaller)).fits
    assert not partition("llama3-70b", "8xWSE-3", decode(smaller + 1)).fits


def test_narrower_weights_are_proposed_where_they_do():
    plan = partition("llama3-70b", "3xWSE-3", decode())
    offers = {offer.kind: offer for offer in plan.proposals}
    assert offers["quantise"].changes_numbers
    narrow = partition("llama3-70b", "3xWSE-3", decode(precision=Precision(weight="int8")))
    assert narrow.fits
    assert len(narrow.stages) == offers["quantise"].num_stages == 2


def test_layers_that_stay_near_save_time_when_the_others_stream():
    work = decode(precision=Precision(weight="int8"))
    plan = partition("llama3-8b", "8xSN40L", work)
    (stream,) = [offer for offer in plan.proposals if offer.kind == "stream"]
    far = next(level for level in plan.levels if level.name == "hbm")
    assert stream.latency_s < far.latency_s
    assert "saved" in stream.what


def test_training_keeps_more_micro_batches_on_earlier_stages():
    work = training("8xWSE-3", sequence_length=4096, global_batch_size=16)
    plan = partition("llama3-8b", "8xWSE-3", work)
    count = len(plan.stages)
    assert plan.fits
    assert count == 5
    for index, stage in enumerate(plan.stages[1:-1], start=1):
        each = stage.reserved_parts_bytes["kept_activations"] / stage.num_layers
        assert each / (count - index) == pytest.approx(
            plan.stages[1].reserved_parts_bytes["kept_activations"]
            / plan.stages[1].num_layers / (count - 1)
        )  # fmt: skip
    assert set(plan.stages[0].load_parts_bytes) == {"weights", "optimizer"}
    assert plan.rates.tokens_per_s == pytest.approx(16 * 4096 / plan.rates.latency_s)
    faster = partition("llama3-8b", "8xWSE-3", work, Cut(objective="time"))
    assert faster.rates.latency_s < plan.rates.latency_s


def test_early_stages_of_training_may_be_what_does_not_fit():
    work = training("64xWSE-3", sequence_length=32768, global_batch_size=64)
    plan = partition("llama3-8b", "64xWSE-3", work)
    assert (plan.stages, plan.too_large) == ((), ())
    assert "earlier stages keep more" in " ".join(text_of(plan.page()).split())
    offers = {offer.kind: offer for offer in plan.proposals}
    assert offers["batch"].changes_numbers
    assert not offers["split"].changes_numbers


def test_prompts_take_their_time_to_the_first_token():
    work = Prefill(batch_size=4, prompt_length=2048, software=RECORDED)
    plan = partition("llama3-70b", "4xWSE-3", work)
    assert plan.rates.tokens_per_s == pytest.approx(4 * 2048 / plan.rates.latency_s)
    assert plan.rates.tokens_per_s_per_user == pytest.approx(2048 / plan.rates.latency_s)


def mixed_system():
    """Eight wafers of which the last four are of the older type."""
    old = load_system("1xWSE-2").chip
    return load_system("8xWSE-3").model_copy(
        update={"other_chips": dict.fromkeys(range(4, 8), old)}
    )


def test_devices_of_two_types_are_filled_in_their_order():
    plans = {
        name: partition("llama3-70b", mixed_system(), decode(60), Cut(objective=name, num_groups=6))
        for name in ("count", "balance", "time")
    }
    assert {stage.room_bytes for stage in plans["count"].stages} == {44e9, 40e9}
    assert all(stage.filled_fraction <= 1 for stage in plans["count"].stages)
    assert fullest(plans["balance"]) <= fullest(plans["count"])
    slowest = {name: plan.rates.slowest_stage_s for name, plan in plans.items()}
    assert slowest["time"] <= slowest["balance"]
    assert plans["time"].replicas == 1


def test_measured_times_are_balanced_with_their_sends():
    layers = tuple(
        LayerFootprint(name=name, size_bytes=15e6, time_s=time_s, output_bytes=output)
        for name, time_s, output in (("a", 3e-3, 1e9), ("b", 1e-3, 1e3), ("c", 2e-3, 0.0))
    )
    file = FootprintFile(name="three", layers=layers)
    plan = partition_measured(file, Cut(objective="time"), "2xH100")
    assert [stage.last_layer for stage in plan.stages] == ["b", "c"]  # a cut after a sends 1 GB
    with pytest.raises(SpecError, match="time of every layer"):
        partition_measured(equal_layers(2, 1e6), Cut(objective="time", capacity_bytes=3e6))
    free = FootprintFile(name="free", layers=(LayerFootprint(name="x", size_bytes=1e6, time_s=0),))
    with pytest.raises(SpecError, match="time of every layer"):
        partition_measured(free, Cut(objective="time", capacity_bytes=3e6))


def test_sixteen_sockets_hold_the_largest_llama_in_hbm():
    """As published of SN40L; their SRAM holds 8 of its 810 GB. Nothing of them is fitted."""
    cut = Cut(level="hbm", tensor_degree=16)
    plan = partition("llama3.1-405b", "16xSN40L", decode(), cut)
    assert (plan.fits, len(plan.stages)) == (True, 1)
    near = partition("llama3.1-405b", "16xSN40L", decode(), Cut(tensor_degree=16))
    assert not near.fits
    assert near.proof.weights_lower_bound > 1
    assert not plan.rates.is_calibrated
    assert plan.rates.time_parts_s["reduction_s"] > 0


def test_replicas_of_a_short_row_may_beat_one_long_row():
    """Five layers of 1 ms on eight devices with room for three of them.

    Five stages: 1,000 passes/s; four, (2, 1, 1, 1), twice: 1,000; two, (3, 2), four times: 1,333.
    """
    layers = (LayerFootprint(name="x", size_bytes=70e6, time_s=1e-3, repeat=5),)
    file = FootprintFile(name="five", layers=layers)
    plan = partition_measured(file, Cut(objective="time"), "8xGroq-LPU")
    assert (sorted(stage.num_layers for stage in plan.stages), plan.replicas) == ([2, 3], 4)
    assert plan.passes_per_s == pytest.approx(4 / 3e-3)
    assert plan.num_devices_used == 8
    assert "1,333 passes/s" in text_of(plan.page())


def test_a_degree_that_splits_nothing_evenly_is_refused():
    with pytest.raises(SpecError, match="not divisible by tp 7"):
        partition("llama3-70b", "8xWSE-3", decode(), Cut(tensor_degree=7))
    with pytest.raises(SpecError, match="ep: 3 does not divide tp 4"):
        partition("mixtral-8x7b", "8xWSE-3", decode(), Cut(tensor_degree=4, expert_degree=3))
    with pytest.raises(SpecError, match="has no experts"):
        partition("llama3-70b", "8xWSE-3", decode(), Cut(tensor_degree=2, expert_degree=2))


@pytest.mark.parametrize("fits", [True, False])
def test_answers_are_data(fits):
    plan = partition("llama3-70b", "8xWSE-3" if fits else "2xWSE-3", decode(4))
    data = json.loads(json.dumps(plain_data(plan, with_defaults=True)))
    assert data["fits"] is fits
    assert len(data["stages"]) == len(plan.stages)
    first = data["stages"][0]
    held = {**first["load_parts_bytes"], **first["reserved_parts_bytes"]}
    assert first["held_bytes"] == sum(held.values())
    assert data["workload"]["kind"] == "decode"


def test_the_largest_model_of_the_catalog_is_cut_too():
    model = load_model("kimi-k2")
    plan = partition(model, "64xWSE-3", decode())
    assert plan.fits
    assert plan.proof.lower_bound <= len(plan.stages)


@pytest.mark.parametrize("devices", [4, 3])
def test_a_cut_tells_how_many_batches_or_ways_out_are_done(devices):
    heard = []
    plan = partition(
        "llama3-70b", f"{devices}xWSE-3", decode(), progress=lambda *counts: heard.append(counts)
    )
    assert plan.fits == (devices == 4)
    assert [done for done, _ in heard] == list(range(len(heard)))
    assert len(heard) == heard[0][1] > 1


def test_constants_are_those_of_plans_and_the_answer_says_which():
    plain = partition("llama3-8b", "8xH100", decode(), Cut(level="hbm"))
    known = partition("llama3-8b", "8xH100", decode(), Cut(level="hbm"), calibration="uncalibrated")
    assert plain.rates.is_calibrated
    assert not known.rates.is_calibrated
    assert UNCALIBRATED_NOTE in known.warnings
    assert UNCALIBRATED_NOTE not in plain.warnings
    assert plain.rates.latency_s != known.rates.latency_s
