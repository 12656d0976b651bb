"""A page for each function of the package, and pages of what their answers hold.

Which types an answer holds is read from the annotations: all that a field, a property or a method
of an answer names, and what that holds in turn.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import types
import typing
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref

import meshwright
from generators.markdown import escaped, page, table
from meshwright import api

FOLDER = "api"
PACKAGE = "meshwright"
WORD = re.compile(r"[A-Za-z_]\w*")
BARS = re.compile(r"(?<!`)\|(ln\([^|]*\))\|")
PLAIN = {"MeshwrightError", "__version__"}
"""Public names that are no functions."""


def setup(app: Any) -> None:
    """Add the handlers."""
    app.connect("autodoc-process-docstring", with_bars)
    app.connect("autodoc-process-signature", without_fields)
    app.connect("doctree-read", name_classes)
    app.connect("missing-reference", without_page)


def pages() -> dict[str, str]:
    """Return the pages by path."""
    functions = [name for name in meshwright.__all__ if name not in PLAIN]
    found = {f"{FOLDER}/{name}.md": function_page(name) for name in functions}
    rooms: dict[str, list[type]] = {}
    for kind in answer_types():
        rooms.setdefault(kind.__module__.split(".")[1], []).append(kind)
    for room, kinds in rooms.items():
        found[f"{FOLDER}/answers/{room}.md"] = types_page(room, kinds)
    found[f"{FOLDER}/answers/index.md"] = answers_index(rooms)
    found[f"{FOLDER}/index.md"] = index(functions)
    return found


def index(functions: list[str]) -> str:
    """Return the page that lists the functions."""
    rows = [(f"[`{name}`]({name}.md)", escaped(first_line(name))) for name in functions]
    return page(
        "Python",
        "Each command is a function of the same name with the same options as keyword arguments. "
        "A model, a system or a workload may be a name, a path or a declaration; an option that is "
        "unknown or wrong raises a `MeshwrightError` that names the nearest one.",
        "```python\nimport meshwright as mw\n\n"
        'plan = mw.plan("llama3-8b", on="8xH100", seq="8k", global_batch=64)\n'
        "print(plan.best.text, plan.best.estimate.step_time_s)\n```",
        table(("function", "does"), rows),
        "[Answers](answers/index.md) are plain data.",
        "## Errors",
        directive("autoexception", f"{PACKAGE}.MeshwrightError"),
    )


def answers_index(rooms: dict[str, list[type]]) -> str:
    """Return the page that lists the types of answers."""
    rows = [
        (f"[`{PACKAGE}.{room}`]({room}.md)", ", ".join(f"`{kind.__name__}`" for kind in kinds))
        for room, kinds in rooms.items()
    ]
    return page(
        "Answers",
        "Frozen dataclasses and declarations, by the room of the package that makes them: all that "
        "an answer holds, and what that holds in turn. Numbers are in SI units, the unit at the "
        "end of the name.",
        table(("room", "types"), rows),
    )


def first_line(name: str) -> str:
    """Return the first line of the docstring of a function."""
    return (inspect.getdoc(getattr(api, name)) or "").partition("\n")[0]


def function_page(name: str) -> str:
    """Return the page of one function."""
    function = getattr(api, name)
    shown = f"{PACKAGE}.{name}"
    if isinstance(function, api.Verb):
        shown += brief_signature(function)
    return page(name, directive("autofunction", shown))


def brief_signature(function: Any) -> str:
    """Return a signature that names what must be given; the rest is listed below it."""
    parameters = inspect.signature(function).parameters.values()
    positional = [
        p.name if p.default is p.empty else f"{p.name}={p.default!r}"
        for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD
    ]  # fmt: skip
    returned = inspect.signature(function.answer).return_annotation
    return f"({', '.join([*positional, '**options'])}) -> {returned}"


def types_page(room: str, kinds: list[type]) -> str:
    """Return the page of the types of one room."""
    module = import_module(f"{PACKAGE}.{room}")
    parts = [escaped((inspect.getdoc(module) or "").partition("\n")[0])]
    for kind in kinds:
        parts += [
            f"## {kind.__name__}",
            directive("autoclass", f"{full_name(kind)}()", "members", "undoc-members",
                      exclude_members="model_config"),
        ]  # fmt: skip
    return page(f"{PACKAGE}.{room}", *parts)


def directive(name: str, argument: str, *flags: str, **options: str) -> str:
    """Return a directive of Sphinx, which reads docstrings as reStructuredText."""
    lines = [f".. {name}:: {argument}", *(f"   :{flag}:" for flag in flags)]
    lines += [f"   :{key.replace('_', '-')}: {value}" for key, value in options.items()]
    return "\n".join(("```{eval-rst}", *lines, "```"))


# ----------------------------------------------------------------------- which types answers hold


@cache
def answer_types() -> tuple[type, ...]:
    """Return the types of all answers and of what they hold, in the order of their modules."""
    found: dict[type, None] = {}
    waiting = [
        (name, api)
        for verb in vars(api).values()
        for annotation in returned_by(verb)
        for name in WORD.findall(annotation)
    ]
    while waiting:
        for kind in named_classes(*waiting.pop()):
            if kind in found:
                continue
            found[kind] = None
            for base in own_bases(kind):
                module = import_module(base.__module__)
                waiting += [
                    (name, module) for text in annotations(base) for name in WORD.findall(text)
                ]
    return tuple(sorted(found, key=lambda kind: (kind.__module__, inspect.getsourcelines(kind)[1])))


@cache
def classes_by_name() -> dict[str, type]:
    """Return these types by their names alone; of two of one name the first."""
    return {kind.__name__: kind for kind in reversed(answer_types())}


def full_name(kind: type) -> str:
    """Return the name of a class with its module."""
    return f"{kind.__module__}.{kind.__qualname__}"


def own_bases(kind: type) -> list[type]:
    """Return a class and its bases in the package."""
    return [base for base in kind.__mro__ if base.__module__.startswith(f"{PACKAGE}.")]


def returned_by(function: object) -> Iterator[str]:
    """Yield what a public function returns, as it is written."""
    if isinstance(function, api.Verb):
        yield str(inspect.signature(function.answer).return_annotation)
    elif inspect.isfunction(function) and function.__name__ in meshwright.__all__:
        yield str(function.__annotations__["return"])


def annotations(kind: type) -> Iterator[str]:
    """Yield the annotations of the public fields, properties and methods of a class."""
    for name, text in inspect.get_annotations(kind).items():
        if not name.startswith("_"):
            yield str(text)
    for name, member in list(vars(kind).items()):
        inner = getattr(member, "func", None) or getattr(member, "fget", None) or member
        inner = getattr(inner, "__func__", inner)
        if not name.startswith("_") and inspect.isfunction(inner):
            yield from map(str, inner.__annotations__.values())


def named_classes(name: str, module: ModuleType) -> Iterator[type]:
    """Yield the classes of the package that a module means by a name; an alias may mean several.

    A class that a call makes, not a class statement, is an alias of its fields and has no page.
    """
    place = imported_from(module).get(name)
    waiting = [getattr(import_module(place) if place else module, name, None)]
    while waiting and not name.startswith("_"):
        found = waiting.pop()
        if isinstance(found, types.UnionType) or typing.get_origin(found) is not None:
            waiting += [typing.get_origin(found), *typing.get_args(found)]
        elif (
            inspect.isclass(found)
            and found.__module__.startswith(f"{PACKAGE}.")
            and found.__name__ not in defined_in(found.__module__)
        ):
            yield found


@cache
def imported_from(module: ModuleType) -> dict[str, str]:
    """Return where a module takes names of the package from, also those for annotations alone."""
    return {
        alias.asname or alias.name: node.module
        for node in nodes_of(module.__name__)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE)
        for alias in node.names
        if node.module
    }


@cache
def nodes_of(place: str) -> tuple[ast.AST, ...]:
    """Return all parts of the source of a module, or nothing where it is none of the package."""
    if not place.startswith(PACKAGE) or find_spec(place) is None:
        return ()
    return tuple(ast.walk(ast.parse(inspect.getsource(import_module(place)))))


# ------------------------------------------------------------------------------------ in Sphinx


def without_fields(
    app: Any, what: str, name: str, found: Any, options: Any, signature: str, returned: str
) -> tuple[str, str] | None:
    """Leave out how a class is made: its fields are listed below."""
    return ("", returned) if what == "class" else None


def with_bars(app: Any, what: str, name: str, found: Any, options: Any, lines: list[str]) -> None:
    """Keep the bars of an absolute value, which are marks of a substitution in reStructuredText."""
    lines[:] = [BARS.sub(r"\\|\1\\|", line) for line in lines]


def name_classes(app: Any, tree: nodes.document) -> None:
    """Complete the names in annotations: a class as its module calls it, or a plain name.

    Aliases (``Seconds`` is a float) and names of other packages have no page.
    """
    for reference in list(tree.findall(pending_xref)):
        if reference.get("refdomain") != "py" or reference["reftype"] not in ("class", "obj"):
            continue
        module = sys.modules.get(reference.get("py:module") or "", api)
        name = reference["reftarget"].rpartition(".")[2]
        kind = next(named_classes(name, module), None) or classes_by_name().get(name)
        if kind in answer_types():
            reference["reftarget"] = full_name(kind)
        elif kind is None and is_plain(reference["reftarget"], module):
            reference.replace_self(reference.children)


def is_plain(target: str, module: ModuleType) -> bool:
    """Return whether a name is that of an alias or a function, or comes from another package."""
    place, _, name = target.rpartition(".")
    place = place or imported_from(module).get(name) or module.__name__
    return name in defined_in(place) or name in taken_from_others(module)


@cache
def defined_in(place: str) -> set[str]:
    """Return what a module of the package defines besides classes, aliases among it."""
    found: set[str] = set()
    for node in nodes_of(place):
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


@cache
def taken_from_others(module: ModuleType) -> set[str]:
    """Return the names that a module takes from other packages."""
    return {
        alias.asname or alias.name
        for node in nodes_of(module.__name__)
        if isinstance(node, ast.ImportFrom) and not (node.module or "").startswith(PACKAGE)
        for alias in node.names
    }


def without_page(app: Any, env: Any, node: pending_xref, content: nodes.Node) -> nodes.Node | None:
    """Leave functions that docstrings name, and that have no page, as text."""
    place, _, name = node["reftarget"].rpartition(".")
    place = place or node.get("py:module") or PACKAGE
    if node["reftype"] != "func" or find_spec(place) is None:
        return None
    return content if inspect.isfunction(getattr(import_module(place), name, None)) else None
