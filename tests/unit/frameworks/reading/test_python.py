"""Python files: what their functions build, as Python itself builds it, and nothing is run."""

import pytest

from meshwright.base.errors import SpecError
from meshwright.frameworks.reading.files import read_job
from meshwright.frameworks.reading.python import PythonFile
from meshwright.frameworks.reading.shell import unknown_in

BODIES = {
    "literals": "return Config(a=1, b=-2.5, c='x', d=None, e=True, f=[1, 2], g={'k': 3})",
    "arithmetic": "n = 4 * 1024\nreturn Config(a=n // 3, b=n % 7, c=2**10, d=1 << 4, e=6 / 4)",
    "nested": "return Config(training=Config(a=1), more=Config(b=2))",
    "attributes": "c = Config(p=Config(x=1))\nc.p.x = 8\nc.p.y = c.p.x * 2\nc.q = 3\nreturn c",
    "augmented": "c = Config(x=4)\nc.x *= 2\nc.x += 1\nreturn c",
    "tests": "x = 3\nif x > 2 and not x == 4:\n    a = 1\nelif x:\n    a = 2\nelse:\n    a = 3\n"
             "return Config(a=a, b=5 if 'k' in ['k'] else 6)",
    "loops": "c = Config(x=0)\nnames = []\nfor n in (1, 2, 3):\n    c.x += n\n    names.append(n)\n"
             "c.names = names + [len(names)]\nreturn c",
    "functions": "def f(a, *, b=2, **k):\n    return Config(a=a, b=b, **k)\nreturn f(1, c=3)",
    "unpacked": "a, b = 1, 2\nmore = dict(c=a + b)\nreturn Config(a=b, **more)",
    "text": "n = 8\nreturn Config(name=f'llama-{n}b', size=int('16'), most=max(1, n))",
}  # fmt: skip


class Config:
    """What Python itself builds."""

    def __init__(self, **fields) -> None:
        self.__dict__.update(fields)


def plain(value):
    """Return the fields of what was built, with the name under which a tree has its type."""
    if isinstance(value, Config):
        return {"_target_": "Config"} | {k: plain(v) for k, v in vars(value).items()}
    return value


def function(body):
    """Return the text of a file with one function."""
    return "def made():\n" + "".join(f"    {line}\n" for line in body.splitlines())


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_a_function_builds_what_python_builds(body):
    scope = {"Config": Config}
    exec(function(body), scope)
    assert PythonFile(function(body), "a.py").trees()["made"] == plain(scope["made"]())


def test_nothing_of_a_file_is_run(tmp_path):
    path = tmp_path / "there"
    text = f"import pathlib\npathlib.Path({str(path)!r}).touch()\nX = __import__('os').getcwd()"
    PythonFile(text, "a.py").trees()
    assert not path.exists()


def test_variables_in_capitals_are_a_tree_without_what_is_imported():
    text = "from a import B as P, Q\nTYPE = a.bfloat16\nSIZES = {'x': 2}\nlower = 3"
    assert PythonFile(text, "a.py").trees() == {"": {"TYPE": "a.bfloat16", "SIZES": {"x": 2}}}


def test_what_is_not_known_names_its_line_and_expression():
    body = "x = measure(3)\nreturn Config(training=Config(a=x + 1, b=2))"
    tree = PythonFile(function(body), "a.py").trees()["made"]
    assert unknown_in(tree["training"]["a"]) == "x + 1 (line 3)"
    assert tree["training"]["b"] == 2


@pytest.mark.parametrize(
    "statement",
    ["if measure():\n    c.a = 2", "for x in c.layers:\n    c.a = x", "shape(c)", "c.scale(2)",
     "while c.a:\n    c.a = 0"],
)  # fmt: skip
def test_statements_that_may_change_it_and_are_not_followed_are_told(statement):
    module = PythonFile(function(f"c = Config(a=1)\n{statement}\nprint(c)\nreturn c"), "a.py")
    assert [(fault.path[:5], "is not followed" in fault.message)
            for fault in module.unread("made")] == [("line ", True)]  # fmt: skip


def test_variables_of_the_environment_have_their_default_or_what_is_set():
    text = function("import os\nreturn Config(a=int(os.environ.get('TP', '8')))")
    assert PythonFile(text, "a.py").trees()["made"]["a"] == 8
    assert PythonFile(text, "a.py", {"TP": "2"}).trees()["made"]["a"] == 2


@pytest.mark.parametrize("text", ["def f(:", "x = " + "(" * 300 + ")" * 300, "while True: pass"])
def test_files_that_are_no_configuration_are_refused(tmp_path, text):
    path = tmp_path / "a.py"
    path.write_text(text)
    with pytest.raises(SpecError, match=r"a\.py"):
        read_job([path])


def test_loops_without_end_are_not_followed():
    text = (
        "def f(n=0):\n    for x in range(9000):\n        for y in range(9000):\n            pass\n"
    )
    with pytest.raises(SpecError, match="line 4: takes too many steps"):
        PythonFile(text, "a.py").trees()
