"""The server of the explorer: this machine only, one page, answers as JSON.

The page holds no answer and is open to everybody on this machine. Answers need the random token of
the printed address: it follows ``#``, so browsers never send it, and the page sends it in a
header; a cookie would go to every port of this host.
Requests must name this host (against DNS rebinding) and come from this page (against other pages
of the browser); the page itself may load and call nothing but this server.
"""

from __future__ import annotations

import hmac
import json
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from meshwright.base.errors import MeshwrightError, UsageError
from meshwright.catalog.answer_file import plain_data
from meshwright.explore import answers
from meshwright.explore.loopback import LocalServer, Loopback
from meshwright.explore.question import Start, catalog
from meshwright.show.failure import failure

OWN = Path(__file__).parent / "page"
KIT = Path(__file__).parents[1] / "view"
FILES = {
    "/": (OWN / "index.html", "text/html"),
    "/explorer.css": (OWN / "explorer.css", "text/css"),
    "/explorer.js": (OWN / "explorer.js", "text/javascript"),
    "/parts.js": (OWN / "parts.js", "text/javascript"),
    "/page.css": (KIT / "page.css", "text/css"),
    "/page.js": (KIT / "page.js", "text/javascript"),
    **{
        f"/{name}": (KIT / "vega" / name, "text/javascript")
        for name in ("vega.min.js", "vega-lite.min.js", "vega-embed.min.js")
    },
}
"""Files of the page; the kit of reports draws its charts."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
MOST_BYTES = 8 * 2**20
"""Most bytes of a request of the page: a plan with its runners-up."""


class Cancelled(BaseException):
    """The browser no longer waits for the answer."""


class Explorer(LocalServer):
    """The page of one question, served to one user."""

    def __init__(self, start: Start, port: int = 0) -> None:
        self.start = start
        self.to_stop: set[str] = set()
        """Names, from the page, of searches that are to stop with their best so far."""
        super().__init__(Handler, port)

    @property
    def url(self) -> str:
        """Address with the token that grants access."""
        return f"http://{self.own_host}/#token={self.token}"

    def warm_up(self) -> None:
        """Load the data of the first answer in the background."""

        def loaded() -> None:
            try:
                catalog(self.start)
                answers.warm(self.start)
            except MeshwrightError:  # told to the page when it asks
                return

        threading.Thread(target=loaded, daemon=True).start()


class Handler(Loopback):
    """One request."""

    server: Explorer
    policy = POLICY

    def do_GET(self) -> None:  # noqa: N802
        """Send a file of the page, or its content."""
        path = urlsplit(self.path).path
        if not self._is_named_right():
            return
        if path in FILES:
            file, kind = FILES[path]
            self._send(HTTPStatus.OK, file.read_bytes(), {"Content-Type": f"{kind}; charset=utf-8"})
        elif not self._is_let_in():
            return
        elif path == "/api/catalog":
            self._send_record(lambda: catalog(self.server.start))
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such page")

    def do_POST(self) -> None:  # noqa: N802
        """Answer a question of the page."""
        if not (self._is_named_right() and self._is_let_in() and self._is_from_page()):
            return
        stated = self.headers.get("Content-Length", "")
        size = int(stated) if stated.isdecimal() else 0
        if not 0 < size <= MOST_BYTES:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {MOST_BYTES} bytes")
            return
        try:
            given = json.loads(self.rfile.read(size))
        except (ValueError, RecursionError):
            given = None
        answer = ANSWERS.get(urlsplit(self.path).path)
        if not isinstance(given, dict) or answer is None:
            self._refuse(HTTPStatus.BAD_REQUEST, "expected a question of the page")
            return
        answer(self, given)

    # ------------------------------------------------------------------------------ who asks

    def _is_let_in(self) -> bool:
        held = self.headers.get("Authorization", "").encode("utf-8", "replace")
        if hmac.compare_digest(held, f"Bearer {self.server.token}".encode()):
            return True
        self._refuse(HTTPStatus.UNAUTHORIZED, "open the address that meshwright explore printed")
        return False

    def _is_from_page(self) -> bool:
        kind = self.headers.get_content_type()
        origin = self.headers.get("Origin", f"http://{self.server.own_host}")
        if kind == "application/json" and origin == f"http://{self.server.own_host}":
            return True
        self._refuse(HTTPStatus.FORBIDDEN, "only the page itself may ask")
        return False

    # ---------------------------------------------------------------------------- what it gets

    def answer_at_once(self, work: Callable[[], Mapping[str, Any]]) -> None:
        """Send an answer that takes almost no time."""
        self._send_record(work)

    def answer_in_lines(
        self, work: Callable[[Any], Mapping[str, Any]], given: Mapping[str, Any]
    ) -> None:
        """Send a line of JSON for each step of a search, then its answer.

        The search ends when the page closes the connection, for another question. Where
        the page stops it, it is interrupted as by Ctrl-C, and answers with the best so far.
        """
        self._head(HTTPStatus.OK, {"Content-Type": "application/x-ndjson"})

        def progress(*state: Any) -> None:
            if self._is_gone():
                raise Cancelled
            if str(given.get("search")) in self.server.to_stop:
                raise KeyboardInterrupt
            self._line(answers.progress_record(*state))

        try:
            self._line(_told(lambda: work(progress)))
        except (Cancelled, KeyboardInterrupt, OSError):
            self.close_connection = True
        finally:
            self.server.to_stop.discard(str(given.get("search")))

    def stop(self, search: str) -> None:
        """Make a search answer with the best so far."""
        self.server.to_stop.add(search)
        self._send_record(dict)

    def answer_file(self, kind: str, work: Callable[[], bytes]) -> None:
        """Send a file for download; a refusal is JSON."""
        try:
            content = work()
        except (MeshwrightError, OSError) as error:
            record = _refusal(error)
            self._send_record(lambda: record)
        else:
            self._send(HTTPStatus.OK, content, {"Content-Type": kind})

    def _is_gone(self) -> bool:
        """Tell whether the browser closed the connection: reading returns its end."""
        readable, _, _ = select.select([self.connection], [], [], 0)
        return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)

    def _line(self, record: Mapping[str, Any]) -> None:
        self.wfile.write(json.dumps(record).encode() + b"\n")
        self.wfile.flush()

    def _send_record(self, work: Callable[[], Mapping[str, Any]]) -> None:
        started, cpu = time.perf_counter(), time.thread_time()
        content = json.dumps(_told(work)).encode()
        took, busy = time.perf_counter() - started, time.thread_time() - cpu
        spent = f"total;dur={1e3 * took:.1f}, cpu;dur={1e3 * busy:.1f}"
        headers = {"Content-Type": "application/json", "Server-Timing": spent}
        self._send(HTTPStatus.OK, content, headers)


def _refusal(error: Exception) -> dict[str, Any]:
    record: dict[str, Any] = plain_data(failure(error))
    return record


def _told(work: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return an answer, or the fault of the question."""
    try:
        return work()
    except (MeshwrightError, OSError) as error:
        return _refusal(error)
    except MemoryError:
        return _refusal(UsageError("memory is too small for this question"))


def _options(given: Mapping[str, Any]) -> Mapping[str, str]:
    found = given.get("options")
    return found if isinstance(found, dict) else {}


def _questions(given: Mapping[str, Any]) -> list[Mapping[str, str]]:
    found = given.get("questions")
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


ANSWERS: Mapping[str, Callable[[Handler, Mapping[str, Any]], None]] = {
    "/api/estimate": lambda page, given: page.answer_at_once(
        lambda: answers.estimate(_options(given), page.server.start)
    ),
    "/api/sections": lambda page, given: page.answer_at_once(
        lambda: answers.sections(str(given.get("plan")))
    ),
    "/api/search": lambda page, given: page.answer_in_lines(
        lambda progress: answers.search(_options(given), page.server.start, progress), given
    ),
    "/api/stop": lambda page, given: page.stop(str(given.get("search"))),
    "/api/front": lambda page, given: page.answer_in_lines(
        lambda progress: answers.front(_options(given), page.server.start, progress), given
    ),
    "/api/side_by_side": lambda page, given: page.answer_at_once(
        lambda: answers.side_by_side(_questions(given), page.server.start)
    ),
    "/api/picture": lambda page, given: page.answer_at_once(
        lambda: answers.picture(str(given.get("plan")), given.get("axis") or None)
    ),
    "/api/verify": lambda page, given: page.answer_at_once(
        lambda: answers.verify(str(given.get("plan")))
    ),
    "/api/report": lambda page, given: page.answer_file(
        "text/html; charset=utf-8", lambda: answers.report(str(given.get("plan"))).encode()
    ),
    "/api/export": lambda page, given: page.answer_file(
        "application/zip", lambda: answers.export(str(given.get("plan")), str(given.get("target")))
    ),
}
"""Requests of the page, by path."""
