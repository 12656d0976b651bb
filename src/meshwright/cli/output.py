"""How a result reaches the user: lines for a reader, or JSON for a program."""

from __future__ import annotations

from collections.abc import Iterable


def show(lines: Iterable[str], data: object, as_json: bool) -> None:
    """Print lines for a reader, or data for a program."""
    if as_json:
        import json

        print(json.dumps(data, indent=2))
    else:
        print("\n".join(lines))
