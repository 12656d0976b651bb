"""``meshwright explore``: serve a page on this machine until Ctrl-C."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any


def explore(args: Any) -> int:
    """Print the address of the explorer, open it in a browser, and serve it."""
    from meshwright.explore.question import start_of
    from meshwright.explore.server import Explorer

    start = start_of(args)
    with Explorer(start, args.port) as server:
        server.warm_up()
        about = f"exploring at {server.url}\nCtrl-C ends it"
        print(json.dumps({"url": server.url}) if args.json else about, flush=True)
        with suppress(KeyboardInterrupt), TemporaryDirectory() as folder:
            if not args.no_browser:
                import webbrowser

                webbrowser.open(_way_in(Path(folder), server.url))
            server.serve_forever()
    return 0


def _way_in(folder: Path, url: str) -> str:
    """Return the address of a file that leads to another address.

    All users of a machine can read the arguments of a browser, but not a new folder of
    ``tempfile`` or this file.
    """
    file = folder / "explore.html"
    file.touch(mode=0o600)
    file.write_text(
        f'<!DOCTYPE html><meta charset="utf-8"><title>meshwright explore</title>'
        f'<meta http-equiv="refresh" content="0; url={url}"><a href="{url}">explore</a>\n',
        encoding="utf-8",
    )
    return file.as_uri()
