"""The options that state a strategy state that one, and none of them is idle."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright import plan
from meshwright.ask.declared import allowed_of
from meshwright.ask.questions import Fixed
from meshwright.ask.stated import strategy_options, strategy_texts
from meshwright.catalog.models import load_model
from meshwright.sharding.space import order_named
from meshwright.sharding.strategy import (
    ContextKind,
    Offload,
    PlanOptions,
    Recompute,
    ScheduleKind,
    Streamed,
    StreamForm,
    make_strategy,
)
from meshwright.spec.workload import SoftwareStack
from meshwright.train.question import stated_strategy

MODEL = load_model("mixtral-8x7b")
ORDERS = Fixed.options["axis_order"].choices
SOFTWARE = [SoftwareStack(), SoftwareStack(framework="megatron"), SoftwareStack(framework="fsdp")]
degree = st.sampled_from([1, 2, 3, 4, 8])
tensors = st.sampled_from([(), ("context",), ("query_proj", "mlpwo")])


@st.composite
def option_sets(draw):
    covered = draw(st.sampled_from(Recompute))
    choices = {
        "recompute": covered,
        "context_kind": draw(st.sampled_from(ContextKind)),
        "zero_stage": draw(st.integers(0, 3)),
        "schedule": draw(st.sampled_from(ScheduleKind)),
        "offload": draw(st.sampled_from(Offload)),
        "streamed": draw(st.sampled_from(Streamed)),
        "stream_form": draw(st.sampled_from(StreamForm)),
        "axis_order": order_named(draw(st.sampled_from(ORDERS))),
        "embedding_layers": draw(st.integers(0, 2)),
        "stage_layers": draw(st.sampled_from([(), (7, 8, 8, 7), (3,)])),
    }
    switches = ("sequence_parallel", "reshard_after_forward", "overlap_data_parallel",
                "overlap_expert_parallel", "vocabulary_parallel")  # fmt: skip
    choices |= {name: draw(st.booleans()) for name in switches}
    if covered is Recompute.FULL:
        choices |= {"recompute_layers": draw(st.integers(0, 3)), "recompute_run": draw(degree)}
    if covered is Recompute.SELECTIVE:
        choices |= {"kept_tensors": draw(tensors), "offloaded_tensors": draw(tensors)}
    return PlanOptions(**choices)


def says(options, num_devices, software):
    allowed = allowed_of(Fixed.ask(options))
    return stated_strategy(
        {name: one for name, (one,) in allowed.items()}, MODEL, num_devices, software
    )


DEGREES = ("tp", "cp", "pp", "ep", "etp", "tatp", "num_virtual_stages", "micro_batch_size",
           "dp_shard", "dp_replicate")  # fmt: skip


@pytest.mark.slow
@given(
    st.fixed_dictionaries(dict.fromkeys(DEGREES, degree)),
    option_sets(),
    st.sampled_from([8, 64, 96]),
    st.sampled_from(SOFTWARE),
)
def test_options_state_their_strategy(degrees, plan_options, num_devices, software):
    strategy = make_strategy(**degrees)
    plan_options = replace(plan_options, overlap_tensor_parallel=software.async_tensor_parallel)
    options = strategy_options(strategy, plan_options, MODEL, num_devices, software)
    assert says(options, num_devices, software) == (strategy, plan_options)
    assert options.items() <= strategy_texts(strategy, plan_options).items()


def test_what_follows_from_the_rest_is_left_out():
    strategy = make_strategy(tp=8, pp=4, dp_shard=2)
    plan_options = PlanOptions()
    assert strategy_options(strategy, plan_options, MODEL, 64, SoftwareStack()) == {
        "tp": "8",
        "pp": "4",
    }
    idle = strategy_options(strategy, plan_options, MODEL, 128, SoftwareStack())
    assert idle == {"tp": "8", "pp": "4", "dp": "2"}  # half of the devices are idle


def test_plans_of_a_search_are_stated_with_their_price():
    from meshwright import estimate

    question = {"on": "8xH100", "seq": "8k", "global_batch": 64}
    found = plan("llama3-8b", **question)
    software = found.workload.software
    for entry in (found.best, *found.runners_up):
        options = strategy_options(entry.strategy, entry.plan_options, found.model, 8, software)
        again = estimate("llama3-8b", **question, **options).best
        assert (again.strategy, again.plan_options) == (entry.strategy, entry.plan_options)
        assert again.estimate.step_time_s == entry.estimate.step_time_s
