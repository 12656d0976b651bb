"""``meshwright explore``: serve a page on this machine until Ctrl-C."""

from __future__ import annotations

import argparse
import json


def explore(args: argparse.Namespace) -> int:
    """Print the address of the explorer, open it in a browser, and serve it."""
    from meshwright.base.errors import Fault, SpecError
    from meshwright.explore.question import start_of
    from meshwright.explore.server import Explorer

    start = start_of(args)
    if not 0 <= args.port < 2**16:
        raise SpecError(Fault("--port", f"found {args.port}, expected 0 to {2**16 - 1}"))
    with Explorer(start, args.port) as server:
        server.warm_up()
        about = f"exploring at {server.url}\nCtrl-C ends it"
        print(json.dumps({"url": server.url}) if args.json else about, flush=True)
        if not args.no_browser:
            import webbrowser

            webbrowser.open(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0
