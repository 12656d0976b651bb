"""A training framework on the screen: options that it starts, its kernels, its usual settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from meshwright.spec.declaration import Declaration, Source
from meshwright.spec.framework import Framework
from meshwright.spec.workload import Server
from meshwright.view.screen import wrapped

_IN_THE_TITLE = ("name", "title", "version", "why", "sources", "provenance")


def framework_lines(framework: Framework) -> Iterator[str]:
    """Yield the lines of one framework, with its kernels that differ from the default."""
    yield from wrapped("", f"{framework.title} {framework.version}".rstrip() + f": {framework.why}")
    parts = (
        ("what it starts", framework.launches),
        ("what plans for it have on", framework.launches.switches),
        ("its kernels, where they differ from the default", framework.software),
        ("as its users run it", framework),
    )
    for title, declaration in parts:
        if stated := list(_stated(declaration)):
            yield from ("", title, *stated)
    yield ""
    for source in framework.sources.values():
        yield from wrapped("source    ", source.title)


def server_lines(server: Server, sources: Iterable[Source]) -> Iterator[str]:
    """Yield the lines of one server: options that it starts, its usual settings, their sources."""
    name = f"{server.title or server.name} {server.version}".rstrip()
    yield from wrapped("", f"{name}: {server.why}" if server.why else name)
    if server.launches is not None:
        yield from ("", "what it starts", *_stated(server.launches))
    yield from ("", "as its users run it", *_stated(server), "")
    for source in sources:
        yield from wrapped("source    ", source.title)


def _stated(declaration: Declaration) -> Iterator[str]:
    """Yield the plain fields of a declaration that were stated, in the order of their kind."""
    for name in type(declaration).model_fields:
        value = getattr(declaration, name)
        is_plain = (
            isinstance(value, bool | str | int | float | tuple | dict) and name not in _IN_THE_TITLE
        )
        if name in declaration.model_fields_set and is_plain:
            yield from wrapped(f"  {name.replace('_', ' '):34}", _words(value), hang=36)


def _words(value: object) -> str:
    """Return a flag as on or off, a list with commas, lists of lists with semicolons."""
    if isinstance(value, tuple):
        mark = "; " if any(isinstance(entry, tuple) for entry in value) else ", "
        return mark.join(map(_words, value)) or "nothing"
    if isinstance(value, dict):
        return ", ".join(f"{name} (ZeRO {_words(stages)})" for name, stages in value.items())
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)
