"""The frameworks of the catalog: every file and version loads, and says where it is from."""

import pytest

from meshwright.base.errors import SpecError, UnknownNameError
from meshwright.catalog.frameworks import framework_names, framework_versions, load_framework
from meshwright.catalog.workloads import optimizer_names

EVERY = [
    f"{name}=={version}" if version else name
    for name in framework_names()
    for version in framework_versions(name)
]


@pytest.mark.parametrize("text", EVERY)
def test_every_version_is_whole(text):
    framework = load_framework(text)
    assert framework.sources
    assert framework.optimizer_of("bf16") in optimizer_names()
    assert framework.optimizer_of("fp16") in optimizer_names()
    launches = framework.launches
    assert framework.zero_stage in launches.zero_stages
    assert framework.recompute in launches.recompute
    assert framework.overlaps_data_parallel in launches.overlaps_data_parallel
    assert ("pp" in launches.axes) == bool(launches.schedules)
    assert ("cp" in launches.axes) == bool(launches.context_kinds)
    stack = framework.stack(family="hopper", precision="bf16")
    assert stack.framework == text
    assert stack.async_tensor_parallel in launches.overlaps_tensor_parallel


def test_a_version_changes_what_it_states_and_keeps_the_rest():
    today, papers = load_framework("megatron"), load_framework("Megatron==2021")
    assert today is not papers
    assert (today.version, papers.version) == ("0.19.2", "2021")
    assert (today.zero_stage, papers.zero_stage) == (1, 0)
    assert papers.launches.schedules == today.launches.schedules
    assert papers.optimizer_of("fp16") == "megatron-adam-fp16"


def test_kernels_are_native_to_the_chips_that_they_were_written_for():
    torchtitan = load_framework("torchtitan")
    for family, kernels in (("ampere", "native"), ("hopper", "portable")):
        assert torchtitan.stack(family=family, precision="bf16").attention_kernels == kernels


def test_gradients_are_summed_whole_in_bf16_alone():
    fork = load_framework("megatron-deepspeed")
    found = [
        fork.stack(family="ampere", precision=p).sums_whole_gradients for p in ("bf16", "fp16")
    ]
    assert found == [True, False]


def test_wrong_names_and_versions_say_what_is_known():
    with pytest.raises(UnknownNameError, match="megatron"):
        load_framework("megatorn")
    with pytest.raises(SpecError, match=r"0\.19\.2 or 2021"):
        load_framework("megatron==0.1")


def test_a_name_in_a_title_is_told_with_its_frameworks():
    with pytest.raises(SpecError, match=r"unknown name 'pytorch' \(did you mean fsdp\?\)"):
        load_framework("pytorch")
    with pytest.raises(SpecError, match="did you mean automodel or megatron-bridge"):
        load_framework("NeMo")
