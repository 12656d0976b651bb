"""The explorer on the command line: it prints its address, opens a browser, and ends at Ctrl-C."""

import json
import stat
import webbrowser
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest

from meshwright.cli.main import main
from meshwright.explore.server import Explorer

QUESTION = ["llama3-8b", "--on", "8xH100", "--seq", "8k", "--global-batch", "64"]


@pytest.fixture(autouse=True)
def opened(monkeypatch):
    """Serve until Ctrl-C, which comes at once; return what a browser was to open, and to show."""
    addresses = []

    def opened_by_browser(address):
        path = Path(url2pathname(urlsplit(address).path))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        addresses.append((address, path.read_text(encoding="utf-8").split("url=")[1].split('"')[0]))

    def interrupted(server):
        raise KeyboardInterrupt

    monkeypatch.setattr(Explorer, "serve_forever", interrupted)
    monkeypatch.setattr(Explorer, "warm_up", lambda server: None)
    monkeypatch.setattr(webbrowser, "open", opened_by_browser)
    return addresses


def test_it_opens_the_address_that_it_prints(capsys, opened):
    assert main(["explore", *QUESTION]) == 0
    ((argument, shown),) = opened
    assert shown.startswith("http://127.0.0.1:")
    assert shown in capsys.readouterr().out
    token = shown.partition("#token=")[2]
    assert token
    assert token not in argument  # which ps shows to everybody
    assert not Path(url2pathname(urlsplit(argument).path)).exists()


def test_the_address_as_json_without_a_browser(capsys, opened):
    assert main(["explore", *QUESTION, "--json", "--no-browser"]) == 0
    assert "token=" in json.loads(capsys.readouterr().out)["url"]
    assert opened == []


def test_each_run_has_a_token_of_its_own(opened):
    for _ in range(2):
        main(["explore", *QUESTION])
    assert opened[0][1].partition("token=")[2] != opened[1][1].partition("token=")[2]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--port", "70000"], "--port: found '70000'"),
        (["missing.json"], "missing.json"),
    ],
)
def test_what_cannot_be_served_is_told_before(capsys, words, complaint):
    assert main(["explore", *words]) == 2
    assert complaint in capsys.readouterr().err
