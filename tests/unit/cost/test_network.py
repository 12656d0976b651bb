"""Groups of axes on the levels of the network."""

import numpy as np
import pytest

from meshwright.catalog.systems import load_system
from meshwright.cost.communication import copies_per_host
from meshwright.sharding.strategy import AXES, make_strategy, stack
from meshwright.spec.workload import SoftwareStack
from meshwright.train.question import make_problem, training


def test_copies_per_host():
    """Two experts on two hosts: the same one half of the time, so 1.5 hosts for 2 copies."""
    assert copies_per_host(2.0, 2) == pytest.approx(2 / 1.5)
    assert copies_per_host(1.0, 8) == 8.0
    assert copies_per_host(1e9, 8) == pytest.approx(1.0)
    assert copies_per_host(np.array([1.0, 2.0]), 2).tolist() == [2.0, copies_per_host(2.0, 2)]


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
