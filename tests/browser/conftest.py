"""A headless Chromium, the explorer as a user starts it, and what the tests ask of a page."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update",
         "--disable-sync")  # fmt: skip
AXE = Path(sys.prefix) / "node_modules" / "axe-core" / "axe.min.js"
PATIENCE_S = 60.0
"""For one answer, on a machine that is busy with other things."""
OWN_SCHEMES = ("blob:", "data:", "file:", "chrome:", "about:")


class Page:
    """One tab, and what happened in it."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver
        self.origin = ""

    def open(self, address: str) -> None:
        """Go to an address; requests to elsewhere count as faults."""
        self.origin = "/".join(address.split("/")[:3])
        self.driver.get("about:blank")  # the hash alone loads nothing anew
        self.driver.get_log("browser")
        self.driver.get_log("performance")
        self.driver.get(address)

    def look(self, width: int, *, is_dark: bool = False) -> None:
        """Set the width of the window and the colours of the reader."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def does(self, script: str, *values):
        """Return what a script of the page returns."""
        return self.driver.execute_script(script, *values)

    def until(self, condition: str) -> None:
        """Wait until a condition of the page holds."""
        end = time.monotonic() + PATIENCE_S
        while not self.does(f"return Boolean({condition})"):
            assert time.monotonic() < end, f"{condition}: {self.text('#result')[:500]}"
            time.sleep(0.02)

    def state(self) -> str:
        """Return what became of the last question, once it is answered."""
        self.until("['done', 'failed'].includes(document.body.dataset.state)")
        return self.does("return document.body.dataset.state")

    def front(self) -> None:
        """Wait for the Pareto chart of the question that was searched last."""
        self.until("/on the Pareto front/.test(document.getElementById('status').textContent)")

    def one(self, selector: str):
        """Return the first element of a selector."""
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """Return the words of an element as they are, seen or not."""
        return self.one(selector).get_property("textContent")

    def set(self, name: str, text: str) -> None:
        """Change an option as a user does."""
        entry = self.one(f"#option-{name}")
        self.does("const fold = arguments[0].closest('details'); if (fold) fold.open = true", entry)
        self.reach(entry)
        if entry.tag_name == "select":
            Select(entry).select_by_value(text)
        elif entry.get_attribute("type") == "checkbox":
            entry.click()
        else:
            entry.send_keys(Keys.CONTROL, "a")
            entry.send_keys(text)

    def press(self, selector: str) -> None:
        """Click, wherever it is on the page."""
        self.reach(self.one(selector)).click()

    def reach(self, entry):
        """Bring an element into view, and return it."""
        self.does("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", entry)
        return entry

    def drag(self, selector: str, start: tuple[float, float], stop: tuple[float, float]) -> None:
        """Drag over an element, from and to shares of its width and height."""
        entry = self.reach(self.one(selector))
        width, height = entry.size["width"], entry.size["height"]
        (x, y), (to_x, to_y) = ((width * (a - 0.5), height * (b - 0.5)) for a, b in (start, stop))
        pointer = ActionChains(self.driver, duration=100)
        pointer.move_to_element_with_offset(entry, x, y).click_and_hold()
        pointer.move_by_offset((to_x - x) / 2, (to_y - y) / 2)
        pointer.move_by_offset((to_x - x) / 2, (to_y - y) / 2).release().perform()

    def complaints(self) -> list[str]:
        """Return what the console says, and requests that went to any other host."""
        said = [entry["message"] for entry in self.driver.get_log("browser")]
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                address = message["params"]["request"]["url"]
                if not address.startswith((self.origin, *OWN_SCHEMES)):
                    said.append(f"request to {address}")
        return said

    def barriers(self, *impacts: str) -> list[str]:
        """Return what axe-core finds that some readers cannot see, read or reach.

        With ``impacts`` only what is as bad as one of them, such as ``serious``.
        """
        if not self.does("return Boolean(window.axe)"):
            self.driver.execute_cdp_cmd(
                "Runtime.evaluate", {"expression": AXE.read_text(encoding="utf-8")}
            )
        found = self.driver.execute_async_script(
            "axe.run().then((found) => arguments[0](found.violations), (error) => arguments[0]("
            "[{id: 'axe', help: String(error), nodes: []}]))"
        )
        return [
            f"{fault['id']}: {fault['help']}: {node['html'][:160]} {node['failureSummary']}"
            for fault in found
            if not impacts or fault.get("impact") in impacts
            for node in fault["nodes"] or [{"html": "", "failureSummary": ""}]
        ]


@pytest.fixture(scope="session")
def downloads(tmp_path_factory):
    """Return the folder in which files of the page land."""
    return tmp_path_factory.mktemp("downloads")


@pytest.fixture(scope="session")
def driver(tmp_path_factory, downloads):
    """Start the browser."""
    options = webdriver.ChromeOptions()
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.binary_location = shutil.which("chromium")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    with webdriver.Chrome(options, service) as made:
        made.set_script_timeout(PATIENCE_S)
        keep = {"behavior": "allow", "downloadPath": str(downloads)}
        made.execute_cdp_cmd("Browser.setDownloadBehavior", keep)
        yield made


@pytest.fixture
def page(driver):
    """Return the tab, as wide as a laptop's and light."""
    tab = Page(driver)
    tab.look(1280)
    return tab


@pytest.fixture(scope="session")
def explore():
    """Return what starts the explorer as a command, and returns its address."""
    started = []

    def start(*words: str) -> str:
        command = [sys.executable, "-P", "-m", "meshwright", "explore", *words]
        process = subprocess.Popen(
            [*command, "--no-browser", "--json"], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        return json.loads(process.stdout.readline())["url"]

    yield start
    for process in started:
        process.terminate()
        process.wait()
        process.stdout.close()


@pytest.fixture(scope="session")
def address(explore):
    """Return the address of an explorer without a question."""
    return explore()
