"""Walks in a browser: they play, step and scrub, by mouse and keys, and everybody can read them."""

import pytest
from sampled import sampled
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from meshwright.cli.main import main

WALKS = {
    "tp": ["tp"],
    "tp-sp": ["tp-sp", "--group", "4"],
    "tatp": ["tatp", "--group", "8"],
    "ring": ["tspp", "--group", "4", "--streamed", "weights"],
    "wave": ["even_wave_all_reduce", "--group", "2x4"],
    "switch": ["in_network_all_reduce"],
}


@pytest.fixture(scope="module")
def walks(tmp_path_factory):
    """Return the addresses of the pages of some walks."""
    folder = tmp_path_factory.mktemp("walks")
    found = {}
    for name, words in WALKS.items():
        path = folder / f"{name}.html"
        assert main(["show", "walk", *words, "--report", str(path)]) == 0
        found[name] = path.as_uri()
    return found


def open_walk(page, address):
    page.open(address)
    page.until("document.querySelector('.player').dataset.state === 'ready'")


def at(page):
    """The frame that is shown: its number, and its heading in the list of frames."""
    shown = page.text(".frames [aria-current]")
    assert page.text(".phase") == shown
    return int(page.text(".count").split()[0]), shown


def held(page, member):
    """What a member shows to hold, without what it does not hold."""
    slots = f".member:nth-of-type({member + 1}) .slot:not(.none) span"
    return [entry.text for entry in page.driver.find_elements(By.CSS_SELECTOR, slots)]


@pytest.mark.parametrize("name", sampled(WALKS, 2))
@pytest.mark.parametrize(("width", "is_dark"), [(1280, False), (400, True)])
def test_every_frame_can_be_read(page, walks, name, width, is_dark):
    page.look(width, is_dark=is_dark)
    open_walk(page, walks[name])
    frames = page.does("return document.querySelectorAll('.frames li').length")
    assert at(page)[0] == 1
    for number in range(1, frames):
        page.does("document.querySelectorAll('.frames button')[arguments[0]].click()", number)
    assert at(page)[0] == frames
    assert page.does("return document.documentElement.scrollWidth") <= width
    assert page.barriers() == []
    assert page.complaints() == []


def test_buttons_step_and_the_slider_scrubs(page, walks):
    open_walk(page, walks["tp-sp"])
    assert held(page, 1)[6] == "X[1]"
    for _ in range(4):
        page.press(".forward")
    assert at(page) == (5, "forward: all-gather of N, step 3 of 3")
    page.until("document.querySelectorAll('.fresh').length === 4")  # the messages have arrived
    assert held(page, 1)[7] == "N"
    page.press(".back")
    assert at(page)[0] == 4
    assert held(page, 1)[7] == "N 3/4"
    tokens = page.driver.find_elements(By.CSS_SELECTOR, ".token text")
    assert [token.text for token in tokens] == ["N[3]", "N[0]", "N[1]", "N[2]"]
    page.does(
        "const scrub = document.querySelector('.scrub'); scrub.value = 7;"
        "scrub.dispatchEvent(new Event('input'))"
    )
    assert at(page) == (8, "forward: attention, output")
    assert held(page, 3)[-1] == "O Σ1"


def test_keys_step_and_play(page, walks):
    open_walk(page, walks["ring"])
    body = page.one("body")
    body.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert at(page)[0] == 3
    body.send_keys(Keys.ARROW_LEFT)
    assert at(page)[0] == 2
    body.send_keys(Keys.END)
    assert at(page)[0] == 2  # of the page, not of the player
    page.one(".forward").send_keys(Keys.END)
    assert at(page)[0] == 10
    page.one(".forward").send_keys(Keys.HOME)
    assert at(page)[0] == 1
    page.one(".scrub").send_keys(Keys.ARROW_RIGHT)
    assert at(page)[0] == 2
    page.one(".held-by").send_keys(Keys.ARROW_RIGHT)
    assert at(page)[0] == 3
    page.does("document.querySelector('.frames').style.maxHeight = '5rem'")
    page.one(".frames").send_keys(Keys.END, Keys.SPACE)
    assert at(page)[0] == 3  # the list scrolls
    page.does("document.activeElement.blur()")
    body.send_keys(Keys.SPACE)
    assert page.text(".play") == "Pause"
    page.until("Number(document.querySelector('.count').textContent.split(' ')[0]) > 3")
    body.send_keys(Keys.SPACE)
    assert page.text(".play") == "Play"


def test_it_plays_to_the_end_and_from_the_start_again(page, walks):
    open_walk(page, walks["switch"])
    page.does("document.querySelector('.speed').value = '4'")
    page.press(".play")
    page.until("document.querySelector('.count').textContent === '3 of 3'")
    page.until("document.querySelector('.play').textContent === 'Play'")
    assert [held(page, member) for member in range(4)] == [["T"]] * 4
    page.press(".play")
    assert at(page)[0] == 1


def test_nothing_moves_for_readers_who_asked_for_that(page, walks):
    feature = {"name": "prefers-reduced-motion", "value": "reduce"}
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    open_walk(page, walks["ring"])
    page.press(".forward")
    assert held(page, 0) == ["X[0]", "W[0,1]", "Y 1/16"]  # at once, not when a token is there


def test_on_paper_all_frames_are_there(page, walks):
    open_walk(page, walks["tatp"])
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    shown = page.does(
        "const list = document.querySelector('.frames');"
        "return [list.scrollHeight - list.clientHeight, getComputedStyle(document.querySelector("
        "'.controls')).display]"
    )
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert shown == [0, "none"]
