"""``simulate flows``: the table, the data, and what is said of bad input."""

import json
from pathlib import Path

import pytest

from meshwright.cli.main import main

DATA = Path(__file__).parents[2] / "data" / "simgrid_scenarios.json"


def test_data_hold_makespans_flows_and_links(capsys):
    assert main(["simulate", "flows", str(DATA), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    expected = json.loads(DATA.read_text())["scenarios"]
    assert set(record) == {"scenarios"}
    for found, case in zip(record["scenarios"], expected, strict=True):
        assert set(found) == {"name", "makespan_s", "flows", "links"}
        assert found["name"] == case["name"]
        assert [flow["id"] for flow in found["flows"]] == [flow["id"] for flow in case["flows"]]
        assert all({"id", "begin_s", "finish_s"} < set(flow) for flow in found["flows"])
        assert [link["id"] for link in found["links"]] == [link["id"] for link in case["links"]]
        last = max(flow["finish_s"] for flow in case["flows"])
        assert found["makespan_s"] == pytest.approx(last, rel=1e-9)


def test_text_names_the_last_flows_and_the_hottest_links_within_100_columns(capsys, tmp_path):
    links = [{"id": f"{'long' * 20} {n}", "bw_Bps": 4e12, "lat_s": 2e-7} for n in range(3)]
    flows = [
        {"id": f"{'flow' * 20} {n}", "bytes": 4e6, "start_s": 0, "route": [links[n % 2]["id"]]}
        for n in range(15)
    ]
    path = tmp_path / "flows.json"
    path.write_text(json.dumps({"name": "x" * 200, "links": links, "flows": flows}))
    assert main(["simulate", "flows", str(path)]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 100
    assert "15 flows, 3 links" in text
    assert "all done after 8.2 us" in text
    assert "The last flows to end; 3 flows end before" in text
    assert "hottest links" in text
    assert "97.6%" in text  # 8 us of 8.2 us


def test_flow_ids_stay_numbers_or_text(capsys, tmp_path):
    link = {"id": 1, "bw_Bps": 2, "lat_s": 0}
    flows = [{"id": name, "bytes": 2, "start_s": 0, "route": [1]} for name in ("1", 1)]
    path = tmp_path / "flows.json"
    path.write_text(json.dumps({"name": "ids", "links": [link], "flows": flows}))
    assert main(["simulate", "flows", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["scenarios"][0]["flows"]
    alone = {"begin_s": 0.0, "finish_s": 2.0, "num_bytes": 2.0, "num_hops": 1, "alone_s": 1.0}
    assert found == [{"id": "1", **alone}, {"id": 1, **alone}]


def test_flows_wait_for_others_and_links_say_what_they_carry_when(capsys, tmp_path):
    """4 bytes at 2 B/s, then 2 and 6 bytes together, of which one starts at 3 s: by hand.

    b begins at 2 s with the link to itself, until c comes at 3 s with b done: 2 bytes at 2 B/s.
    """
    link = {"id": "x", "bw_Bps": 2, "lat_s": 0}
    flows = [
        {"id": "a", "bytes": 4, "route": ["x"]},
        {"id": "b", "bytes": 4, "route": ["x"], "after": ["a"]},
        {"id": "c", "bytes": 6, "route": ["x"], "after": ["a"], "start_s": 3},
    ]
    path = tmp_path / "flows.json"
    path.write_text(json.dumps({"name": "waits", "links": [link], "flows": flows}))
    ask = ["simulate", "flows", str(path), "--json"]
    assert main(ask) == 0
    brief = json.loads(capsys.readouterr().out)["scenarios"][0]
    assert main([*ask, "--rates"]) == 0
    found = json.loads(capsys.readouterr().out)["scenarios"][0]
    spans = {flow["id"]: (flow["begin_s"], flow["finish_s"]) for flow in found["flows"]}
    # From 3 s on b has 2 bytes left and c 6, at 1 B/s each; b ends at 5, c has 4 at 2 B/s: 7.
    assert spans == {"a": (0.0, 2.0), "b": (2.0, 5.0), "c": (3.0, 7.0)}
    (carried,) = found["links"]
    assert (carried["carried_bytes"], carried["utilisation"]) == (14.0, 1.0)
    assert carried["changes"] == [[0.0, 2.0], [7.0, 0.0]]
    assert brief == found | {"links": [carried | {"changes": None}]}


def test_rates_are_refused_where_nothing_would_show_them(capsys, tmp_path):
    assert main(["simulate", "flows", str(tmp_path / "flows.json"), "--rates"]) == 2
    assert "--rates: applies only with --json" in capsys.readouterr().err
    assert main(["simulate", str(tmp_path / "plan.json"), "--rates", "--json"]) == 2
    assert "--rates: applies only with flows" in capsys.readouterr().out


def test_bad_input_ends_with_status_2_and_all_faults(capsys, tmp_path):
    path = tmp_path / "flows.json"
    flow = {"id": 0, "bytes": -1, "start_s": 0, "route": ["b"]}
    link = {"id": "a", "bw_Bps": 0, "lat_s": 0}
    path.write_text(json.dumps({"name": "bad", "links": [link], "flows": [flow]}))
    assert main(["simulate", "flows", str(path), "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert [fault["path"] for fault in error["faults"]] == [
        "links[0].bw_Bps", "flows[0].bytes", "flows[0].route[0]",
    ]  # fmt: skip
    assert main(["simulate", "flows", str(path)]) == 2
    assert "3 faults" in capsys.readouterr().err


def test_a_missing_file_name_or_file_is_told(capsys, tmp_path):
    assert main(["simulate", "flows"]) == 2
    assert "simulate flows FILE.json" in capsys.readouterr().err
    assert main(["simulate", "flows", str(tmp_path / "none.json")]) == 2
    assert "No such file" in capsys.readouterr().err
