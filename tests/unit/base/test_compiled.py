"""Kernels: compiled or as written, in any order, the same results."""

import subprocess
import sys

import numpy as np
import pytest

from meshwright.base.compiled import (
    CompiledFunction,
    as_written,
    compiled,
    compiled_inline,
    has_numba,
)
from meshwright.network import paths, routing


@compiled_inline
def square(number):
    return number * number


@compiled
def sum_of_squares(numbers):
    total = 0.0
    for number in numbers:
        total += square(number)
    return total


@compiled
def norm(numbers, scale=2.0):
    return scale * np.sqrt(sum_of_squares(numbers))


NUMBERS = np.array([3.0, 4.0])


def test_a_kernel_gives_what_the_function_gives():
    assert norm(NUMBERS) == norm.plain(NUMBERS) == 10.0
    assert norm(NUMBERS, 1.0) == 5.0


def test_kernels_run_as_written_after_they_were_compiled_for_another_one():
    """A compiled kernel has compiled callees; one as written calls those as written: no crash."""
    first = CompiledFunction(norm.plain)
    assert first(NUMBERS) == 10.0
    second = CompiledFunction(norm.plain)
    with as_written():
        assert second(NUMBERS) == 10.0
        assert sum_of_squares.plain(NUMBERS) == 25.0
    assert second(NUMBERS) == 10.0


@pytest.mark.parametrize("module", [paths, routing])
def test_compiling_leaves_the_names_of_a_module_alone(module):
    kernels = {
        name: value for name, value in vars(module).items() if isinstance(value, CompiledFunction)
    }
    for kernel in kernels.values():
        kernel.compile()
    assert kernels == {name: getattr(sys.modules[module.__name__], name) for name in kernels}


@pytest.mark.skipif(not has_numba(), reason="needs the extra 'fast'")
def test_a_callee_is_compiled_once_for_all_who_call_it():
    assert sum_of_squares.inner is sum_of_squares.inner
    assert norm.compile() is not sum_of_squares.inner


CALLEE = """
from meshwright.base.compiled import compiled

@compiled
def weigh(number):
    return {factor} * number
"""
CALLER = """
import numpy as np
from typing import NamedTuple
from meshwright.base.compiled import compiled
from numpy.typing import NDArray
from callee import weigh

class {kind}(NamedTuple):
    numbers: NDArray[np.float64]

@compiled
def total(load: {kind}) -> float:
    found = 0.0
    for number in load.numbers:
        found += weigh(number)
    return found

print(total({kind}(np.array([3.0, 4.0]))))
"""


@pytest.mark.skipif(not has_numba(), reason="needs the extra 'fast'")
def test_files_of_an_earlier_version_are_not_read(tmp_path):
    """Files of machine code outlive an upgrade: with a renamed type, or a callee of another file.

    numba itself reads a file first and looks whether its source has changed afterwards; it does not
    look at the sources of callees.
    """

    def run(*, factor, kind):
        for name, text in (("callee.py", CALLEE), ("caller.py", CALLER)):
            (tmp_path / name).write_text(text.format(factor=factor, kind=kind))
        done = subprocess.run(
            [sys.executable, "-B", "-c", "import caller"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return float(done.stdout)

    assert run(factor=2, kind="Work") == 14.0
    files = set(tmp_path.rglob("*.nbi"))
    assert files
    assert run(factor=2, kind="Work") == 14.0
    assert set(tmp_path.rglob("*.nbi")) == files  # read, not compiled anew
    assert run(factor=3, kind="Work") == 21.0
    assert run(factor=3, kind="Load") == 21.0
