"""Sources with one fault each, and whether the tests of their room find it.

    python benchmarks/mutants.py                 150 mutants over all rooms
    python benchmarks/mutants.py serve sram/     those of some rooms or files
    python benchmarks/mutants.py --list          which they are, without a test

A mutant is a source with one changed node: a sign, a factor of two, an index, an axis, an argument,
an end of an interval, a term, a comparison, an extreme. The seed chooses them, by their function
rather than by their line, so that an edit elsewhere chooses the same ones. Each runs the default
tests that import its module, then those of its room, in a process of its own with a bound of CPU
time, until one fails. The laws of ``meshwright.audit`` are tried by ``audit_mutants.py``.
"""

from __future__ import annotations

import argparse
import ast
import copy
import hashlib
import os
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib.machinery import SourceFileLoader
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src"
TESTS = (ROOT / "tests", ROOT / "papers" / "tests")
BY_HAND = ("browser", "frameworks")
"""Folders of ``tests`` with environments of their own."""
LEAST = 3
"""Mutants of each room, where it has as many."""
COUNTERPARTS = {
    "max": "min", "maximum": "minimum", "larger": "smaller", "argmax": "argmin",
    "amax": "amin", "fmax": "fmin", "ceil": "floor", "any": "all",
}  # fmt: skip
COUNTERPARTS |= {wrong: right for right, wrong in COUNTERPARTS.items()}
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
}  # fmt: skip
NEVER_SWAPPED = ("isinstance", "issubclass", "getattr", "hasattr", "setattr", "replace")
"""Calls that end in an error with any other order of arguments."""
DRAWN = ("picture", "svg", "drawing", "chart")
"""Parts of the names of modules that place things on a page: a pixel is no formula."""
ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Pow)


class Mutant(NamedTuple):
    """One fault in one source."""

    path: Path
    function: str
    line: int
    kind: str
    place: int
    """Place of the changed node among the nodes of its function that may change in this way."""
    before: str
    after: str

    @property
    def room(self) -> str:
        """First folder, or module, below ``meshwright``."""
        return self.path.relative_to(SOURCES / "meshwright").parts[0].removesuffix(".py")

    @property
    def order(self) -> bytes:
        """Chance by which a mutant is chosen: the same wherever its function stands."""
        name = str(self.path.relative_to(SOURCES))
        text = "\0".join((name, self.function, self.kind, str(self.place), self.before))
        return hashlib.sha256(text.encode()).digest()

    def __str__(self) -> str:
        name = self.path.relative_to(SOURCES / "meshwright")
        return f"{name}:{self.line} {self.kind}: {self.before} -> {self.after}"


def is_words(node: ast.AST) -> bool:
    """Return whether an expression is visibly a text or a list, not a number."""
    words = (ast.JoinedStr, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.ListComp)
    return isinstance(node, words) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )


def doubled(node: ast.expr) -> ast.expr:
    return ast.BinOp(ast.Constant(2), ast.Mult(), node)


def changes(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the kind and the replacement of each fault that a node may have."""
    match node:
        case ast.BinOp(left, op, right) if isinstance(op, ARITHMETIC):
            if is_words(left) or is_words(right):
                return
            if isinstance(op, ast.Add):
                yield "sign", ast.BinOp(left, ast.Sub(), right)
                yield "dropped term", left
            elif isinstance(op, ast.Sub):
                yield "sign", ast.BinOp(left, ast.Add(), right)
                yield "swapped sides", ast.BinOp(right, ast.Sub(), left)
            elif isinstance(op, ast.Mult):
                yield "factor", ast.BinOp(left, ast.Div(), right)
                yield "factor 2", doubled(node)
            elif isinstance(op, ast.Div):
                yield "factor", ast.BinOp(left, ast.Mult(), right)
                yield "factor 2", doubled(node)
        case ast.UnaryOp(ast.USub(), operand):
            yield "sign", operand
        case ast.Constant(value) if type(value) is int and value < 100:
            yield "off by one", ast.Constant(value + 1)
        case ast.Compare(left, [op], [right]) if type(op) in COMPARISONS:
            yield "comparison", ast.Compare(left, [COMPARISONS[type(op)]()], [right])
        case ast.Call(ast.Name(name) as function, arguments) if name in COUNTERPARTS:
            other = ast.Name(COUNTERPARTS[name], function.ctx)
            if name not in ("larger", "smaller"):  # names of our own are not always imported
                yield "extreme", ast.Call(other, arguments, node.keywords)
        case ast.Call(ast.Attribute(value, name) as function, arguments) if name in COUNTERPARTS:
            other_one = ast.Attribute(value, COUNTERPARTS[name], function.ctx)
            yield "extreme", ast.Call(other_one, arguments, node.keywords)
        case ast.Call(function, [first, second, *rest]) if not (
            is_words(first) or is_words(second)
        ):
            is_safe = isinstance(function, ast.Name) and function.id in NEVER_SWAPPED
            if isinstance(first, ast.Name | ast.Attribute) and not is_safe:
                swapped = [second, first, *rest]
                yield "swapped arguments", ast.Call(function, swapped, node.keywords)
        case ast.keyword("axis", ast.Constant(int(value)) as constant):
            yield "axis", ast.copy_location(ast.Constant(1 if value in (0, -1) else 0), constant)
        case ast.Tuple([first, second], ast.Load()) if not (is_words(first) or is_words(second)):
            yield "swapped ends", ast.Tuple([second, first], ast.Load())


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield the functions and methods of a module with their names."""

    def below(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef):
                yield f"{prefix}{child.name}", child
            elif isinstance(child, ast.ClassDef):
                yield from below(child, f"{prefix}{child.name}.")

    return below(tree, "")


def fields(function: ast.FunctionDef) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    """Yield each expression of the body of a function with its parent, field and place in it.

    Annotations, messages of errors and texts are left out.
    """

    def below(parent: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
        for name, value in ast.iter_fields(parent):
            if name in ("annotation", "returns", "decorator_list", "args", "type_params") and (
                isinstance(parent, ast.FunctionDef | ast.AnnAssign | ast.arg)
            ):
                continue
            entries = enumerate(value) if isinstance(value, list) else [(None, value)]
            for place, child in entries:
                if not isinstance(child, ast.AST):
                    continue
                if isinstance(child, ast.Raise | ast.JoinedStr | ast.Assert):
                    continue
                yield parent, name, place, child
                yield from below(child)

    return below(function)


def mutants_of(path: Path, tree: ast.Module) -> Iterator[tuple[Mutant, Callable[[], None]]]:
    """Yield the mutants of a source, each with what changes the tree into it."""
    for name, function in functions(tree):
        places: Counter[str] = Counter()
        for parent, field, place, node in fields(function):
            for kind, wrong in changes(node):
                before, after = (
                    " ".join(ast.unparse(ast.fix_missing_locations(copy.deepcopy(entry))).split())
                    for entry in ((node.value if isinstance(node, ast.keyword) else node), wrong)
                )
                if before == after:
                    continue
                line = getattr(node, "lineno", function.lineno)
                found = Mutant(path, name, line, kind, places[kind], before, after)
                places[kind] += 1

                def change(
                    parent: ast.AST = parent, field: str = field, place: int | None = place,
                    node: ast.AST = node, wrong: ast.expr = wrong,
                ) -> None:  # fmt: skip
                    if isinstance(node, ast.keyword):
                        node.value = wrong
                    elif place is None:
                        setattr(parent, field, ast.copy_location(wrong, node))
                    else:
                        getattr(parent, field)[place] = ast.copy_location(wrong, node)

                yield found, change


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def code_of(mutant: Mutant) -> Any:
    """Return the compiled source with the fault."""
    tree = parsed(mutant.path)
    change = next(change for found, change in mutants_of(mutant.path, tree) if found == mutant)
    change()
    return compile(ast.fix_missing_locations(tree), str(mutant.path), "exec", dont_inherit=True)


def chosen(number: int, seed: int, names: Iterable[str]) -> list[Mutant]:
    """Return mutants of all rooms, by the number of those that each room has."""
    rooms: dict[str, list[Mutant]] = {}
    for path in sorted((SOURCES / "meshwright").rglob("*.py")):
        if any(part in path.stem for part in DRAWN):
            continue
        for found, _ in mutants_of(path, parsed(path)):
            rooms.setdefault(found.room, []).append(found)
    salt = seed.to_bytes(8, "big")

    def order(mutant: Mutant) -> bytes:
        return hashlib.sha256(salt + mutant.order).digest()

    total = sum(map(len, rooms.values()))
    shares = {room: max(LEAST, round(number * len(all_) / total)) for room, all_ in rooms.items()}
    while sum(shares.values()) > max(number, LEAST * len(rooms)):
        shares[max(shares, key=lambda room: shares[room])] -= 1
    turns = [sorted(rooms[room], key=order)[: shares[room]] for room in sorted(rooms)]
    picked = [one for turn in zip_longest(*turns) for one in turn if one is not None]
    wanted = tuple(names)
    return [
        one for one in picked
        if not wanted
        or any(name.rstrip("/") in str(one.path.relative_to(SOURCES)) for name in wanted)
    ]  # fmt: skip


@cache
def imported(path: Path) -> frozenset[str]:
    """Return the modules of ours and of the tests that a file names in its imports."""
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return frozenset(found)


@cache
def reached(path: Path) -> frozenset[str]:
    """Return the modules that a test imports, itself or through the helpers of the tests."""
    found = set(imported(path))
    for name in imported(path):
        for folder in TESTS:
            helper = folder / f"{name.replace('.', '/')}.py"
            if helper.is_file() and helper != path:
                found |= reached(helper)
    return frozenset(found)


def tests_of(mutant: Mutant) -> list[Path]:
    """Return the test files of a source: those that import it, then those of its room."""
    names = ".".join(mutant.path.relative_to(SOURCES).with_suffix("").parts)
    module, room = names.removesuffix(".__init__"), mutant.room
    ranked: list[tuple[int, int, Path]] = []
    for folder in TESTS:
        for path in sorted(folder.rglob("test_*.py")):
            where = path.relative_to(folder).parts
            if where[0] in BY_HAND:
                continue
            known = reached(path)
            of_room = where[:2] == ("unit", room) or room in path.stem
            rank = next(
                (rank for rank, holds in enumerate((
                    module in imported(path), module in known, of_room,
                    any(name.startswith(f"meshwright.{room}") for name in known),
                )) if holds), None,
            )  # fmt: skip
            if rank is not None:
                ranked.append((rank, len(known), path))
    return [path for _, _, path in sorted(ranked)]


def run(mutant: Mutant, tests: list[Path], bound_s: int, log: Path) -> int:
    """Run tests on a mutant in this process; return the exit code of pytest."""
    resource.setrlimit(resource.RLIMIT_CPU, (bound_s, bound_s + 5))
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(output, stream)
    code, plain = code_of(mutant), SourceFileLoader.get_code

    def get_code(loader: SourceFileLoader, name: str) -> Any:
        is_mutant = Path(loader.path).resolve() == mutant.path
        return code if is_mutant else plain(loader, name)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign]
    import pytest

    # numba knows a source by its file: what it compiles of a mutant serves this mutant alone
    is_compiled = "base.compiled" in mutant.path.read_text(encoding="utf-8")
    kept = tempfile.mkdtemp(dir=log.parent) if is_compiled else log.parent / "numba"
    os.environ["NUMBA_CACHE_DIR"] = str(kept)
    words = ["-x", "-q", "--no-header", "-p", "no:cacheprovider"]
    return int(pytest.main([*words, *map(str, tests)], plugins=[Forgetful()]))


class Forgetful:
    """Examples that a mutant fails are not tried on the next one."""

    def pytest_configure(self) -> None:
        from hypothesis import settings

        settings.register_profile("mutants", database=None, deadline=None)
        settings.load_profile("mutants")


def outcome(mutant: Mutant, bound_s: int, folder: Path) -> tuple[str, float, str]:
    """Return whether a mutant is caught, the CPU seconds of its tests, and what caught it."""
    tests, log = tests_of(mutant), folder / "log"
    if not tests:
        return "survived", 0.0, "no test"
    child = os.fork()
    if not child:
        status = 70
        try:
            status = run(mutant, tests, bound_s, log)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    _, status, used = os.wait4(child, 0)
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    lines = [line for line in text.splitlines() if line.startswith(("FAILED", "ERROR"))]
    found = "survived"
    if lines:
        found = "caught"
    elif os.WIFSIGNALED(status):
        found = "out of time"
    elif os.WEXITSTATUS(status) in (1, 2, 4):
        found = "caught"
    elif os.WEXITSTATUS(status) != 0:
        found = f"exit {os.WEXITSTATUS(status)}"
    return found, used.ru_utime + used.ru_stime, lines[0] if lines else ""


def warm_up() -> None:
    """Import what all tests need and no mutant touches, once for all processes."""
    import numpy  # noqa: F401
    import pydantic  # noqa: F401
    import pytest  # noqa: F401
    import rich.console  # noqa: F401
    import scipy.optimize  # noqa: F401
    import yaml  # noqa: F401


def report(outcomes: Mapping[Mutant, str]) -> None:
    """Print caught and survived mutants of each room, and of all."""
    rooms: dict[str, Counter[str]] = {}
    for mutant, found in outcomes.items():
        rooms.setdefault(mutant.room, Counter())[found] += 1
    for room, counts in sorted(rooms.items()):
        print(f"{room:14} {counts['caught']:3} of {counts.total():3} caught")
    number = sum(found == "caught" for found in outcomes.values())
    print(f"{number} of {len(outcomes)} caught ({number / max(len(outcomes), 1):.0%})")


def main() -> None:
    """Try each mutant, and print which of them no test finds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="rooms or parts of paths")
    parser.add_argument("--number", type=int, default=150, help="mutants of all rooms together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bound", type=int, default=120, help="CPU seconds of each mutant")
    parser.add_argument("--list", action="store_true", help="print the mutants alone")
    asked = parser.parse_args()
    mutants = chosen(asked.number, asked.seed, asked.names)
    if asked.list:
        print(*mutants, sep="\n")
        return
    os.chdir(ROOT)
    warm_up()
    outcomes: dict[Mutant, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for mutant in mutants:
            started = time.perf_counter()
            found, cpu_s, by = outcome(mutant, asked.bound, Path(folder))
            outcomes[mutant] = found
            seconds = f"{cpu_s:.0f} CPU s, {time.perf_counter() - started:.0f} s"
            print(f"{found:11} {mutant} [{seconds}] {by}".rstrip(), flush=True)
    report(outcomes)
    sys.exit(0 if all(found == "caught" for found in outcomes.values()) else 1)


if __name__ == "__main__":
    main()
