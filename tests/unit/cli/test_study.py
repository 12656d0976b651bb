"""study without the distribution that holds the studies."""

from importlib.metadata import EntryPoints

from meshwright.base import registry
from meshwright.cli.main import main


def test_without_studies_the_message_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setattr(registry, "_installed_entries", lambda: EntryPoints(()))
    assert main(["study"]) == 2
    assert "pip install meshwright-papers" in capsys.readouterr().err
