"""The collective shown in the docs is found, and passes the conformance tests unasked."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how_to" / "add_a_collective.md"
RUN = """
import sys
import pytest
import {module}
sys.exit(pytest.main(["-v", "-p", "no:cacheprovider", "-k", "{module}", "{tests}"]))
"""


@pytest.mark.slow
def test_the_shown_collective_conforms(tmp_path):
    name, text = re.search(r"^```python title=(\S+)\n(.*?)^```", PAGE.read_text("utf-8"),
                           re.MULTILINE | re.DOTALL).groups()  # fmt: skip
    (tmp_path / name).write_text(text, encoding="utf-8")
    tests = ROOT / "tests" / "conformance" / "test_collectives.py"
    script = RUN.format(module=name.removesuffix(".py"), tests=tests)
    paths = {"PYTHONPATH": f"{ROOT / 'src'}:{tmp_path}"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=paths, cwd=ROOT, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    passed = int(re.search(r"(\d+) passed", done.stdout).group(1))
    assert passed >= 20
