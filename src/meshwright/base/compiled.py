"""Loops that numba compiles where it is installed, and plain Python runs where it is not.

A kernel is a function of NumPy arrays and numbers, written in the part of Python that numba
knows; both give the same results. numba is imported when a kernel is first called, never
before, because that takes longer than most commands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, cached_property, update_wrapper
from hashlib import blake2b
from importlib.util import find_spec
from time import perf_counter
from types import FunctionType
from typing import Any, Generic, ParamSpec, TypeVar, cast, get_type_hints

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
_runs_as_written = ContextVar("_runs_as_written", default=False)
MOST_PLAIN_S = 2.0
"""Seconds after which small work, too, is compiled: to load it takes about one [s]."""


@dataclass(eq=False)
class CompiledFunction(Generic[Arguments, Result]):
    """A function that is compiled at its first call, kept on disk for the next process."""

    plain: Callable[Arguments, Result]
    """The function as written: for small work, and to compare with."""
    allocates: bool = True
    """Whether it makes arrays. One that makes none needs no count of references, which costs more
    than the work of a small function that is handed many arrays."""
    is_inlined: bool = False
    """Whether it becomes a part of each kernel that calls it."""
    _fast: Callable[Arguments, Result] | None = None
    _plain_s: float = 0.0
    """Seconds for which it has run as written."""

    def __post_init__(self) -> None:
        update_wrapper(self, self.plain)

    def __call__(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        """Run the compiled function."""
        if self._fast is None:
            if _runs_as_written.get() and self._plain_s < MOST_PLAIN_S:
                begun_s = perf_counter()
                found = self.plain(*args, **kwargs)
                self._plain_s += perf_counter() - begun_s
                return found
            self._fast = self.compile()
        return self._fast(*args, **kwargs)

    def compile(self, *, from_python: bool = True) -> Callable[Arguments, Result]:
        """Return the compiled function; the kernels that it calls are compiled with it.

        Those are not called from Python, and without that they compile in half of the time.
        """
        if not has_numba():
            return self.plain
        import numba

        options: dict[str, Any] = {"cache": True, "_nrt": self.allocates}
        options |= {"no_cpython_wrapper": not from_python, "no_cfunc_wrapper": not from_python}
        options["forceinline"] = self.is_inlined and not from_python
        # Names of its own, in which kernels are compiled ones. The names of its module stay as they
        # are: who calls it as written calls kernels as written.
        plain = cast(FunctionType, self.plain)
        names = dict(plain.__globals__)
        for name in plain.__code__.co_names:
            if isinstance(names.get(name), CompiledFunction):
                names[name] = names[name].inner
        function = FunctionType(plain.__code__, names, plain.__name__, plain.__defaults__)
        update_wrapper(function, plain)
        # numba names the file after the function. It would read a file of other callees, and stop
        # at one with a type that was renamed.
        function.__qualname__ += f"_{self.digest}" + ("" if from_python else "_inner")
        fast: Callable[Arguments, Result] = numba.njit(**options)(function)
        return fast

    @cached_property
    def digest(self) -> str:
        """Eight digits that change with all that the machine code of the function depends on.

        That is its own code, the types of its arguments, the kernels that it calls and the numbers
        that it names.
        """
        plain = cast(FunctionType, self.plain)
        code = plain.__code__
        holds: list[Any] = [self.allocates, self.is_inlined]
        holds += [code.co_code, code.co_consts, code.co_names]
        for name in code.co_names:
            value = plain.__globals__.get(name)
            if isinstance(value, CompiledFunction):
                holds.append(value.digest)
            elif isinstance(value, int | float):
                holds.append(value)
        for argument in get_type_hints(plain).values():
            holds += [argument, get_type_hints(argument) if hasattr(argument, "_fields") else None]
        return blake2b(repr(holds).encode(), digest_size=4).hexdigest()

    @cached_property
    def inner(self) -> Callable[..., Any]:
        """The compiled function for other kernels: to call it from Python would crash."""
        return self.compile(from_python=False)


def compiled(function: Callable[Arguments, Result]) -> CompiledFunction[Arguments, Result]:
    """Return a function of arrays as a kernel."""
    return CompiledFunction(function)


def compiled_in_place(function: Callable[Arguments, Result]) -> CompiledFunction[Arguments, Result]:
    """Return a function as a kernel that allocates no array and writes into its arguments."""
    return CompiledFunction(function, allocates=False)


def compiled_inline(function: Callable[Arguments, Result]) -> CompiledFunction[Arguments, Result]:
    """Return a function as a kernel that allocates no array and is inlined into its callers."""
    return CompiledFunction(function, allocates=False, is_inlined=True)


@contextmanager
def as_written() -> Iterator[None]:
    """Run kernels that are not compiled yet as plain Python: for work that is done sooner so."""
    before = _runs_as_written.set(True)
    try:
        yield
    finally:
        _runs_as_written.reset(before)


@cache
def has_numba() -> bool:
    """Tell whether the extra ``fast`` is installed."""
    return find_spec("numba") is not None
