"""The search for the best way to serve: objectives, limits, what it says when nothing fits."""

from dataclasses import replace

import numpy as np
import pytest

from meshwright.base.arrays import take_rows
from meshwright.base.errors import InfeasibleError
from meshwright.catalog.calibration import load_calibration
from meshwright.catalog.models import load_model
from meshwright.catalog.systems import load_system
from meshwright.serve.passes import ServingProblem, group_counts
from meshwright.serve.search import (
    ServingObjective,
    ServingSpace,
    batch_ladder,
    pareto_front,
    search_serving,
)
from meshwright.sharding.space import Choices
from meshwright.spec.workload import Decode, Precision, Prefill, SoftwareStack

GRAPHS = SoftwareStack(cuda_graphs=True)


def space(model, system, workload, **allowed):
    spec = load_system(system)
    constants = load_calibration(spec.chip.family)
    return ServingSpace(
        ServingProblem(load_model(model), spec, workload, constants), Choices(allowed)
    )


def decode(**fields):
    return Decode(**{"batch_size": 256, "context_length": 8192, "software": GRAPHS} | fields)


def test_ladder_by_hand():
    assert batch_ladder(5) == [1, 2, 3, 4, 5]
    assert batch_ladder(40) == [*range(1, 17), 18, 20, 22, 24, 26, 28, 30, 32, 36, 40]
    assert batch_ladder(71)[-4:] == [52, 56, 60, 64]


def test_groups_by_hand():
    assert group_counts(1) == [1]
    assert group_counts(6) == [1, 2, 3, 4, 5, 6]
    assert group_counts(40) == [*range(1, 9), 16, 32, 40]


def test_throughput_takes_the_latency_that_is_allowed():
    free = search_serving(space("llama3-70b", "8xH100", decode()))
    held = search_serving(space("llama3-70b", "8xH100", decode(max_time_per_output_token_s=0.02)))
    best, tight = free.ranked[0], held.ranked[0]
    assert held.fitting.latency_s[held.ranked].max() <= 0.02 < free.fitting.latency_s[best]
    assert held.fitting.tokens_per_s[tight] < free.fitting.tokens_per_s[best]
    assert held.num_too_slow == (held.fitting.latency_s > 0.02).sum() > 0


def test_the_largest_batch_in_time_is_tried_between_the_steps_of_the_ladder():
    found = search_serving(
        space("llama3-70b", "8xH100", decode(max_time_per_output_token_s=0.02), tp=(8,))
    )
    strategy, _, _ = found.candidate(found.ranked[0])
    assert strategy.micro_batch_size not in batch_ladder(256)
    one_more = space(
        "llama3-70b", "8xH100", decode(max_time_per_output_token_s=0.02), tp=(8,), pp=(1,),
        dp=(1,), micro_batch_size=(int(strategy.micro_batch_size) + 1,),
    )  # fmt: skip
    with pytest.raises(InfeasibleError, match="no candidate keeps 20 ms"):
        search_serving(one_more)


def test_least_latency_keeps_the_whole_batch_in_flight():
    found = search_serving(
        space("llama3-70b", "8xH100", decode(batch_size=64)), ServingObjective.LATENCY
    )
    rows = found.ranked
    assert (found.fitting.sequences_in_flight[rows] == 64).all()
    strategy, _, groups = found.candidate(rows[0])
    assert (strategy.tp, strategy.pp, groups, strategy.micro_batch_size) == (8, 1, 1, 64)


def test_ranked_splits_differ():
    found = search_serving(space("llama3-70b", "8xH100", decode()), top=8)
    splits = {(found.fitting.split_of[i], found.fitting.option_set_of[i]) for i in found.ranked}
    assert len(splits) == len(found.ranked) == 8


def test_candidates_are_priced_refused_or_over_memory():
    found = search_serving(space("mixtral-8x7b", "8xH100", decode()))
    counts = found.counts
    assert counts.priced == len(found.fitting)
    assert counts.total == counts.priced + counts.does_not_fit + sum(counts.refused.values())


def test_choices_are_kept():
    found = search_serving(space("llama3-70b", "8xH100", decode(), tp=(4,), pp=(2,)))
    assert set(found.fitting.strategy.tp) == {4.0}
    assert set(found.fitting.strategy.pp) == {2.0}


def test_cp_in_decode_is_refused_by_name():
    with pytest.raises(InfeasibleError, match="cp-decode"):
        search_serving(space("llama3-8b", "8xH100", decode(), cp=(2,)))


def test_what_would_fit_does_fit():
    # DeepSeek V3 has 671e9 parameters: 1,342 GB in bf16 on 640 GiB of eight H100.
    work = decode(batch_size=4, context_length=1024)
    with pytest.raises(InfeasibleError) as caught:
        search_serving(space("deepseek-v3", "8xH100", work))
    text = str(caught.value)
    assert "the leanest of 215, tp8 ep8" in text
    assert "would fit: weights in fp4 or 32 devices" in text
    narrow = work.model_copy(update={"precision": Precision(weight="fp4")})
    assert len(search_serving(space("deepseek-v3", "8xH100", narrow)).ranked)
    assert len(search_serving(space("deepseek-v3", "32xH100", work)).ranked)
    with pytest.raises(InfeasibleError):
        search_serving(space("deepseek-v3", "16xH100", work))


def test_too_tight_a_latency_names_the_fastest():
    with pytest.raises(InfeasibleError, match=r"keeps 1 ms per output token: the fastest, tp8"):
        search_serving(space("llama3-70b", "8xH100", decode(max_time_per_output_token_s=1e-3)))


def test_a_batch_that_never_fits_at_once_names_the_most_that_does():
    with pytest.raises(InfeasibleError, match=r"whole batch of 4096 sequences"):
        search_serving(
            space("llama3-70b", "8xH100", decode(batch_size=4096)), ServingObjective.LATENCY
        )


def test_one_long_prompt_is_shared_by_all_devices():
    work = Prefill(batch_size=1, prompt_length=131_072, software=GRAPHS)
    found = search_serving(space("llama3-70b", "64xH100", work), ServingObjective.LATENCY)
    strategy, _, _ = found.candidate(found.ranked[0])
    assert strategy.cp > 1
    assert strategy.pp == 1
    assert strategy.num_devices == 64


def test_front_by_hand():
    found = search_serving(space("llama3-8b", "8xH100", decode(), tp=(8,), pp=(1,), dp=(1,)))
    rows = take_rows(found.fitting, np.arange(4))
    user = np.array([10.0, 8.0, 9.0, 8.0])
    system = np.array([100.0, 300.0, 90.0, 200.0])
    rows = replace(rows, tokens_per_s_per_user=user, tokens_per_s=system)
    assert pareto_front(rows).tolist() == [0, 1]
