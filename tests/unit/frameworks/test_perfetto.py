"""Traces are what viewers document: fields and types, tracks without overlap, ordered counters."""

import gzip
import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_problems import level, model, problem, system

from meshwright.catalog.flow_files import read_flow_file
from meshwright.cost.step import price_one
from meshwright.frameworks.perfetto import write_flow_trace, write_step_trace, write_trace
from meshwright.network.flows import play_flows
from meshwright.network.routing import make_routes
from meshwright.network.simulation.tasks import Timeline
from meshwright.sharding.strategy import PlanOptions, ScheduleKind, make_strategy
from meshwright.topology.network import Network
from meshwright.train.timeline import step_timeline

FIELDS = {
    "X": {"name": str, "pid": int, "tid": int, "ts": (int, float), "dur": (int, float)},
    "C": {"name": str, "pid": int, "ts": (int, float), "args": dict},
    "M": {"name": str, "pid": int, "tid": int, "args": dict},
}
NAMES = {"process_name", "process_sort_index", "thread_name", "thread_sort_index"}
BANDWIDTH = 4e12


def line(num_devices=3):
    """Return devices in a row of a grid, joined both ways."""
    ends = [(i, i + 1) for i in range(num_devices - 1)]
    ends += [(j, i) for i, j in ends]
    ones = np.ones(len(ends))
    return Network(
        num_devices=num_devices, num_nodes=num_devices,
        source=np.array([a for a, _ in ends]), target=np.array([b for _, b in ends]),
        bandwidth_bytes_per_s=BANDWIDTH * ones, latency_s=2e-7 * ones,
        message_half_bytes=0 * ones, level=np.zeros(len(ends), dtype=np.int64),
        forwards=np.ones(num_devices, dtype=np.int64),
        position_m=np.stack([np.arange(num_devices) * 0.025, np.zeros(num_devices)], axis=1),
        speed_factor=np.ones(num_devices), grid_shape=(1, num_devices),
    )  # fmt: skip


def timeline(tasks, changes=(), tracks=("compute", "tatp", "dp")):
    """Return the timeline of (name, device, track, start, end) and (link, time, rate)."""
    name, device, track, start, end = zip(*tasks, strict=True) if tasks else ((),) * 5
    link, at, rate = zip(*changes, strict=True) if changes else ((),) * 3
    whole = {"dtype": np.int64}
    return Timeline(
        task_name=tuple(name), device=np.array(device, **whole), track=np.array(track, **whole),
        start_s=np.array(start, dtype=float), end_s=np.array(end, dtype=float), tracks=tracks,
        link=np.array(link, **whole), change_s=np.array(at, dtype=float),
        rate_bytes_per_s=np.array(rate, dtype=float),
    )  # fmt: skip


def read(path):
    """Return the events of a trace, each checked against the documented fields."""
    content = path.read_bytes()
    trace = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
    assert trace["displayTimeUnit"] == "ns"
    assert isinstance(trace["otherData"], dict)
    for event in trace["traceEvents"]:
        fields = FIELDS[event["ph"]]
        assert all(isinstance(event[name], kind) for name, kind in fields.items())
        assert set(event) - set(fields) <= {"ph", "args"}
        if event["ph"] == "M":
            assert event["name"] in NAMES
        if event["ph"] == "C":
            assert all(isinstance(value, (int, float)) for value in event["args"].values())
    return trace["traceEvents"]


def check(events):
    """Assert what viewers need: names before use, no overlap on a thread, counters in order."""
    processes = {e["pid"] for e in events if e["name"] == "process_name"}
    threads = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert len({tid for _, tid in threads}) == len(threads)
    assert 0 not in processes
    last_end, last_change = defaultdict(int), defaultdict(lambda: -1)
    for event in sorted((e for e in events if e["ph"] == "X"), key=lambda e: (e["ts"], e["dur"])):
        thread = event["pid"], event["tid"]
        assert thread in threads
        begin, duration = round(event["ts"] * 1000), round(event["dur"] * 1000)
        assert begin >= last_end[thread]
        assert duration >= 0
        last_end[thread] = begin + duration
    for event in (e for e in events if e["ph"] == "C"):
        counter = event["pid"], event["name"]
        assert event["pid"] in processes
        assert event["ts"] > last_change[counter]
        last_change[counter] = event["ts"]


def test_a_small_run_by_hand(tmp_path):
    tasks = [
        ("forward", 0, 0, 0.0, 1.5e-6),
        ('send "W 0"', 0, 1, 0.5e-6, 2.5e-6),
        ("send W 1", 0, 1, 1e-6, 1.2345e-6),
        ("forward", 2, 0, 2e-6, 3e-6),
    ]
    changes = [(0, 0.5e-6, BANDWIDTH), (1, 0.7e-6, BANDWIDTH / 4), (0, 2.5e-6, 0.0)]
    path = tmp_path / "run.json"
    routes = make_routes([[], [0, 1], [0], []])
    sizes = np.array([0.0, 4e6, 1.0, 0.0])
    write_trace(
        timeline(tasks, changes), line(), path,
        num_bytes=sizes, routes=routes, notes={"fidelity": "simulated"},
    )  # fmt: skip
    events = read(path)
    check(events)
    assert json.loads(path.read_text())["otherData"] == {"fidelity": "simulated"}
    shown = [
        (e["name"], e["pid"], e["ts"], e["dur"], e.get("args")) for e in events if e["ph"] == "X"
    ]
    assert shown == [
        ("forward", 1, 0, 1.5, None),
        ('send "W 0"', 1, 0.5, 2, {"bytes": 4e6, "links": ["0 > 1", "1 > 2"]}),
        ("send W 1", 1, 1, 0.234, {"bytes": 1, "links": ["0 > 1"]}),
        ("forward", 3, 2, 1, None),
    ]
    names = [(e["pid"], e["args"]["name"]) for e in events if e["name"] == "thread_name"]
    assert names == [(1, "compute"), (1, "tatp"), (1, "tatp (2)"), (3, "compute")]
    titles = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert titles == ["device 0 (0, 0)", "device 1 (0, 1)", "device 2 (0, 2)"]
    counters = [(e["name"], e["pid"], e["ts"], e["args"]) for e in events if e["ph"] == "C"]
    assert counters == [
        ("link 0 > 1", 1, 0.5, {"percent": 100}),
        ("link 1 > 2", 2, 0.7, {"percent": 25}),
        ("link 0 > 1", 1, 2.5, {"percent": 0}),
    ]


def test_the_last_change_of_a_nanosecond_counts(tmp_path):
    changes = [(0, 1e-6, 1e12), (0, 1.0000001e-6, 3e12), (1, 1.0000001e-6, 2e12)]
    write_trace(timeline([], changes), line(), tmp_path / "t.json")
    events = read(tmp_path / "t.json")
    check(events)
    assert [e["args"]["percent"] for e in events if e["ph"] == "C"] == [75, 50]


def test_links_side_by_side_are_counters_of_their_own(tmp_path):
    network = line(2)
    twice = Network(
        **vars(network) | {
            name: np.repeat(getattr(network, name), 2)
            for name in ("source", "target", "bandwidth_bytes_per_s", "latency_s",
                         "message_half_bytes", "level")
        }
    )  # fmt: skip
    write_trace(timeline([], [(0, 0.0, 1e12), (1, 0.0, 2e12)]), twice, tmp_path / "t.json")
    names = [e["name"] for e in read(tmp_path / "t.json") if e["ph"] == "C"]
    assert names == ["link 0 > 1", "link 0 > 1 #1"]


def test_nothing_happened(tmp_path):
    write_trace(timeline([]), line(), tmp_path / "t.json")
    assert read(tmp_path / "t.json") == []


def test_compressed_is_the_same_and_the_same_each_time(tmp_path):
    run = timeline([("a", 0, 0, 0.0, 1e-6)])
    for name in ("t.json", "t.json.gz", "u.json.gz"):
        write_trace(run, line(), tmp_path / name)
    assert read(tmp_path / "t.json") == read(tmp_path / "t.json.gz")
    assert (tmp_path / "t.json.gz").read_bytes() == (tmp_path / "u.json.gz").read_bytes()


def test_a_failure_leaves_the_old_trace(tmp_path, monkeypatch):
    path = tmp_path / "t.json"
    path.write_text("mine")

    def fail(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        write_trace(timeline([("a", 0, 0, 0.0, 1e-6)]), line(), path, force=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["t.json"]
    assert path.read_text() == "mine"


moment = st.integers(0, 200).map(lambda ticks: ticks * 0.4e-9)
device = track = st.integers(0, 2)
tasks_drawn = st.lists(
    st.tuples(st.sampled_from(["a", "b", "ü\n"]), device, track, moment, moment).map(
        lambda task: (*task[:3], min(task[3:]), max(task[3:]))
    ),
    max_size=40,
)
changes_drawn = st.lists(
    st.tuples(st.integers(0, 3), moment, st.floats(0, BANDWIDTH)), max_size=30
).map(lambda changes: sorted(changes, key=lambda change: change[1]))


@given(tasks_drawn, changes_drawn)
def test_any_run_is_a_legal_trace_and_complete(tmp_path_factory, tasks, changes):
    path = tmp_path_factory.mktemp("traces") / "t.json"
    run = timeline(tasks, changes)
    write_trace(run, line(), path)
    events = read(path)
    check(events)
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    found = sorted(
        (e["name"], e["pid"] - 1, tracks[e["tid"]].split(" ")[0], round(e["ts"] * 1000),
         round(1000 * e["ts"] + 1000 * e["dur"]))
        for e in events if e["ph"] == "X"
    )  # fmt: skip
    assert found == sorted(
        (name, device, run.tracks[track], round(start * 1e9), round(end * 1e9))
        for name, device, track, start, end in tasks
    )
    most = max(
        (int(name[6:-1]) for name in tracks.values() if name.startswith("tatp (")), default=1
    )
    assert most <= max(1, most_at_once([t for t in tasks if t[2] == 1]))


def most_at_once(tasks):
    """Return how many tasks of one device run in the same nanosecond, at most."""
    found = 0
    for _, device, _, start, _ in tasks:
        at = round(start * 1e9)
        beside = [t for t in tasks if t[1] == device]
        found = max(found, sum(round(t[3] * 1e9) <= at <= round(t[4] * 1e9) for t in beside))
    return found


def test_many_events_are_small(tmp_path):
    count, devices = 40_000, 256
    start = np.sort(np.random.default_rng(1).random(count))
    run = Timeline(
        task_name=tuple(f"op {i % 97}" for i in range(count)), device=np.arange(count) % devices,
        track=np.arange(count) // devices % 3, start_s=start, end_s=start + 1e-4,
        tracks=("compute", "tatp", "dp"), link=np.arange(10_000) % (2 * devices - 2),
        change_s=np.sort(np.random.default_rng(2).random(10_000)),
        rate_bytes_per_s=np.full(10_000, 1e12),
    )  # fmt: skip
    write_trace(run, line(devices), tmp_path / "t.json.gz")
    assert (tmp_path / "t.json.gz").stat().st_size < 1.2e6
    check(read(tmp_path / "t.json.gz"))


FLOWS = """{{"name": "<x>", "links": [
    {{"id": "a\\"b", "bw_Bps": 4e6, "lat_s": 0{ends}}}],
    "flows": [{{"id": "first", "bytes": 4e6, "route": ["a\\"b"]}},
              {{"id": 2, "bytes": 4e6, "route": ["a\\"b"], "after": ["first"]}},
              {{"id": 3, "bytes": 0, "route": []}}]}}"""


@pytest.mark.parametrize("ends", ["", ', "src": 5, "dst": "six"'])
def test_flows_of_a_file_are_a_trace(tmp_path, ends):
    """Two flows of 4 MB one after the other on a link of 4 MB/s: from 0 to 1 s, and to 2 s."""
    (tmp_path / "flows.json").write_text(FLOWS.format(ends=ends))
    (scenario,) = read_flow_file(tmp_path / "flows.json")
    write_flow_trace(scenario, play_flows(scenario), tmp_path / "t.json")
    trace = read(tmp_path / "t.json")
    check(trace)
    flows = {e["name"]: (e["ts"], e["dur"]) for e in trace if e["ph"] == "X"}
    assert flows == {"flow first": (0, 1e6), "flow 2": (1e6, 1e6), "flow 3": (0, 0)}
    assert {e["name"] for e in trace if e["ph"] == "C"} == {'link a"b'}
    names = {e["args"]["name"] for e in trace if e["name"] == "process_name"}
    assert names == ({"node 5"} if ends else {'from a"b'})


def test_a_trace_of_flows_without_links(tmp_path):
    text = '{"name": "x", "links": [], "flows": [{"id": 1, "bytes": 5, "route": []}]}'
    (tmp_path / "flows.json").write_text(text)
    (scenario,) = read_flow_file(tmp_path / "flows.json")
    write_flow_trace(scenario, play_flows(scenario), tmp_path / "t.json")
    check(read(tmp_path / "t.json"))


@pytest.mark.parametrize("name", ["step.json", "step.json.gz"])
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zero_bubble"])
def test_a_step_is_a_process_for_each_stage(tmp_path, name, schedule):
    chunks = 2 if schedule == "interleaved" else 1
    asked = problem(model(num_layers=8), system(level(4)), global_batch_size=4)
    plan_options = PlanOptions(schedule=ScheduleKind(schedule))
    strategy = make_strategy(pp=2, tp=2, num_virtual_stages=chunks)
    priced = price_one(asked, plan_options, strategy)
    network = asked.network(plan_options.axis_order, priced.strategy)
    step = step_timeline(None, asked, priced, network, fidelity="closed_form")
    write_step_trace(step, tmp_path / name, notes={"plan": "x"})
    events = read(tmp_path / name)
    check(events)
    named = {(e["pid"], e["args"]["name"]) for e in events if e["name"] == "process_name"}
    assert named == {(1, "stage 0"), (2, "stage 1")}
    tasks = [e for e in events if e["ph"] == "X"]
    assert len(tasks) == len(step.stage)
    assert all(e["dur"] >= 0 for e in tasks)
    end_us = max(e["ts"] + e["dur"] for e in tasks)
    assert end_us == pytest.approx(1e6 * step.step_time_s, abs=2e-3)
    passes = [e for e in tasks if e["name"].startswith("forward ")]
    assert len(passes) == 2 * 4 * chunks
    assert {e["args"]["micro_batch"] for e in passes} == {0, 1, 2, 3}
    # Communication of a pass is on the other thread, and says whose it is.
    (tp_thread,) = {e["tid"] for e in tasks if e["pid"] == 1 and e["name"].startswith("TP comm")}
    assert tp_thread not in {e["tid"] for e in passes}
    for process, memory in enumerate(step.memory, 1):
        sizes = [e["args"]["GiB"] for e in events if e["ph"] == "C" and e["pid"] == process]
        assert max(sizes) * 2**30 == pytest.approx(memory.peak_bytes, rel=1e-5)
