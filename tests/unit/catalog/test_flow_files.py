"""Flow files: what is read, what is merely not read, and every fault at once."""

import json

import pytest

from meshwright.base.errors import SpecError
from meshwright.catalog.flow_files import (
    read_flow_file,
    read_placement_file,
    written_scenario,
)
from meshwright.spec.flows import depths_of

LINKS = [{"id": "a>b", "bw_Bps": 4.0, "lat_s": 1.0}, {"id": 7, "bw_Bps": 2, "lat_s": 0}]
FLOW = {"id": 0, "bytes": 8, "start_s": 0.5, "route": ["a>b", 7]}


def scenario(**changes):
    return {"name": "one", "links": LINKS, "flows": [FLOW]} | changes


def written(folder, data):
    path = folder / "flows.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data), encoding="utf-8")
    return path


def faults(folder, data):
    """Return the faults of a file as texts, by path."""
    with pytest.raises(SpecError) as caught:
        read_flow_file(written(folder, data))
    assert caught.value.origin.endswith("flows.json")
    return {fault.path: f"{fault} ({fault.fix})" for fault in caught.value.faults}


def test_links_and_flows_become_columns(tmp_path):
    other = scenario(name="two", flows=[FLOW | {"id": "x", "route": [], "src": 3, "dst": 3}])
    one, two = read_flow_file(written(tmp_path, {"scenarios": [scenario(), other]}))
    assert (one.name, one.link_ids, one.flow_ids) == ("one", ("a>b", 7), (0,))
    assert one.bandwidth_bytes_per_s.tolist() == [4.0, 2.0]
    assert one.latency_s.tolist() == [1.0, 0.0]
    assert (one.num_bytes.tolist(), one.start_s.tolist(), one.routes) == ([8.0], [0.5], ((0, 1),))
    assert (two.flow_ids, two.routes) == (("x",), ((),))
    assert (one.ends, one.after, one.link_ends) == (((None, ()),), ((),), ())
    assert two.ends == ((3, (3,)),)


def test_one_scenario_needs_no_list_and_a_start_may_be_left_out(tmp_path):
    flow = {name: FLOW[name] for name in ("id", "bytes", "route")}
    (one,) = read_flow_file(written(tmp_path, scenario(flows=[flow], schema="flows-on-a-mesh/1")))
    assert one.start_s.tolist() == [0.0]


def test_reference_results_are_ignored_and_other_fields_refused(tmp_path):
    flow = FLOW | {"finish_s": 1, "finish_rtt_weighted_s": 2, "src": 0, "dst": 1}
    data = {"engine": "e", "units": {}, "scenarios": [scenario(flows=[flow], rows=1, makespan_s=2)]}
    assert len(read_flow_file(written(tmp_path, data))) == 1
    data["scenarios"][0]["flows"] = [flow | {"colour": "red"}]
    data["scenarios"][0]["linkz"] = []
    found = faults(tmp_path, data)
    assert set(found) == {"scenarios[0].flows[0].colour", "scenarios[0].linkz"}
    assert "unknown field" in found["scenarios[0].flows[0].colour"]
    assert "links" in found["scenarios[0].linkz"]


@pytest.mark.parametrize(
    ("changes", "path", "parts"),
    [
        ({"links": [{**LINKS[0], "bw_Bps": 0}]}, "links[0].bw_Bps", ["found 0", "1e-09 to 1e+24"]),
        ({"links": [{**LINKS[0], "bw_Bps": "4 B/s"}]}, "links[0].bw_Bps", ["expected a number"]),
        ({"links": [{**LINKS[0], "lat_s": -1}]}, "links[0].lat_s", ["found -1"]),
        ({"links": [{"id": "a", "bw_Bps": 1}]}, "links[0].lat_s", ["is missing"]),
        ({"links": [LINKS[0], LINKS[1], LINKS[0]]}, "links[2].id", ["links[0].id already"]),
        ({"links": [LINKS[0], LINKS[1], 5]}, "links[2]", ["expected an object"]),
        ({"links": "a>b"}, "links", ["expected a list"]),
        ({"flows": None}, "flows", ["is null"]),
        ({"name": None}, "name", ["is null"]),
        ({"flows": [FLOW, FLOW]}, "flows[1].id", ["0 is the name at flows[0].id already"]),
        ({"flows": [FLOW | {"id": 1.5}]}, "flows[0].id", ["found 1.5"]),
        ({"flows": [FLOW | {"id": True}]}, "flows[0].id", ["found True"]),
        ({"flows": [FLOW | {"bytes": -8}]}, "flows[0].bytes", ["found -8"]),
        ({"flows": [FLOW | {"bytes": True}]}, "flows[0].bytes", ["found True"]),
        ({"flows": [FLOW | {"bytes": 10**400}]}, "flows[0].bytes", ["found 1000"]),
        ({"flows": [FLOW | {"start_s": float("nan")}]}, "flows[0].start_s", ["found nan"]),
        ({"flows": [FLOW | {"start_s": float("inf")}]}, "flows[0].start_s", ["found inf"]),
        ({"flows": [FLOW | {"route": ["a<b"]}]}, "flows[0].route[0]", ["no link", "mean a>b?"]),
        ({"flows": [FLOW | {"route": ["7"]}]}, "flows[0].route[0]", ["'7' is no link", "mean 7?"]),
        ({"flows": [FLOW | {"route": [["a>b"]]}]}, "flows[0].route[0]", ["no link"]),
        ({"flows": [FLOW | {"route": [7, 7]}]}, "flows[0].route[1]", ["names 7 twice"]),
        ({"flows": [FLOW | {"route": [], "src": 0, "dst": 1}]}, "flows[0].route", ["0 and dst 1"]),
        ({"flows": [FLOW | {"route": "a>b"}]}, "flows[0].route", ["expected a list"]),
        ({"flows": [{"id": 0, "bytes": 8}]}, "flows[0].route", ["missing", "meshwright route"]),
        ({"flows": [FLOW | {"after": ["0"]}]}, "flows[0].after[0]", ["no flow", "mean 0?"]),
        ({"flows": [FLOW | {"after": [0]}]}, "flows[0].after", ["in a circle: 0"]),
        ({"flows": [FLOW | {"after": ["b"]}, FLOW | {"id": "b", "after": ["c"]},
                    FLOW | {"id": "c", "after": ["b"]}, FLOW | {"id": "d"}]},
         "flows[0].after", ["in a circle: 0, 'b', 'c'"]),
        ({"flows": [FLOW | {"dst": []}]}, "flows[0].dst", ["at least one node"]),
        ({"flows": [FLOW | {"dst": [1, 2.5]}]}, "flows[0].dst[1]", ["found 2.5"]),
    ],
)  # fmt: skip
def test_a_fault_names_its_field_and_what_is_allowed(tmp_path, changes, path, parts):
    found = faults(tmp_path, scenario(**changes))
    assert all(part in found[path] for part in parts), found


def test_a_misspelt_field_that_is_missing_is_a_fault(tmp_path):
    flow = {"id": 0, "size": 1, "byte": 8, "start": 1, "route": [7]}
    found = faults(tmp_path, {"scenarios": [scenario(flows=[flow])]})
    fields = ("byte", "bytes", "size", "start")
    assert set(found) == {f"scenarios[0].flows[0].{name}" for name in fields}
    assert "did you mean start_s" in found["scenarios[0].flows[0].start"]


NODES = [{"id": f"{a}{b}", "bw_Bps": 1, "lat_s": 0, "src": a, "dst": b}
         for a, b in ["ab", "bc", "bd", "de", "ed"]]  # fmt: skip
TREE = {"id": 0, "bytes": 1, "src": "a", "dst": ["c", "d"], "route": ["bd", "ab", "bc"]}


def test_links_that_state_their_ends_show_whether_a_route_is_one(tmp_path):
    def of(**changes):
        return {"name": "n", "links": NODES, "flows": [TREE | changes]}

    (one,) = read_flow_file(written(tmp_path, of()))
    assert one.routes == ((2, 0, 1),)
    assert one.link_ends[:2] == (("a", "b"), ("b", "c"))
    for changes, path, part in [
        ({"route": ["ab", "bc"]}, "route", "does not reach 'd'"),
        ({"route": ["bc", "bd"]}, "route", "not a path or tree from 'a'"),
        ({"route": ["ab", "bc", "bd", "de", "ed"]}, "route", "not a path or tree from 'a'"),
        ({"src": "x"}, "src", "no link leads to a node 'x'"),
        ({"dst": ["c", "y"]}, "dst", "no link leads to a node 'y'"),
    ]:
        assert part in faults(tmp_path, of(**changes))[f"flows[0].{path}"]


def test_demands_need_ends_but_no_routes_and_may_take_the_links_of_a_system(tmp_path):
    flow = {"id": 0, "bytes": 8, "src": "a", "dst": "b"}
    path = written(tmp_path, {"name": "n", "flows": [flow]})
    (one,) = read_flow_file(path, needs_routes=False, links=NODES)
    assert (one.routes, one.link_ids) == ((None,), ("ab", "bc", "bd", "de", "ed"))
    with pytest.raises(SpecError, match="links: is missing"):
        read_flow_file(path, needs_routes=False)
    path = written(tmp_path, {"name": "n", "links": NODES, "flows": [{"id": 0, "bytes": 8}]})
    with pytest.raises(SpecError) as caught:
        read_flow_file(path, needs_routes=False, links=NODES)
    found = {fault.path for fault in caught.value.faults}
    assert found == {"links", "flows[0].src", "flows[0].dst"}


def test_a_written_scenario_is_read_again(tmp_path):
    flows = [TREE, {"id": "late", "bytes": 2, "route": ["ed"], "after": [0], "start_s": 1.5}]
    (one,) = read_flow_file(written(tmp_path, {"name": "n", "links": NODES, "flows": flows}))
    (two,) = read_flow_file(written(tmp_path, written_scenario(one)))
    assert written_scenario(two) == written_scenario(one)
    assert written_scenario(one)["flows"] == [TREE | {"bytes": 1.0}, flows[1]]


def test_depths_of_chains_and_circles():
    assert depths_of([(), (0,), (0, 1), (), (2, 3)]) == [0, 1, 2, 0, 3]
    assert depths_of([(1,), (0,), (1,), ()]) == [-1, -1, -1, 0]


@pytest.mark.parametrize(
    ("data", "path", "part"),
    [
        ({"devices": [0, 1, 0]}, "devices[2]", "device 0 has rank 0 already"),
        ({"devices": [0, -1]}, "devices[1]", "found -1"),
        ({"devices": [0, True]}, "devices[1]", "found True"),
        ({"device": [0]}, "device", "devices"),
        ({}, "devices", "is missing"),
        ({"devices": [0], "axes": {"tp": 2}}, "axes.tp", "[2, 4]"),
        ({"devices": [0], "axes": [2]}, "axes", "an object of shapes"),
    ],
)
def test_faults_of_placement_files(tmp_path, data, path, part):
    with pytest.raises(SpecError) as caught:
        read_placement_file(written(tmp_path, data))
    assert part in {fault.path: str(fault) + fault.fix for fault in caught.value.faults}[path]


def test_all_faults_are_reported_at_once(tmp_path):
    bad = scenario(links=[{**LINKS[0], "bw_Bps": -1}, LINKS[1]], flows=[FLOW | {"bytes": None}])
    found = faults(tmp_path, {"scenarios": [bad, scenario()]})
    assert set(found) == {
        "scenarios[0].links[0].bw_Bps", "scenarios[0].flows[0].bytes", "scenarios[1].name",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "not JSON"),
        ("{", "line 1, column 2"),
        ("[1]", "expected an object, found a list"),
        ("[" * 100_000, "cannot be read"),
        ("{}", "is missing"),
        ('{"scenarios": []}', "is empty"),
        ('{"scenarios": [3]}', "expected an object"),
        ('{"schema": "phased-flows/1", "cases": []}', "found 'phased-flows/1'"),
        ('{"name": "a", "name": "b", "links": [], "flows": []}', "name: is given twice"),
    ],
)
def test_what_is_no_flow_file_is_refused(tmp_path, text, part):
    assert any(part in message for message in faults(tmp_path, text).values())


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(SpecError, match="cannot be read: No such file"):
        read_flow_file(tmp_path / "none.json")
    with pytest.raises(SpecError, match="cannot be read: Is a directory"):
        read_flow_file(tmp_path)
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="not UTF-8 text"):
        read_flow_file(tmp_path / "binary.json")
