"""How fast the fluid engine is: random flows and structured steps, beside recorded SimGrid runs.

Run: python benchmarks/flow_simulation.py [--small]

CPU time of one process, graph and routes made before, kernels compiled before, best of several
runs. SimGrid is not run here: its column repeats what was recorded for 3.32 and 4.1 on flows of the
same number, mesh and routing, from other random draws.

Then the command itself, from the start of its process to the last byte: ``simulate flows --json``
of the last random flows, with ``--rates`` too, and Python's own writer for that last text alone.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from meshwright.network.flows import links_of
from meshwright.network.routing import Routes, default_routes, make_routes
from meshwright.network.simulation.fluid import simulate_tasks
from meshwright.network.simulation.tasks import TaskGraph, TaskGraphBuilder
from meshwright.network.traffic import Demands
from meshwright.topology import grid
from meshwright.topology.network import LinkSpec, Network

LINK = LinkSpec(4e12, 200e-9, 0.0)
MEGABYTE = 1e6
RANDOM = {(6, 8): "8.5-25 ms", (16, 16): "0.32-0.39 s", (32, 32): "8.1 s"}
NEIGHBOURS = {(6, 8): "4-15 ms", (16, 16): "26-84 ms", (32, 32): "0.14-0.43 s"}


def mesh(sides: tuple[int, int]) -> Network:
    """Return a mesh of 4 TB/s links."""
    return grid.mesh(sides, LINK).build()


def random_flows(network: Network, num_bytes: tuple[float, float]) -> TaskGraph:
    """Return four flows from each device to others, along XY routes, all from time 0 on."""
    random = np.random.default_rng(20)
    source = np.repeat(np.arange(network.num_devices), 4)
    target = (source + random.integers(1, network.num_devices, len(source))) % network.num_devices
    sizes = random.uniform(*num_bytes, len(source))
    demands = Demands(source, target, sizes, np.arange(len(source)), np.zeros_like(source))
    graph = TaskGraphBuilder(network)
    graph.transfer(default_routes(network, demands), sizes)
    return graph.build()


def write_flow_file(path: Path, network: Network, graph: TaskGraph) -> None:
    """Write the transfers of a graph as the flow file that the command reads."""
    links = links_of(network)
    flows = [
        {
            "id": flow,
            "bytes": num_bytes,
            "route": [links[link]["id"] for link in graph.routes.of(flow)],
        }
        for flow, num_bytes in enumerate(graph.num_bytes.tolist())
    ]
    path.write_text(json.dumps({"name": "random flows", "links": links, "flows": flows}))


def command_s(words: Sequence[str], out: Path) -> float:
    """Return the CPU time of a process that answers a command into a file [s]."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with out.open("wb") as file:
        subprocess.run([sys.executable, "-m", "meshwright", *words], stdout=file, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def print_commands(network: Network, graph: TaskGraph) -> None:
    """Print what the command takes and writes, best of three, and Python's own writer."""
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder, "flows.json"), Path(folder, "out.json")
        write_flow_file(path, network, graph)
        for more in ([], ["--rates"]):
            words = ["simulate", "flows", str(path), "--json", *more]
            taken_s = min(command_s(words, out) for _ in range(3))
            size = f"{out.stat().st_size / MEGABYTE:,.1f} MB"
            print(f"{' '.join(['simulate flows --json', *more]):<46}{taken_s:>9.2f} CPU s, {size}")
        answer = json.loads(out.read_text())
        written_s = best_cpu_s(lambda: json.dumps(answer, indent=2), 1)
        print(f"{'  json.dumps(..., indent=2) of that alone':<46}{written_s:>9.2f} CPU s")


def neighbour_flows(network: Network) -> TaskGraph:
    """Return one flow over each link, of sizes between 1 and 64 MB."""
    graph = TaskGraphBuilder(network)
    sizes = np.random.default_rng(20).uniform(1, 64, network.num_links) * MEGABYTE
    graph.transfer(each_link(network), sizes)
    return graph.build()


def each_link(network: Network) -> Routes:
    """Return a route of one hop over each link."""
    return make_routes(np.arange(network.num_links)[:, None])


def streamed_step(network: Network, num_rounds: int, *, jitter: float) -> TaskGraph:
    """Return a step in which each device computes and streams to all neighbours in each round.

    A round of a device waits for its own last one and for what its neighbours sent in it.
    """
    graph = TaskGraphBuilder(network)
    random = np.random.default_rng(20)
    devices = np.arange(network.num_devices)
    arrivals = incoming(network)
    waits: list[np.ndarray] = []
    for _ in range(num_rounds):
        spread = 1 + jitter * random.random(len(devices))
        computed = graph.compute(devices, 4e-6 * spread, after=waits)
        sent = graph.transfer(each_link(network), 8 * MEGABYTE, after=[computed[network.source]])
        padded = np.append(sent, -1)
        waits = [computed, *padded[arrivals]]
    return graph.build()


def incoming(network: Network) -> np.ndarray:
    """Return the links into each device, one row for each of at most so many; -1 for none."""
    order = np.argsort(network.target, kind="stable")
    counts = np.bincount(network.target, minlength=network.num_devices)
    place = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    links = np.full((counts.max(), network.num_devices), -1)
    links[place, network.target[order]] = order
    return links


def relayed_steps(network: Network, num_steps: int) -> TaskGraph:
    """Return steps of 32 computations that each wait for 16 transfers over the same link."""
    graph, computed = TaskGraphBuilder(network), np.full(32, -1)
    routes, devices = make_routes(np.zeros((16, 1), int)), np.arange(32) % 4
    for _ in range(num_steps):
        sent = graph.transfer(routes, 8.0, after=[computed[:16]])
        waits = np.broadcast_to(sent[:, None], (16, 32))
        computed = graph.compute(devices, 1.0, after=waits)
    return graph.build()


def best_cpu_s(run: Callable[[], object], repeats: int) -> float:
    """Return the CPU time of the fastest run."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def row(title: str, graph: TaskGraph, network: Network, reference: str, repeats: int) -> str:
    """Return one line of the table."""
    makespan_s = simulate_tasks(graph, network).makespan_s
    cpu_s = best_cpu_s(lambda: simulate_tasks(graph, network), repeats)
    times = f"{1e3 * cpu_s:>12.2f}{reference:>16}{1e6 * makespan_s:>13.2f}"
    return f"{title:<46}{len(graph):>9,}{times}"


def main(arguments: list[str]) -> None:
    """Print the table."""
    sides_list = [(6, 8)] if "--small" in arguments else list(RANDOM)
    print(f"{'case':<46}{'tasks':>9}{'CPU ms':>12}{'SimGrid wall':>16}{'makespan us':>13}")
    for sides in sides_list:
        network, name = mesh(sides), "{}x{}".format(*sides)
        repeats = 200 if sides == (6, 8) else 5
        for what, sizes in (("16 MB", (16.0, 16.0)), ("1 to 64 MB", (1.0, 64.0))):
            graph = random_flows(network, (sizes[0] * MEGABYTE, sizes[1] * MEGABYTE))
            title = f"{name}, 4 random flows a device, {what}"
            print(row(title, graph, network, RANDOM[sides], repeats), flush=True)
            shared = network, graph
        graph = neighbour_flows(network)
        title = f"{name}, a flow over each link, 1 to 64 MB"
        print(row(title, graph, network, NEIGHBOURS[sides], repeats), flush=True)
    large = mesh((6, 8) if "--small" in arguments else (100, 100))
    for title, jitter in (("equal devices", 0.0), ("uneven devices", 0.1)):
        graph = streamed_step(large, 4, jitter=jitter)
        title = f"{large.num_devices} devices, 4 rounds, {title}"
        print(row(title, graph, large, "-", 3), flush=True)
    num_steps = 1000 if "--small" in arguments else 4000
    built_s = best_cpu_s(lambda: relayed_steps(large, num_steps), 3)
    each_us = 1e6 * built_s / (48 * num_steps)
    print(f"built from {num_steps:,} steps of 48 tasks: {each_us:.2f} us each")
    print_commands(*shared)


if __name__ == "__main__":
    main(sys.argv[1:])
