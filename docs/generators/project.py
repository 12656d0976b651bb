"""Pages that stand at the root of the repository and in folders outside of the docs."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = {
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changes.md",
    "benchmarks/README.md": "project/benchmarks.md",
    "papers/README.md": "project/papers.md",
}
"""By path in the repository: where the site has it."""


def pages() -> dict[str, str]:
    """Return these pages; ``links`` turns their links to where the site has things."""
    return {name: (ROOT / path).read_text(encoding="utf-8") for path, name in PAGES.items()}
