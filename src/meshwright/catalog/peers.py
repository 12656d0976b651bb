"""Models and systems that a peer tool ships, kept as facts for comparisons."""

from __future__ import annotations

from typing import TypeVar

from meshwright.catalog.files import data_path, load_file
from meshwright.spec.declaration import Declaration

D = TypeVar("D", bound=Declaration)


def load_peer(model: type[D], name: str) -> D:
    """Return the file of a peer tool as the declaration that its baseline gives.

    Raises
    ------
    UnknownNameError
        When no file of that peer is kept.
    SpecError
        With all faults of the file.
    """
    return load_file(model, data_path("peers", "peer", name))
