"""A framework: its table, and the irregular rules of reading and writing its files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Literal, TypeVar

from meshwright.base.errors import Fault, SpecError, UnsupportedError
from meshwright.base.registry import Registry
from meshwright.frameworks.reading.given import Given, Options
from meshwright.frameworks.reading.job import JobContext
from meshwright.frameworks.reading.launchers import Launch
from meshwright.frameworks.refusals import framework_refusals
from meshwright.frameworks.table import FlagTable, load_table, shows
from meshwright.train.answer import Plan

Files = Mapping[str, str] | Mapping[str, bytes]
"""Content of files by name; large files are made on access."""


class LaunchFiles:
    """One program: files of its users are read, files that start plans are written, or both."""

    kind: Literal["training", "serving"] = "training"
    is_text = True
    """Whether the files that are written can be shown."""
    catalog = ""
    """The framework of the catalog whose limits a plan must keep."""
    takes_operators = False
    """Whether its files hold a strategy for each operator."""
    table_name = ""
    is_general = False
    """Whether it claims commands of other programs too, as launchers do: those come first."""

    @cached_property
    def table(self) -> FlagTable:
        """The options of the program."""
        return load_table(self.table_name)

    def starts(self, launch: Launch, given: Given) -> bool:
        """Return whether a command is this program."""
        words = {f"@word.{place}": word for place, word in enumerate(launch.words)}
        around = {"@program": launch.program.lower(), "@launcher": launch.launcher, **words}
        return shows(self.table.starts, around | {name: given.peek(name) for name in given})

    def holds(self, stated: Mapping[str, object]) -> bool:
        """Return whether a tree with these names and values is a file of this program."""
        return shows(self.table.holds, stated)

    def read(self, given: Given, setting: JobContext) -> tuple[str, Options]:
        """Return the framework, and options of this program; faults are kept in ``given``."""
        raise SpecError(Fault("", f"files of {self.table.title} are written, not read"))

    def refusals(self, plan: Plan) -> Sequence[Fault]:
        """Return everything of a plan that the files cannot express, with the nearest fix."""
        return framework_refusals(plan, self.catalog)

    def render(self, plan: Plan) -> Files:
        """Return the files by name, for a plan that is not refused."""
        raise UnsupportedError(f"files of {self.table.title} are read, not written")


F = TypeVar("F", bound=LaunchFiles)
readers: Registry[LaunchFiles] = Registry("reader")
"""Programs whose files are read."""
exporters: Registry[LaunchFiles] = Registry("export target")
"""Programs for which files are written."""


def framework(table: str, *, reads: str = "", writes: str = "") -> Callable[[type[F]], type[F]]:
    """Return a decorator that adds a framework under the names by which it is read and written."""

    def add(kind: type[F]) -> type[F]:
        one = kind()
        one.table_name = table
        for registry, name in ((readers, reads), (exporters, writes)):
            if name:
                registry.register(name)(one)
        return kind

    return add
