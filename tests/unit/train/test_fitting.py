"""What does not fit: which memory is the limit, what fits instead, and plan and fit agree."""

import random

import pytest
from sampled import sampled

from meshwright.base.errors import InfeasibleError, SpecError
from meshwright.catalog.systems import load_system
from meshwright.sharding.strategy import Offload, PlanOptions, Recompute, make_strategy
from meshwright.spec.system import HostLink
from meshwright.train.answer import Fit
from meshwright.train.explain import what_would_fit
from meshwright.train.plan import plan
from meshwright.train.price import estimate
from meshwright.train.question import training

GIB = 2.0**30


def system_of(*, host_gib=256.0, device_gib=80.0):
    """Return eight H100 with other memories."""
    system = load_system("8xH100")
    memory = system.chip.main_memory.model_copy(update={"capacity_bytes": device_gib * GIB})
    memories = (*system.chip.memories[:-1], memory)
    chip = system.chip.model_copy(update={"memories": memories})
    host = HostLink(capacity_bytes=host_gib * GIB, bandwidth_bytes_per_s=50e9)
    return system.model_copy(update={"host": host, "chip": chip})


def priced(model="llama3-70b", system=None, *, batch=8, length=8192, tp=1, **choices):
    system = system or system_of()
    work = training(system, global_batch_size=batch, sequence_length=length)
    strategy = make_strategy(tp=tp, dp_shard=8 // tp)
    plan_options = PlanOptions(**{"sequence_parallel": tp > 1, **choices})
    return estimate(model, system, work, strategy, plan_options)


def tiles_of(found):
    return {tile.label: tile.answer for tile in found.page().tiles}


def test_host_memory_is_a_limit_of_its_own():
    found = priced(zero_stage=3, offload=Offload.ALL)
    price = found.best.estimate
    assert price.memory_bytes < price.memory_capacity_bytes
    assert price.host_capacity_bytes_per_device == 256.0 * GIB
    assert price.host_shortage_bytes == price.host_bytes_per_device - 256.0 * GIB > 0
    assert price.device_shortage_bytes == 0.0
    assert not price.fits
    for answer in (Fit(**vars(found)), found):
        said = tiles_of(answer)["NO FIT"]
        assert said.endswith("too much for each device in the memory of its host")
        assert "fullest device" not in said


def test_both_memories_may_be_too_small():
    price = priced(zero_stage=1, offload=Offload.ALL).best.estimate
    assert price.device_shortage_bytes > 0
    assert price.host_shortage_bytes > 0


def test_nothing_on_the_host_needs_no_host():
    price = priced("gpt2-355m", length=1024, zero_stage=1).best.estimate
    assert price.host_capacity_bytes_per_device is None
    assert price.fits


def test_recomputation_is_the_first_advice_where_it_is_enough():
    advice = what_would_fit(priced("llama3-8b", system_of(device_gib=82.0), zero_stage=1))
    assert advice[0].plan_options.recompute is not Recompute.NONE
    # Others are faster, and come after it all the same.
    assert advice[0].estimate.step_time_s > advice[1].estimate.step_time_s
    assert all(entry.estimate.fits for entry in advice)


@pytest.mark.slow
def test_where_no_single_change_is_enough_the_best_plan_is_the_advice():
    found = priced(zero_stage=1)
    (advice,) = what_would_fit(found)
    assert advice.text == plan("llama3-70b", found.system, found.workload).best.text


def test_where_nothing_fits_the_screen_says_so():
    found = priced(system=system_of(device_gib=8.0, host_gib=1.0), zero_stage=1)
    assert what_would_fit(found) == []
    assert tiles_of(Fit(**vars(found)))["fits with"].startswith("no plan on 8xH100")


def shortage(system, **allowed):
    work = training(system, global_batch_size=8, sequence_length=8192)
    with pytest.raises(InfeasibleError) as caught:
        plan("llama3-70b", system, work, allowed=allowed)
    return str(caught.value)


def test_a_search_names_the_memory_that_is_the_limit():
    text = shortage(system_of(host_gib=64.0))
    assert "Host memory is the limit" in text
    assert "on a host that has 64.0 GiB" in text
    assert "Device memory is the limit" in shortage(system_of(device_gib=6.0))


def test_a_search_tries_what_takes_gradients_off_the_device():
    """Weights, gradients and state leave less of it behind than weights, state and activations."""
    system = system_of(device_gib=8.0)
    work = training(system, global_batch_size=8, sequence_length=8192)
    found = plan("llama3-70b", system, work, allowed={"cp": [1], "pp": [1]})
    assert found.best.plan_options.offload is Offload.STATE


@pytest.mark.slow
def test_a_search_with_fixed_choices_says_which_one_to_let_go():
    fixed = {"tp": [8], "recompute": [Recompute.NONE], "offload": [Offload.OPTIMIZER]}
    text = shortage(system_of(), **fixed)
    assert "With another recompute it fits: tp8" in text
    # Where recomputation is free, the next choice that helps.
    assert "With another offload it fits: tp8" in shortage(
        system_of(), tp=[8], offload=[Offload.NONE]
    )


FIXED = ("tp", "pp", "cp", "dp", "dp_shard", "micro_batch_size")
CHOSEN = ("recompute", "zero_stage", "offload", "sequence_parallel", "overlap_data_parallel",
          "schedule", "context_kind")  # fmt: skip


@pytest.mark.parametrize("seed", sampled(range(12), 1))
def test_fit_and_plan_agree_on_every_strategy(seed):
    """A strategy fits if and only if a search in which all of it is fixed finds it."""
    chance = random.Random(seed)
    system = system_of(
        device_gib=chance.choice([8.0, 12.0, 16.0, 24.0]), host_gib=chance.choice([2.0, 6.0, 40.0])
    )
    work = training(system, global_batch_size=16, sequence_length=2048)
    outcomes = set()
    for _ in range(8):
        tp, pp = chance.choice([1, 2, 4]), chance.choice([1, 2])
        dp = 8 // (tp * pp)
        shard = chance.choice([n for n in (1, 2, 4, 8) if dp % n == 0])
        strategy = make_strategy(
            tp=tp, pp=pp, dp_shard=shard, dp_replicate=dp / shard,
            micro_batch_size=chance.choice([1, 2]),
        )  # fmt: skip
        plan_options = PlanOptions(
            sequence_parallel=tp > 1,
            zero_stage=chance.choice([1, 2, 3]) if shard > 1 else 0,
            recompute=chance.choice(list(Recompute)),
            offload=chance.choice(list(Offload)),
        )
        allowed = {name: [int(getattr(strategy, name))] for name in FIXED}
        allowed |= {name: [getattr(plan_options, name)] for name in CHOSEN}
        try:
            fits = estimate("llama3.2-1b", system, work, strategy, plan_options).best.estimate.fits
        except SpecError:
            continue
        try:
            found = plan("llama3.2-1b", system, work, allowed=allowed)
        except InfeasibleError:
            assert not fits
        else:
            assert fits
            assert found.best.plan_options.offload is plan_options.offload
        outcomes.add(fits)
    assert outcomes
