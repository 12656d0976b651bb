"""The page of results: for who has its address, made anew at each request, on this machine."""

import http.client
import re
import threading
from contextlib import closing

import pytest

from meshwright.base.cluster import state_of_code
from meshwright.base.errors import SpecError
from meshwright.cli.main import main
from meshwright.explore.watch import Watch
from meshwright.sweep.questions import checked
from meshwright.sweep.run import load_sweep, run
from meshwright.sweep.stores import SqliteStore


@pytest.fixture
def shown():
    """Return the texts of a page, one for each request, and its server."""
    texts = []

    def page():
        if not texts:
            raise SpecError("nothing is there")
        return texts[-1]

    with Watch(page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield texts, server
        server.shutdown()
        thread.join()


def call(server, path, host=None):
    with closing(http.client.HTTPConnection(*server.server_address, timeout=60)) as connection:
        connection.request("GET", path, headers={} if host is None else {"Host": host})
        reply = connection.getresponse()
        return reply, reply.read().decode()


def test_each_request_shows_what_is_there_now(shown):
    texts, server = shown
    path = "/" + server.token
    assert call(server, path)[0].status == 503
    for text in ("one", "two"):
        texts.append(text)
        reply, body = call(server, path)
        assert (reply.status, body) == (200, text)
        assert int(reply.headers["Refresh"]) > 0
        assert "default-src 'none'" in reply.headers["Content-Security-Policy"]


def test_others_see_nothing(shown):
    texts, server = shown
    texts.append("private")
    assert server.server_address[0] == "127.0.0.1"
    assert server.url == f"http://127.0.0.1:{server.server_port}/{server.token}"
    for path, host in (("/", None), ("/" + server.token[:-1], None), ("/" + server.token, "a.b")):
        reply, body = call(server, path, host)
        assert reply.status in (401, 421)
        assert "private" not in body


SWEEP = """name: three
ask: plan
fixed: {model: gpt2-medium, on: 8xA100, seq: 512}
vary: {global_batch: [8, 16, 32]}
"""


def test_a_sweep_is_watched_while_it_comes(tmp_path, capsys, monkeypatch):
    path, out = tmp_path / "three.yaml", tmp_path / "kept.db"
    path.write_text(SWEEP)
    sweep = load_sweep(path)
    points = checked(sweep)

    def answer(point):
        return {"status": "found", "step_time_s": point["global_batch"] * 0.125}

    seen = []

    def looked(server):
        thread = threading.Thread(target=type(server).__mro__[1].serve_forever, args=(server,))
        thread.start()
        for _ in range(2):
            seen.append(call(server, "/" + server.token)[1])
            with SqliteStore(out) as store:
                run("plan", answer, points, store, version=state_of_code())
        server.shutdown()
        thread.join()

    monkeypatch.setattr(Watch, "serve_forever", looked)
    assert main(["sweep", str(path), "--out", str(out), "--watch"]) == 0
    assert re.search(r"watching .*kept.db at http://127.0.0.1:\d+/", capsys.readouterr().out)
    assert "3 of 3 points not asked yet" in seen[0]
    assert "not asked yet" not in seen[1]
    assert "3 found" in seen[1]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--watch"], "with --out FILE.db"),
        (["--watch", "--out", "x.db", "--budget", "2h"], "without --watch"),
    ],
)
def test_what_a_page_cannot_use_is_refused(words, told, tmp_path, capsys):
    path = tmp_path / "three.yaml"
    path.write_text(SWEEP)
    assert main(["sweep", str(path), *words]) == 2
    assert told in capsys.readouterr().err
