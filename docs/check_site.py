"""Every link of the built site: pages, files and anchors are there, nothing loads from elsewhere.

    python docs/check_site.py docs/_build/html

Of links to other sites the form alone is checked: https, no spaces.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADS = {("link", "href"), ("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src")}
"""What a browser asks for by itself."""
NEVER_LOADED = ("canonical", "search", "index", "prev", "next")
"""Kinds of <link> that a reader follows, or nobody."""


class Page(HTMLParser):
    """Links and anchors of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[tuple[str, bool]] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep what the tag leads to, and what it is called."""
        given = dict(attrs)
        self.anchors |= {given[name] or "" for name in ("id", "name") if name in given}
        for name in ("href", "src"):
            target = given.get(name)
            if target is not None:
                loads = (tag, name) in LOADS and given.get("rel") not in NEVER_LOADED
                self.links.append((target, loads))


def faults(site: Path) -> Iterator[str]:
    """Yield what is wrong with the links of a site."""
    pages = {
        path.resolve(): Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")
    }
    for path, page in sorted(pages.items()):
        for target, loads in page.links:
            if fault := fault_of(target, path, pages, loads=loads):
                yield f"{path.relative_to(site.resolve())}: {fault}: {target}"


def fault_of(target: str, path: Path, pages: dict[Path, Page], *, loads: bool) -> str:
    """Return what is wrong with a link, or nothing."""
    parts = urlsplit(target)
    if parts.scheme == "data":
        return ""
    if parts.scheme or parts.netloc:
        if loads:
            return "is loaded from elsewhere"
        is_well_formed = parts.scheme == "https" and parts.netloc and " " not in target
        return "" if is_well_formed else "is no https address"
    found = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not found.is_file():
        return "leads to no file"
    anchor = unquote(parts.fragment)
    if anchor and found in pages and anchor not in pages[found].anchors:
        return "leads to no such place on the page"
    return ""


def main(site: Path) -> int:
    """Tell all faults; return how a program ends."""
    found = list(faults(site))
    sys.stderr.writelines(f"{fault}\n" for fault in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
