"""Ways of tokens to their experts: copies by hand and by drawing them, halves that overlap."""

from dataclasses import replace

import numpy as np
import pytest

from meshwright.collectives.group import Group, Span
from meshwright.serve.dispatch import dispatch_s, modes_s
from meshwright.serve.price import price_serving
from meshwright.serve.serve import serve, serving_problem
from meshwright.sharding.strategy import PlanOptions, make_strategy, stack
from meshwright.spec.calibration import NEUTRAL
from meshwright.spec.model import ExpertSpec
from meshwright.spec.workload import Decode, SoftwareStack

PLAIN = PlanOptions(sequence_parallel=False, zero_stage=0)
EXPERTS = ExpertSpec(num_experts=256, top_k=8, ffn_size=2048)


def links(in_host, hosts, inner=400e9, outer=50e9):
    """Return the links of some hosts, with no latency of their own."""
    one = np.ones(1)

    def span(size, rate):
        return Span(size * one, rate * one, 0.0 * one, 0.0 * one, one, False, False)

    return Group((span(in_host, inner), span(hosts, outer)))


def test_a_host_of_eight_gets_seven_copies_or_the_devices_that_hold_experts():
    low_latency_s, throughput_s = modes_s(1000.0, 7168.0, EXPERTS, links(8.0, 1.0), NEUTRAL)
    assert low_latency_s[0] == pytest.approx(1000 * 7168 * 7 / 400e9)
    assert throughput_s[0] == pytest.approx(1000 * 7168 * 7 * (1 - (7 / 8) ** 8) / 400e9)


def test_two_hosts_share_eight_copies():
    """Half of 8 copies leave a host; spread, one does unless all experts are at home."""
    low_latency_s, throughput_s = modes_s(1000.0, 7168.0, EXPERTS, links(8.0, 2.0), NEUTRAL)
    assert low_latency_s[0] == pytest.approx(1000 * 7168 * 4 / 50e9)
    assert throughput_s[0] == pytest.approx(1000 * 7168 * (1 - 1 / 2**8) / 50e9)


def test_a_start_grows_with_each_doubling_of_the_hosts():
    slow = replace(
        NEUTRAL, low_latency_start_s=1e-5, low_latency_turn_s=2e-6, throughput_start_s=4e-5,
        throughput_turn_s=3e-5,
    )  # fmt: skip
    low_latency_s, throughput_s = modes_s(0.0, 7168.0, EXPERTS, links(8.0, 4.0), slow)
    assert low_latency_s[0] == pytest.approx(1.4e-5)
    assert throughput_s[0] == pytest.approx(1e-4)
    assert dispatch_s(0.0, 7168.0, EXPERTS, links(8.0, 4.0), slow)[0] == pytest.approx(1.4e-5)
    assert dispatch_s(10.0, 7168.0, EXPERTS, links(1.0, 1.0), slow)[0] == 0.0


@pytest.mark.parametrize(("in_host", "hosts"), [(8, 1), (8, 2), (8, 4), (4, 3)])
def test_copies_are_those_of_a_random_router(in_host, hosts):
    """Experts drawn with replacement, as the closed form has them, for 4,000 tokens."""
    draw = np.random.default_rng(7)
    devices = draw.integers(in_host * hosts, size=(4000, 8))
    own = draw.integers(in_host * hosts, size=4000)
    away = devices // in_host != own[:, None] // in_host
    near = ~away & (devices != own[:, None])
    first = [np.unique(row) for row in devices // in_host]
    between = np.mean([np.sum(row != o // in_host) for row, o in zip(first, own, strict=True)])
    # A copy enters a host at the device with the number of its sender.
    inside = np.mean(
        [len({d for d in row if d % in_host != o % in_host})
         for row, o in zip(devices.tolist(), own.tolist(), strict=True)]
    )  # fmt: skip
    for name, expected in (("inner", (near.sum() / 4000, inside)),
                           ("outer", (away.sum() / 4000, between))):  # fmt: skip
        other = {"inner": "outer", "outer": "inner"}[name]
        alone = links(float(in_host), float(hosts), **{name: 1.0, other: np.inf})
        for mode, number in zip(modes_s(1.0, 1.0, EXPERTS, alone, NEUTRAL), expected, strict=True):
            assert mode[0] == pytest.approx(number, rel=0.03, abs=1e-9)


def problem(*, overlap, on="16xH100", model="deepseek-v3"):
    work = Decode(batch_size=2048, context_length=4096, two_batch_overlap=overlap,
                  software=SoftwareStack(cuda_graphs=True))  # fmt: skip
    return serving_problem(model, on, work, "sglang", "calibrated")


def wide(sequences):
    return stack([make_strategy(dp_replicate=16, ep=16, micro_batch_size=float(sequences))])


def test_of_two_halves_the_ways_that_outlast_the_computation_are_seen():
    whole = problem(overlap=True)
    half = price_serving(problem(overlap=False), PLAIN, wide(64), np.ones(1))
    both = price_serving(whole, PLAIN, wide(128), np.ones(1))
    plain = price_serving(problem(overlap=False), PLAIN, wide(128), np.ones(1))
    way_s, lost = half.time.ep_comm_s[0], whole.calibration.overlap_slowdown
    # Here computation outlasts dispatch: all of them are hidden, and slow it down.
    assert both.time.ep_comm_s[0] == pytest.approx(2.0 * way_s * lost)
    assert both.time.ep_comm_s[0] < plain.time.ep_comm_s[0]
    assert both.memory[0].weights_bytes[0] == plain.memory[0].weights_bytes[0]
    assert both.memory[0].kv_cache_bytes[0] == plain.memory[0].kv_cache_bytes[0]


def test_ways_that_take_longer_than_the_computation_are_exposed_by_the_rest():
    """Links of a thousandth: of a half with c computed and w on its way, w - c is seen."""
    asked = problem(overlap=True)
    levels = tuple(
        level.model_copy(update={"bandwidth_bytes_per_s": level.bandwidth_bytes_per_s / 1e3})
        for level in asked.system.levels
    )
    slow = replace(asked, system=asked.system.model_copy(update={"levels": levels}))
    off = slow.workload.model_copy(update={"two_batch_overlap": False})
    half = price_serving(replace(slow, workload=off), PLAIN, wide(64), np.ones(1))
    both = price_serving(slow, PLAIN, wide(128), np.ones(1))
    assert both.time.ep_comm_s[0] > 1.9 * half.time.ep_comm_s[0]
    assert both.time.ep_comm_s[0] < 2.0 * half.time.ep_comm_s[0]


def test_a_model_without_experts_has_no_halves_to_overlap():
    with pytest.raises(Exception, match="no experts"):
        problem(overlap=True, model="llama3-8b", on="8xH100")


def test_tensorrt_llm_does_not_overlap_halves():
    work = Decode(batch_size=8, context_length=1024, two_batch_overlap=True)
    with pytest.raises(Exception, match="does not overlap"):
        serve("deepseek-v3", "16xH200", work, server="tensorrt-llm-pytorch")


def test_grids_have_no_kernels_for_dispatch():
    work = Decode(batch_size=64, context_length=1024)
    asked = serving_problem("mixtral-8x7b", "64xTPU-v5p", work, "generic", "calibrated")
    strategy = stack([make_strategy(dp_replicate=8, ep=8, micro_batch_size=1.0)])
    network = asked.network(PLAIN.axis_order, strategy)
    assert network.at_full_rate.links("ep") is None
