"""What is offered as the nearest legal change passes ``check`` once it is applied."""

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from offered_changes import with_change

from meshwright.catalog.models import load_model
from meshwright.catalog.systems import load_system
from meshwright.sharding.strategy import (
    ContextKind,
    PlanOptions,
    Recompute,
    ScheduleKind,
    make_strategy,
)
from meshwright.train.question import check, training

MODELS = ("llama3-8b", "qwen3-30b-a3b", "gpt-oss-20b", "deepseek-v2-lite")
FRAMEWORKS = (None, "megatron", "torchtitan", "accelerate", "deepspeed", "maxtext", "fsdp")
NAMES = ("tp", "cp", "pp", "dp_shard", "ep", "micro_batch_size", "num_virtual_stages")
DEGREE = st.sampled_from([1, 2, 3, 4, 5, 6, 8, 12, 16, 64])


@settings(max_examples=6, deadline=None, phases=[Phase.generate])
@given(
    model=st.sampled_from(MODELS), framework=st.sampled_from(FRAMEWORKS),
    degrees=st.fixed_dictionaries(dict.fromkeys(NAMES, DEGREE)),
    zero_stage=st.sampled_from([0, 1, 2, 3]), recompute=st.sampled_from(Recompute),
    schedule=st.sampled_from(ScheduleKind), kind=st.sampled_from(ContextKind),
    sequence_parallel=st.booleans(),
)  # fmt: skip
def test_a_change_that_is_offered_is_legal(
    model, framework, degrees, zero_stage, recompute, schedule, kind, sequence_parallel
):
    system = load_system("64xH100")
    work = training(system, global_batch_size=256, sequence_length=8192, framework=framework)
    plan_options = PlanOptions(
        zero_stage=zero_stage, recompute=recompute, schedule=schedule, context_kind=kind,
        sequence_parallel=sequence_parallel,
    )  # fmt: skip
    strategy = make_strategy(**degrees)
    faults = check(load_model(model), system, work, strategy, plan_options)
    offers = {fault.fix for fault in faults if "=" in fault.fix}
    for offer in offers:
        changed = with_change(strategy, plan_options, offer)
        assert check(load_model(model), system, work, *changed) == []
