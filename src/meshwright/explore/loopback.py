"""Servers of this machine only: who may ask, and how an answer is sent.

Requests must name this host (against DNS rebinding); what is private needs the random token.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HOST = "127.0.0.1"


class LocalServer(ThreadingHTTPServer):
    """A server for one user of this machine."""

    daemon_threads = True

    def __init__(self, handler: type[Loopback], port: int = 0) -> None:
        self.token = secrets.token_urlsafe(24)
        super().__init__((HOST, port), handler)

    @property
    def own_host(self) -> str:
        """Host name of this server in requests."""
        return f"{HOST}:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a browser that left; other errors are bugs of this package, and shown."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Loopback(BaseHTTPRequestHandler):
    """A request to a server of this machine."""

    server: LocalServer
    server_version, sys_version = "meshwright", ""
    timeout = 30
    """Seconds after which an unfinished request is given up."""
    policy = "default-src 'none'"
    """Sources that the browser may use."""

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the terminal belongs to the user."""

    def _is_named_right(self) -> bool:
        if self.headers.get("Host") == self.server.own_host:
            return True
        self._refuse(HTTPStatus.MISDIRECTED_REQUEST, f"this is {self.server.own_host}")
        return False

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        self._send(status, f"{message}\n".encode(), {"Content-Type": "text/plain; charset=utf-8"})

    def _send(self, status: HTTPStatus, content: bytes, headers: Mapping[str, str]) -> None:
        self._head(status, {**headers, "Content-Length": str(len(content))})
        self.wfile.write(content)

    def _head(self, status: HTTPStatus, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        always = {
            "Content-Security-Policy": self.policy, "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
        }  # fmt: skip
        for name, value in {**headers, **always}.items():
            self.send_header(name, value)
        self.end_headers()
