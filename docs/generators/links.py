"""From Markdown that reads well in the repository to pages of the site.

A page holds the folder of its name (``commands.md`` the folder ``commands``, ``index.md`` its own);
the pages of that folder that it links to are its branch of the site's tree. Links to the root of
the repository lead to where the site has these pages, and code blocks with a file name get a
caption.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

from generators import project

LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[)#])")
TITLED = re.compile(r"^```(\w+) title=(\S+)$", re.MULTILINE)
COMMAND = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)
OF_PROJECT = {f"../{path}": f"reference/{name}" for path, name in project.PAGES.items()}
MOVED = OF_PROJECT | {"../README.md": "index.md", "schemas": "reference/schemas/index.md"}
"""By path from the folder of the docs: what the site has in another place."""
MADE_FROM_CODE = """
## Made from the code

* [Python](api/index.md): the functions, and what their answers hold
* [Catalog](catalog/index.md): chips, systems, models, frameworks, collectives, with their sources
* [JSON Schemas](schemas/index.md) of the answers
"""
"""What the site has in the reference beside the pages that people write."""


def setup(app: Any) -> None:
    """Add the handler."""
    app.connect("source-read", fit)


def fit(app: Any, name: str, source: list[str]) -> None:
    """Fit the text of a page to the site."""
    if not str(app.env.doc2path(name)).endswith(".md"):
        return
    text = TITLED.sub(r"```{code-block} \1\n:caption: \2\n", source[0])
    if name == "reference/index":
        text += MADE_FROM_CODE
    if name == "reference/commands":
        text = COMMAND.sub(r"| [`\1`](commands/\1.md) |", text)
    text = LINK.sub(lambda match: placed(match[1], name), text)
    source[0] = text + tree(name, text)


def placed(link: str, name: str) -> str:
    """Return a link as the site needs it."""
    written_at = {place: path for path, place in OF_PROJECT.items()}.get(f"{name}.md", name)
    target = posixpath.normpath(posixpath.join(posixpath.dirname(written_at), link))
    target = MOVED.get(target, target).removeprefix("../docs/")
    return posixpath.relpath(target, posixpath.dirname(name) or ".")


def tree(name: str, text: str) -> str:
    """Return the branch of the site's tree that a page holds, as a list that is not shown."""
    linked = [
        posixpath.normpath(posixpath.join(posixpath.dirname(name), link))
        for link in LINK.findall(text)
    ]
    in_order = reversed(dict.fromkeys(reversed(linked)))  # lists stand at the end of pages
    branch = [page for page in in_order if page.endswith((".md", ".ipynb")) and holds(name, page)]
    if not branch:
        return ""
    entries = "\n".join(f"/{posixpath.splitext(page)[0]}" for page in branch)
    return f"\n\n```{{toctree}}\n:hidden:\n\n{entries}\n```\n"


def holds(name: str, page: str) -> bool:
    """Return whether a page holds another one: it lies in its folder, or is the index of one there.

    ``index`` holds its own folder, any other page the folder of its name beside it or at the top;
    the first page of all holds those of the project as well.
    """
    folder, base = posixpath.split(name)
    parent, file = posixpath.split(page)
    own = (folder,) if base == "index" else (name, base)
    is_below = parent in own or (file == "index.md" and posixpath.dirname(parent) in own)
    is_of_project = name == "index" and page in OF_PROJECT.values()
    return page != f"{name}.md" and (is_below or is_of_project)
