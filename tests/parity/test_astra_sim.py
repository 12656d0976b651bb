"""ASTRA-sim's collectives and sends: all explained by rule, and ours where both mean the same.

What its analytical backends do, in rules:

* A message over h links takes h latencies and its bytes once (``unaware``), or h times both: whole
  messages are stored and forwarded, at a switch too (``aware``).
* ring: (n - 1) messages of one block one way round; an all-to-all hands what is k members away on
  k times, n (n - 1)/2 messages in all. halving: blocks of S/2, S/4, ... or 1, 2, 4, ... shards.
* direct: n - 1 messages at once. Between pairs each has its own link; through a switch they leave
  one after the other (``aware``), or all at full speed, which no port can do (``unaware``).
* Several dimensions: one after the other, a reduction upwards with what is left of the buffer, a
  gather downwards with what was gathered, an all-to-all with the whole buffer in each. A send pays
  the first dimension in which the ends differ, and no other.
* Every step of a reduction adds 3 x message / local bandwidth. Chunks that are active together do
  not share links (``unaware``), so c of them take the time of one.
"""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from meshwright.collectives.group import Group, Span
from meshwright.collectives.registry import collective_algorithms
from meshwright.network.routing import default_routes
from meshwright.network.simulation.fluid import simulate_tasks
from meshwright.network.simulation.tasks import flow_graph
from meshwright.network.traffic import Demands
from meshwright.topology.network import LinkSpec, topologies

TABLE = json.loads((Path(__file__).parents[1] / "data" / "astra_sim_collectives.json").read_text())
WITHIN = 0.01
"""One nanosecond is added to each message there, and every delay is cut to whole ones."""
GATHER, REDUCE, EXCHANGE = "all_gather", "reduce_scatter", "all_to_all"


def links_between(dim, distance=1):
    """Return the links of a message to a member so far away."""
    if dim["block"] == "ring":
        return min(distance, dim["size"] - distance)
    return 2 if dim["block"] == "switch" else 1


def message_s(dim, backend, num_bytes, distance=1):
    links, sent_s = links_between(dim, distance), num_bytes / dim["bandwidth_bytes_per_s"]
    return links * dim["latency_s"] + sent_s * (links if backend == "aware" else 1)


def messages_of(dim, kind, num_bytes):
    """Return the bytes of the messages that follow one another in one dimension."""
    size = dim["size"]
    block = num_bytes if kind == GATHER else num_bytes / size
    if dim["algorithm"] == "direct":
        return [block]
    if dim["algorithm"] == "ring":
        return [block] * (size * (size - 1) // 2 if kind == EXCHANGE else size - 1)
    return [block * 2**step for step in range(round(math.log2(size)))]


def dimension_s(dim, backend, kind, num_bytes, local_bytes_per_s):
    messages = messages_of(dim, kind, num_bytes)
    total_s = sum(message_s(dim, backend, message) for message in messages)
    if dim["algorithm"] == "direct" and dim["block"] == "switch" and backend == "aware":
        total_s += (dim["size"] - 2) * messages[0] / dim["bandwidth_bytes_per_s"]
    if kind == REDUCE:
        total_s += 3 * sum(messages) / local_bytes_per_s
    return total_s


def explained_s(dims, backend, kind, num_bytes, local_bytes_per_s=math.inf):
    """Return the time of a collective by the rules [s]."""
    if kind == "all_reduce":
        shard = num_bytes / math.prod(dim["size"] for dim in dims)
        reduce_s = explained_s(dims, backend, REDUCE, num_bytes, local_bytes_per_s)
        return reduce_s + explained_s(dims, backend, GATHER, shard)
    total_s = 0.0
    for dim in dims[::-1] if kind == GATHER else dims:
        total_s += dimension_s(dim, backend, kind, num_bytes, local_bytes_per_s)
        grows = {GATHER: dim["size"], REDUCE: 1 / dim["size"], EXCHANGE: 1}[kind]
        num_bytes *= grows
    return total_s


def explained_send_s(dims, backend, to, num_bytes):
    """Return the time of a message from rank 0 [s]."""
    for dim in dims:
        to, place = divmod(to, dim["size"])
        if place:
            return message_s(dim, backend, num_bytes, place)
    raise AssertionError("a message to oneself")


def by_rule_s(run, num_bytes):
    dims = TABLE["networks"][run["network"]]
    if run["collective"] == "send":
        return explained_send_s(dims, run["backend"], run["to"], num_bytes)
    local = run.get("local_bytes_per_s", math.inf)
    share = num_bytes / run.get("chunks", 1)
    return explained_s(dims, run["backend"], run["collective"], share, local)


def timed(runs):
    return [(run, float(size), ns * 1e-9) for run in runs for size, ns in run["time_ns"].items()]


def test_every_run_is_explained():
    rows = timed(TABLE["runs"])
    errors = [abs(by_rule_s(run, size) / seen_s - 1) for run, size, seen_s in rows]
    assert len(rows) == 707
    assert max(errors) <= WITHIN


@pytest.mark.parametrize("run", TABLE["stated"], ids=lambda run: run["network"])
def test_what_no_network_could_do_is_explained_as_well(run):
    """Times stated to three or four figures."""
    assert by_rule_s(run, run["bytes"]) == pytest.approx(run["time_us"] * 1e-6, rel=0.002)


def agreeing(run):
    """Return which of our algorithms means the same, or None.

    Ours is a ring on links that carry a message at once, in one dimension or several, or a direct
    exchange. Stored and forwarded messages, one exchange of all for a gather, halving and an
    all-to-all round a ring are not among ours.
    """
    dims, kind = TABLE["networks"][run["network"]], run["collective"]
    forwarded = run["backend"] == "aware" and dims[0]["block"] == "switch"
    if forwarded or kind == "send":
        return None
    if dims[0]["block"] == "pairs":
        return "direct_all_to_all" if kind == EXCHANGE else None
    if dims[0]["algorithm"] != "ring" or kind == EXCHANGE:
        return None
    return f"{'ring' if len(dims) == 1 else 'hierarchical'}_{kind}"


def as_spans(dims):
    """Return the group; where every pair has its link, all links of a member together."""
    return Group(
        tuple(
            Span(
                float(dim["size"]),
                dim["bandwidth_bytes_per_s"] * (dim["size"] - 1 if dim["block"] == "pairs" else 1),
                dim["latency_s"] * links_between(dim),
                0.0, 1.0, False, False,
            )
            for dim in dims
        )
    )  # fmt: skip


OURS = [(run, agreeing(run)) for run in TABLE["runs"] if agreeing(run)]


@pytest.mark.parametrize(
    ("run", "name"), [pytest.param(*one, id=f"{one[0]['network']}-{one[1]}") for one in OURS]
)
def test_our_forms_agree(run, name):
    dims = TABLE["networks"][run["network"]]
    members = math.prod(dim["size"] for dim in dims) if run["collective"] == GATHER else 1
    for _, size, seen_s in timed([run]):
        form_s = float(collective_algorithms[name].time_s(size * members, as_spans(dims)))
        assert form_s == pytest.approx(seen_s, rel=WITHIN)


SENDS = [
    run
    for run in TABLE["runs"]
    if run["collective"] == "send"
    and run["backend"] == "unaware"
    and len(TABLE["networks"][run["network"]]) == 1
]


@pytest.mark.parametrize("run", SENDS, ids=lambda run: f"{run['network']}-{run['to']}")
def test_our_simulation_of_a_send_agrees(run):
    (dim,) = TABLE["networks"][run["network"]]
    kind = {"ring": "ring", "pairs": "fully_connected", "switch": "switch"}[dim["block"]]
    link = LinkSpec(dim["bandwidth_bytes_per_s"], dim["latency_s"])
    network = topologies[kind](dim["size"], link).build()
    for _, size, seen_s in timed([run]):
        one = np.zeros(1, dtype=np.int64)
        demands = Demands(one, one + run["to"], np.array([size]), one, one)
        routes = default_routes(network, demands)
        graph = flow_graph(routes, demands.num_bytes, routes.latency_s(network), np.zeros(1))
        assert simulate_tasks(graph, network).makespan_s == pytest.approx(seen_s, rel=WITHIN)


def test_how_many_runs_ours_agree_with():
    """The others differ by a rule above."""
    assert len(timed([run for run, _ in OURS])) == 172
    assert len(timed(SENDS)) == 135
