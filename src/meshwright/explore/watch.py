"""A page of this machine that is made anew at each request: results while they come."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from http import HTTPStatus

from meshwright.base.errors import MeshwrightError
from meshwright.explore.loopback import LocalServer, Loopback

EVERY_S = 10
"""Seconds between two requests of the browser [s]."""


class Watch(LocalServer):
    """A page of results."""

    def __init__(self, page: Callable[[], str], port: int = 0) -> None:
        self.page = page
        super().__init__(Watched, port)

    @property
    def url(self) -> str:
        """Address of the page: others on this machine cannot guess it."""
        return f"http://{self.own_host}/{self.token}"


class Watched(Loopback):
    """A request for the page."""

    server: Watch
    policy = (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
        "img-src data: blob:; frame-ancestors 'none'"
    )

    def do_GET(self) -> None:  # noqa: N802
        """Send the page as it is now."""
        if not self._is_named_right():
            return
        if not hmac.compare_digest(self.path.encode(), f"/{self.server.token}".encode()):
            self._refuse(HTTPStatus.UNAUTHORIZED, "open the address that the command printed")
            return
        try:
            content = self.server.page().encode()
        except (MeshwrightError, OSError) as error:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
            return
        headers = {"Content-Type": "text/html; charset=utf-8", "Refresh": str(EVERY_S)}
        self._send(HTTPStatus.OK, content, headers)
