"""Groups of axes on the levels of the network."""

import numpy as np
import pytest

from meshwright.catalog.models import load_model
from meshwright.catalog.systems import load_system
from meshwright.cost.communication import copies_per_host
from meshwright.sharding.strategy import AXES, make_strategy, stack
from meshwright.spec.model import ExpertSpec
from meshwright.spec.workload import SoftwareStack
from meshwright.train.question import make_problem, training


def routed(top_k, **groups):
    return ExpertSpec(num_experts=256, top_k=top_k, ffn_size=2048, **groups)


def test_copies_per_host():
    """Two experts on two hosts: the same one half of the time, so 1.5 hosts for 2 copies."""
    two, eight = routed(2), routed(8)
    assert copies_per_host(2.0, two) == pytest.approx(2 / 1.5)
    assert copies_per_host(1.0, eight) == 8.0
    assert copies_per_host(1e9, eight) == pytest.approx(1.0)
    assert copies_per_host(np.array([1.0, 2.0]), two).tolist() == [2.0, copies_per_host(2.0, two)]


def test_groups_limit_the_hosts_of_a_token():
    """DeepSeek-V3: 8 of 256 experts from 4 of 8 groups, so from 4 of 8 hosts, or 8 of 16."""
    free, limited = routed(8), routed(8, num_groups=8, top_groups=4)
    for num_hosts, reached in ((2.0, 2.0), (4.0, 4.0), (8.0, 4.0), (16.0, 8.0)):
        assert copies_per_host(num_hosts, limited) == copies_per_host(reached, free)
    assert copies_per_host(8.0, limited) == pytest.approx(8 / (4 * (1 - 0.75**8)))


def test_deepseek_v3_states_its_groups():
    v3, v2, lite = (
        next(kind.experts for kind in load_model(name).layer_kinds if kind.experts)
        for name in ("deepseek-v3", "deepseek-v2", "deepseek-v2-lite")
    )
    assert (v3.num_groups, v3.top_groups) == (8, 4)
    assert (v2.num_groups, v2.top_groups) == (8, 3)
    assert (lite.num_groups, lite.top_groups) == (1, 1)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"num_groups": 3}, "3 do not divide 256"),
        ({"num_groups": 2, "top_groups": 3}, "3 of only 2 groups"),
        ({"num_groups": 64, "top_groups": 1}, "1 hold fewer than 8 experts"),
    ],
)
def test_groups_hold_the_experts_of_a_token(groups, message):
    with pytest.raises(ValueError, match=message):
        routed(8, **groups)


def bandwidths(**software):
    work = training(
        "64xH100", global_batch_size=64, sequence_length=4096, software=SoftwareStack(**software)
    )
    problem = make_problem("mixtral-8x22b", load_system("64xH100"), work, "uncalibrated")
    network = problem.network(AXES, stack([make_strategy(dp_shard=64, ep=16)]))
    return [float(span.bandwidth_bytes_per_s[0]) for span in network.group("ep").spans]


def test_only_links_between_hosts_carry_a_token_once():
    once, each = bandwidths(), bandwidths(deduplicated_dispatch=False)
    assert once[0] == each[0]
    assert once[1] == pytest.approx(each[1] * 2 / 1.5)
