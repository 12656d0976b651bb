"""What Sphinx makes of the code while it builds the site: nothing of it is committed.

``commands`` writes a page for each command, ``python_api`` for each function and for the answers,
``catalog`` for what the registries hold, ``schemas`` for the JSON Schemas, ``project`` for the
pages at the root of the repository. ``links`` fits the Markdown, which reads well without a site,
to the site; ``output_of`` shows what a command writes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from generators import catalog, commands, links, output_of, project, python_api, schemas

GENERATED = "reference"
"""Folders in here are written anew by each build; files in here are written by people."""


def setup(app: Any) -> dict[str, Any]:
    """Add all of this to Sphinx."""
    app.connect("builder-inited", write_pages)
    links.setup(app)
    python_api.setup(app)
    output_of.setup(app)
    return {"parallel_read_safe": True}


def write_pages(app: Any) -> None:
    """Write the generated pages; those that are as before keep their time, and are not read."""
    reference = Path(app.srcdir) / GENERATED
    pages: dict[str, str] = {}
    for generator in (commands, python_api, catalog, schemas, project):
        pages |= generator.pages()
    for old in reference.glob("*/**/*.md"):
        if old.relative_to(reference).as_posix() not in pages:
            old.unlink()
    for name, text in pages.items():
        path = reference / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
