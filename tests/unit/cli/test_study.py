"""study without the distribution that holds the studies."""

import importlib.metadata

from meshwright.cli.main import main


def test_without_studies_the_message_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: ())
    assert main(["study"]) == 2
    assert "pip install meshwright-papers" in capsys.readouterr().err
