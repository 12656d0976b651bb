"""The built site in a browser: it asks for nothing elsewhere, fits its window, all can read it."""

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from sampled import sampled

SITE = Path(__file__).parents[2] / "docs" / "_build" / "html"
PAGES = (
    "index.html", "gallery.html", "reference/api/plan.html", "reference/commands/plan.html",
    "reference/catalog/collectives.html", "results/where_tatp_wins.html", "explanation/walks.html",
    *(f"notebooks/{path.name}" for path in sorted(SITE.glob("notebooks/*.html"))[:1]),
)  # fmt: skip
"""Among them pages with frames, with wide tables, and a notebook."""


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and says nothing of it."""

    def log_message(self, *args):
        """Say nothing."""


@pytest.fixture(scope="module")
def site():
    """Return the address of the site, served to this machine."""
    assert (SITE / "index.html").is_file(), "the site is not built: ./mw docs"
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=SITE)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("name", sampled(PAGES, 3))
@pytest.mark.parametrize(("width", "is_dark"), [(1280, False), (400, True)])
def test_everybody_can_read_a_page(page, site, name, width, is_dark):
    page.look(width, is_dark=is_dark)
    page.open(f"{site}/{name}")
    assert page.does("return document.documentElement.scrollWidth") <= width
    assert page.barriers("serious", "critical") == []
    assert page.complaints() == []


def test_frames_show_what_commands_wrote(page, site):
    page.open(f"{site}/gallery.html")
    frame = page.reach(page.one("iframe.shown"))
    page.driver.switch_to.frame(frame)
    try:
        page.until("document.querySelectorAll('.tile').length > 4")
    finally:
        page.driver.switch_to.default_content()
    assert page.complaints() == []


def test_search_finds_an_option(page, site):
    page.open(f"{site}/search.html?q=recompute")
    page.until("document.querySelectorAll('#search-results li').length > 0")
    assert page.complaints() == []
