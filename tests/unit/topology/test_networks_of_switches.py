"""Fat trees and dragonflies as the network of a system: what a device is sure of, wrong fields."""

from collections import Counter

import pytest

from meshwright.base.errors import SpecError
from meshwright.catalog.systems import load_system
from meshwright.spec.system import NetworkLevel, least_radix
from meshwright.topology.levels import network_of, topology_of

FILE = """
name: tried
chip: H100
num_devices: {devices}
sources: {{manual: {{title: tried}}}}
source: manual
levels:
  - {{name: host, kind: switch, size: {host}, bandwidth: 400 GB/s, latency: 2 us}}
  - {{name: net, kind: {kind}, size: {size}, bandwidth: 50 GB/s, latency: 5 us, {fields}}}
"""


def system(tmp_path, kind, fields, *, host=4, size=16):
    """Return the system of a file with hosts under a network of switches."""
    path = tmp_path / "tried.yaml"
    path.write_text(
        FILE.format(devices=host * size, host=host, size=size, kind=kind, fields=fields)
    )
    return load_system(str(path))


@pytest.mark.parametrize(("p", "a", "h"), [(2, 4, 2), (1, 2, 1), (3, 2, 2), (4, 1, 3), (2, 3, 1)])
def test_a_dragonfly_grants_what_is_left_when_every_router_sends_to_every_other(p, a, h):
    """By enumeration: with p bytes of each router spread evenly over all routers, there and on."""
    groups = a * h + 1
    level = NetworkLevel(
        name="net", kind="dragonfly", size=p * a * groups, bandwidth_bytes_per_s=1.0,
        latency_s=0.0, devices_per_router=p, routers_per_group=a, global_links_per_router=h,
    )  # fmt: skip
    loads: Counter[tuple[tuple[int, int], tuple[int, int]]] = Counter()
    share = 2.0 * p / (a * groups)
    for here in range(groups):
        for there in range(groups):
            # The link between two groups ends at one router of each.
            out = (there - here - 1) % groups // h
            into = (here - there - 1) % groups // h
            for first in range(a):
                for last in range(a):
                    ways = [((here, first), (there, last))]
                    if here != there:
                        ways = [((here, first), (here, out)), ((here, out), (there, into)),
                                ((there, into), (there, last))]  # fmt: skip
                    for one, other in ways:
                        loads[one, other] += share * (one != other)
    assert level.blocking == pytest.approx(max(1.0, *loads.values()))


def test_a_dragonfly_by_hand():
    """p 2, a 4, h 2: 36 routers; a local link carries 2 x 2/36 x (1 + 16) of a device."""
    level = NetworkLevel(
        name="net", kind="dragonfly", size=72, bandwidth_bytes_per_s=1.0, latency_s=0.0,
        devices_per_router=2, routers_per_group=4, global_links_per_router=2,
    )  # fmt: skip
    assert level.blocking == pytest.approx(4 * 17 / 36)


@pytest.mark.parametrize(("devices", "radix"), [(1, 2), (2, 2), (3, 4), (16, 4), (17, 6), (128, 8)])
def test_the_least_radix(devices, radix):
    assert least_radix(devices) == radix


def test_a_fat_tree_over_hosts(tmp_path):
    """64 devices, 8 ports: 16 edge and 16 aggregation switches in 4 pods, 16 cores."""
    tried = system(tmp_path, "fat_tree", "radix: 8")
    network, closed = network_of(tried), topology_of(tried)
    assert network.num_nodes == 64 + 16 + (16 + 16 + 16)
    assert (network.num_links, closed.diameter) == (closed.num_links, 6)
    assert closed.bisection_bytes_per_s == 32 * 50e9


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        ("fat_tree", "radix: 6", "64 devices need an even radix of at least 8"),
        ("fat_tree", "radix: 9", "even radix"),
        ("fat_tree", "oversubscription: 2", "oversubscription and rails are of a switch"),
        ("switch", "radix: 8", "is for a fat_tree"),
        ("switch", "routers_per_group: 8", "is for a dragonfly"),
        ("dragonfly", "devices_per_router: 4", "are 0 devices, the levels have 64"),
        ("dragonfly", "devices_per_router: 2, routers_per_group: 8, global_links_per_router: 2",
         "are 272 devices, the levels have 64"),
    ],
)  # fmt: skip
def test_wrong_fields_are_refused(tmp_path, kind, fields, message):
    with pytest.raises(SpecError, match=message):
        system(tmp_path, kind, fields)


def test_hosts_share_a_router(tmp_path):
    fields = "devices_per_router: 2, routers_per_group: 2, global_links_per_router: 1"
    with pytest.raises(SpecError, match=r"all devices of a host \(4\) share a router"):
        system(tmp_path, "dragonfly", fields, size=3)
