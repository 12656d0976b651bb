"""Methods of every answer with a report: the report, a table, its view in a notebook."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

from meshwright.base.records import Listed

if TYPE_CHECKING:
    from meshwright.view.parts import Page


class Shown(Listed):
    """An answer with a report, which its room builds."""

    @abstractmethod
    def page(self) -> Page:
        """Return the report as data."""

    def report(self, path: str | Path, *, force: bool = False) -> None:
        """Write the report as one HTML file; over a file that is there only with ``force``."""
        from meshwright.view.html import write_page

        write_page(self.page(), path, force=force)

    def _repr_html_(self) -> str:
        """Return the HTML for a notebook: the first screen of the report."""
        from meshwright.view.html import card_of

        return card_of(self.page())
