"""The server lets in whom it should, forbids the page what it should, and stops in time."""

import http.client
import json
import re
import socket
import sys
import threading
import time
from io import BytesIO
from zipfile import ZipFile

import pytest

from meshwright.explore import answers
from meshwright.explore.question import Start
from meshwright.explore.server import FILES, Explorer

QUESTION = {"model": "llama3-8b", "on": "8xH100", "seq": "8k", "global_batch": "64"}


@pytest.fixture(scope="module")
def server():
    with Explorer(Start(QUESTION)) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def call(server, method, path, body=None, **headers):
    """Return the answer to a request as the page makes it, unless headers say otherwise."""
    connection = http.client.HTTPConnection(*server.server_address, timeout=60)
    sent = {"Authorization": f"Bearer {server.token}"}
    if body is not None:
        sent["Content-Type"] = "application/json"
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    content = None if body is None else json.dumps(body)
    connection.request(method, path, content, {k: v for k, v in sent.items() if v is not None})
    reply = connection.getresponse()
    return reply, reply.read()


def ask(server, path, **body):
    return json.loads(call(server, "POST", f"/api/{path}", body)[1])


def test_only_this_machine_is_served(server):
    assert server.server_address[0] == "127.0.0.1"


def test_the_page_is_for_all_and_its_answers_for_who_has_the_token(server):
    """A page holds no answer; a cookie, which every server of this host gets, opens nothing."""
    address, _, token = server.url.partition("#token=")
    assert address == f"http://{server.own_host}/"
    reply, _ = call(server, "GET", "/", Authorization=None)
    assert (reply.status, reply.headers["Set-Cookie"]) == (200, None)
    for method, path, body in (
        ("GET", "/api/catalog", None), ("POST", "/api/stop", {"search": {}}),
    ):  # fmt: skip
        for _ in range(2):  # a second tab
            held = {"Authorization": f"Bearer {token}"}
            assert call(server, method, path, body, **held)[0].status == 200
        for held in (None, "", "Bearer guess", f"bearer{token}", "Bearer \u00e9", "Basic e"):
            reply, content = call(
                server, method, path, body, Authorization=held, Cookie=f"token={token}"
            )
            assert reply.status == 401
            assert b"that meshwright explore printed" in content
        reply, _ = call(server, method, f"{path}?token={token}", body, Authorization=None)
        assert reply.status == 401
    server.to_stop.clear()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Content_Type": "text/plain"}, 403),
        ({"Content_Length": "many"}, 413),
    ],
)
def test_strangers_are_refused(server, headers, status):
    reply, _ = call(server, "POST", "/api/estimate", {"options": QUESTION}, **headers)
    assert reply.status == status


@pytest.mark.parametrize("path", FILES)
def test_files_of_the_page_come_under_a_strict_policy(server, path):
    reply, content = call(server, "GET", path)
    assert reply.status == 200
    assert content
    policy = reply.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


@pytest.mark.parametrize("path", ["/../server.py", "/page/../../server.py", "/etc/passwd"])
def test_no_other_file_is_served(server, path):
    assert call(server, "GET", path)[0].status == 404


@pytest.mark.parametrize(("body", "path"), [([1], "estimate"), ({}, "no_such_thing")])
def test_what_is_no_question_is_refused(server, body, path):
    assert call(server, "POST", f"/api/{path}", body)[0].status == 400


def test_an_answer_tells_what_it_took(server):
    body = {"options": {**QUESTION, "zero": "3"}}
    started = time.perf_counter()
    reply, _ = call(server, "POST", "/api/estimate", body)
    waited_ms = 1e3 * (time.perf_counter() - started)
    total, cpu = (part.split(";dur=") for part in reply.getheader("Server-Timing").split(", "))
    assert (total[0], cpu[0]) == ("total", "cpu")
    assert 0.0 <= float(total[1]) <= waited_ms
    assert 0.0 <= float(cpu[1]) <= waited_ms


def test_an_estimate_is_the_plan_with_its_report(server):
    found = ask(server, "estimate", options={**QUESTION, "zero": "3"})
    assert {"How fast is it?", "Does it fit?"} <= {
        tile["question"] for tile in found["page"]["tiles"]
    }
    sections = ask(server, "sections", plan=json.dumps(found["answer"]))["sections"]
    kinds = {part["kind"] for section in sections for part in section["parts"]}
    assert {"text", "code", "table", "chart"} <= kinds
    assert found["plans"][0]["options"] == {"zero": "3"}
    assert found["texts"]["dp"] == "8"
    assert found["answer"]["best"]["plan"] == found["plans"][0]["plan"]


def test_faults_come_with_their_options_and_fixes(server):
    fault = ask(server, "estimate", options={**QUESTION, "recompute": "ful"})["error"]["faults"][0]
    assert fault["path"] == "--recompute"
    assert "full" in fault["fix"]


def test_a_search_tells_its_progress_and_then_its_answer(server):
    _, content = call(server, "POST", "/api/search", {"options": QUESTION})
    *before, last = map(json.loads, content.splitlines())
    assert before
    assert all("plans covered" in line["progress"] for line in before)
    assert last["answer"]["coverage"]["gap"] == 0.0


@pytest.mark.parametrize(
    "fixed",
    [{"tp": "1", "pp": "1", "cp": "1"}, pytest.param({}, marks=pytest.mark.slow)],
    ids=["few", "all"],
)
def test_a_front_is_a_chart_with_its_plans(server, fixed):
    _, content = call(server, "POST", "/api/front", {"options": QUESTION | fixed})
    found = json.loads(content.splitlines()[-1])
    assert found["chart"]["spec"]["layer"][0]["params"][0]["name"] == "brush"
    assert len(found["plans"]) == len(found["chart"]["spec"]["data"]["values"]) > 1


def test_plans_side_by_side(server):
    questions = [{**QUESTION, "zero": zero} for zero in ("2", "3")]
    table, times, memory = ask(server, "side_by_side", questions=questions)["parts"]
    assert table["head"] == ["", "A", "B"]
    for chart in (times, memory):
        assert {row["row"] for row in chart["spec"]["data"]["values"]} == {"A", "B"}


def test_a_report_and_launch_files_are_files(server):
    plan = json.dumps(ask(server, "estimate", options={**QUESTION, "zero": "3"})["answer"])
    _, report = call(server, "POST", "/api/report", {"plan": plan})
    assert report.startswith(b"<!DOCTYPE html>")
    _, archive = call(server, "POST", "/api/export", {"plan": plan, "target": "torch"})
    assert any(name.endswith(".py") for name in ZipFile(BytesIO(archive)).namelist())
    refused = ask(server, "export", plan=plan, target="no such")
    assert refused["error"]["kind"] == "unknown_name"


def test_a_plan_is_run_dry_for_its_page(server):
    pytest.importorskip("torch")
    options = QUESTION | {"seq": "1k", "global_batch": "8", "framework": "fsdp", "zero": "3",
                          "model": "llama3.2-1b", "recompute": "none"}  # fmt: skip
    plan = ask(server, "estimate", options=options)["answer"]
    told = ask(server, "verify", plan=json.dumps(plan))["verified"]
    assert re.match(r"started in a dry run of PyTorch 2\.[\d.+a-z]+: peak [\d.]+ GiB, priced", told)


def test_a_dry_run_without_pytorch_says_what_to_install(server, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    plan = ask(server, "estimate", options=QUESTION | {"zero": "3"})["answer"]
    told = ask(server, "verify", plan=json.dumps(plan))["error"]
    assert "pip install 'meshwright[run]'" in told["message"]


def test_a_plan_on_a_grid_has_a_map_with_what_links_carry(server):
    options = {"model": "llama3-8b", "on": "wafer-4x4", "seq": "4k", "global_batch": "64",
               "tp": "4", "dp": "4"}  # fmt: skip
    plan = json.dumps(ask(server, "estimate", options=options)["answer"])
    drawn = ask(server, "picture", plan=plan)
    assert drawn["axes"] == ["tp", "dp_shard"]
    assert re.search(r"\d+ to \d+: \d+% \(tp \d+%.*\)", json.dumps(drawn["part"]["spec"]))


def test_options_of_a_placed_plan_state_no_order_of_axes(server):
    options = {"model": "gpt2-124m", "on": "wafer-2x2", "seq": "1k", "global_batch": "4"}
    found = ask(server, "estimate", options=options)
    order = found["answer"]["best"]["plan_options"]["axis_order"]
    assert order[0].startswith("dp")
    assert "axis_order" not in found["plans"][0]["options"]


def test_nothing_is_put_side_by_side_with_nothing(server):
    assert ask(server, "side_by_side", questions=[])["error"]["kind"] == "spec"


def test_targets_that_are_no_text_are_not_proposed(server):
    reply = json.loads(call(server, "GET", "/api/catalog")[1])
    targets = [target["name"] for target in reply["targets"]]
    assert "megatron" in targets
    assert "chakra" not in targets


def test_a_search_ends_when_nobody_waits(server, monkeypatch):
    stopped = threading.Event()

    def endless(options, start, progress):
        try:
            while True:
                time.sleep(0.01)
                progress(*STATE)
        finally:
            stopped.set()

    monkeypatch.setattr(answers, "search", endless)
    monkeypatch.setattr(answers, "progress_record", lambda *state: {"progress": "on its way"})
    with socket.create_connection(server.server_address) as line:
        body = json.dumps({"options": QUESTION})
        head = (
            f"POST /api/search HTTP/1.0\r\nHost: {server.own_host}\r\n"
            f"Authorization: Bearer {server.token}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        line.sendall((head + body).encode())
        assert b"on its way" in line.recv(1 << 16) + line.recv(1 << 16)
        assert not stopped.is_set()
    assert stopped.wait(10)


STATE = (None, None, 0.0)


def test_a_search_that_is_stopped_answers_with_the_best_so_far(server):
    server.to_stop.add("this one")
    body = {"options": {**QUESTION, "on": "64xH100"}, "search": "this one"}
    _, content = call(server, "POST", "/api/search", body)
    found = json.loads(content.splitlines()[-1])
    assert not found["answer"]["coverage"]["is_complete"]
    assert found["answer"]["coverage"]["gap"] > 0.0
    assert not server.to_stop


def test_the_page_can_stop_a_search(server):
    assert ask(server, "stop", search="that one") == {}
    assert server.to_stop == {"that one"}
    server.to_stop.clear()
