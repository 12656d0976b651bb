"""Any strategy: refused with reasons, or written so that the degrees come back."""

import re
from ast import literal_eval
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.frameworks.launch import layers_of_chunks
from meshwright.frameworks.registry import exporters, refusals, rendered
from meshwright.sharding.strategy import ContextKind, Offload, Recompute, ScheduleKind

OWN_FILES = ("axolotl", "torchtune")
"""Targets with no degree of each axis in their files; see ``tests/cases/test_adapters.py``."""
FRAMEWORKS = sorted(n for n in exporters if exporters[n].is_text and n not in OWN_FILES)
DEGREE = st.sampled_from([1, 1, 2, 3, 4, 8])
ORDERS = (
    ("tp", "tatp", "cp", "dp_shard", "dp_replicate", "pp"),
    ("tp", "tatp", "cp", "pp", "dp_shard", "dp_replicate"),
    ("tp", "tatp", "dp_shard", "dp_replicate", "cp", "pp"),
)

degrees = st.fixed_dictionaries(
    {
        "tp": DEGREE, "pp": DEGREE, "cp": st.sampled_from([1, 2]), "dp_shard": DEGREE,
        "dp_replicate": st.sampled_from([1, 2]), "micro_batch_size": st.sampled_from([1, 2, 3]),
        "num_virtual_stages": st.sampled_from([1, 1, 1, 2]), "tatp": st.sampled_from([*[1] * 9, 2]),
    }
)  # fmt: skip
option_sets = st.fixed_dictionaries(
    {
        "sequence_parallel": st.booleans(),
        "context_kind": st.sampled_from(ContextKind),
        "zero_stage": st.integers(0, 3),
        "reshard_after_forward": st.sampled_from([True, True, False]),
        "recompute": st.sampled_from(Recompute),
        "schedule": st.sampled_from(ScheduleKind),
        "offload": st.sampled_from([*[Offload.NONE] * 9, *Offload]),
        "axis_order": st.sampled_from(ORDERS),
        "embedding_layers": st.sampled_from([0, 0, 0, 1]),
        "head_layers": st.sampled_from([0, 0, 1, 3]),
        "recompute_layers": st.sampled_from([0, 0, 0, 2]),
        "recompute_run": st.sampled_from([1, 1, 1, 2]),
        "overlap_expert_parallel": st.sampled_from([*[False] * 9, True]),
    }
)


def meaningful(sizes: dict[str, int], choices: dict[str, object]) -> dict[str, object]:
    """Return the choices without those that mean nothing for these degrees.

    What remains is refused now and then for what it asks, not for asking nothing.
    """
    plain = {}
    if sizes["tp"] == 1:
        plain["sequence_parallel"] = False
    if sizes["pp"] == 1:
        plain |= {"embedding_layers": 0, "head_layers": 0}
    if sizes["cp"] == 1:
        plain["context_kind"] = ContextKind.RING
    if sizes["dp_shard"] * sizes["cp"] == 1:
        plain["zero_stage"] = 0
    if sizes["num_virtual_stages"] > 1 and sizes["pp"] > 1:
        plain["schedule"] = ScheduleKind.INTERLEAVED
    elif sizes["pp"] == 1 or choices["schedule"] is ScheduleKind.INTERLEAVED:
        plain["schedule"] = ScheduleKind.ONE_F_ONE_B
    return choices | plain


WITHOUT_DATA = ("megatron", "megatron-bridge", "deepspeed")
"""Targets that find dp out from the number of processes."""
COMMON = ("megatron", "torch", "torchtitan")


def product_in(target: str, text: str) -> int:
    """Return the product of the written degrees over all axes of the mesh."""
    if target == "deepspeed":
        return prod(map(int, re.findall(r"(?:_SP_SIZE=|\"autotp_size\": )(\d+)", text)))
    if target == "accelerate":
        sizes = re.findall(r"parallelism_config_\w+_size: (\d+)", text)
        return prod(map(int, sizes)) if sizes else processes_in(text)
    if target == "torch":
        return prod(literal_eval(text.partition("\nMESH = ")[2].partition("\n")[0]).values())
    if target == "maxtext":
        return prod(map(int, re.findall(r"(?:ici|dcn)_\w+_parallelism=(\d+)", text)))
    if target == "megatron-bridge":
        sizes = re.findall(r"model\.(?:tensor|pipeline)_model_parallel_size=(\d+)", text)
        sizes += re.findall(r"model\.context_parallel_size=(\d+)", text)
        return prod(map(int, sizes))
    names = {
        "megatron": ("tensor-model-parallel-size", "pipeline-model-parallel-size",
                     "context-parallel-size"),
        "torchtitan": ("tensor_parallel_degree", "pipeline_parallel_degree",
                       "context_parallel_degree", "data_parallel_replicate_degree",
                       "data_parallel_shard_degree"),
    }[target.removesuffix("-autoparallel")]  # fmt: skip
    prefix = "--" if target == "megatron" else "--parallelism."
    words = text.split()
    return prod(int(words[words.index(prefix + name) + 1]) for name in names)


def processes_in(text: str) -> int:
    """Return the processes of all hosts."""
    if "num_processes: " in text:
        return int(text.partition("num_processes: ")[2].split()[0])
    if "maxtext.trainers" in text:
        return int(text.partition("# devices: ")[2].partition(",")[0])
    hosts = int(text.partition("--nnodes=")[2].split()[0])
    return hosts * int(text.partition("--nproc-per-node=")[2].split()[0])


@pytest.mark.slow
@given(degrees=degrees, plan_options=option_sets, target=st.sampled_from(FRAMEWORKS))
def test_refused_with_reasons_or_consistent(make_plan, degrees, plan_options, target):
    plan_options = meaningful(degrees, plan_options)
    plan = make_plan(degrees, plan_options, batch=48, system="512xH100")
    faults = refusals(plan, target)
    if faults:
        assert all(fault.path and fault.message for fault in faults)
        return
    text = "\n".join(rendered(plan, target).values())
    used = plan.best.estimate.num_devices_used
    assert processes_in(text) == used
    replicas = used // product_in(target, text)
    assert replicas == (
        degrees["dp_shard"] * degrees["dp_replicate"] if target in WITHOUT_DATA else 1
    )
    assert sum(layers_of_chunks(plan)) == plan.model.num_layers


@given(
    shards=st.sampled_from([1, 2, 4, 8]),
    tp=st.sampled_from([2, 4, 8]),
    pp=st.integers(1, 8),
    replicas=st.sampled_from([1, 2]),
)
def test_plain_plans_are_written_for_targets_with_all_axes(make_plan, shards, tp, pp, replicas):
    """FSDP with tensor and pipeline parallelism in the default order is common ground."""
    sizes = {"dp_shard": shards, "tp": tp, "pp": pp, "dp_replicate": replicas}
    stage = 3 if shards > 1 else 0
    num_devices = prod(sizes.values())
    if num_devices > 8 and num_devices % 8:
        return
    plan = make_plan(sizes, {"zero_stage": stage}, batch=48, system="1024xH100")
    for target in COMMON:
        (text,) = rendered(plan, target).values()
        assert processes_in(text) == num_devices
