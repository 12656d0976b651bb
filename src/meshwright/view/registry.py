"""Views by the class of their answer.

``@view(Plan)`` above a function registers the page of that answer: in the ``view.py`` beside the
answer, or in the folder ``view`` in the module of its name; :func:`page_of` finds it, drops empty
sections, and adds the warnings, the command and the version of the answer. An answer knows no view,
and no medium knows an answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any, TypeVar

from meshwright.base.errors import UnsupportedError
from meshwright.view.parts import Later, Page

MakePage = TypeVar("MakePage", bound=Callable[..., Page])
VIEWS: dict[type, Callable[..., Page]] = {}


def view(*kinds: type) -> Callable[[MakePage], MakePage]:
    """Register a function as the page of answers of a class."""

    def register(make: MakePage) -> MakePage:
        VIEWS.update(dict.fromkeys(kinds, make))
        return make

    return register


def page_of(answer: object, **beside: Any) -> Page:
    """Return the page of an answer.

    Parameters
    ----------
    beside
        Parts that other rooms add, such as launch files.

    Raises
    ------
    UnsupportedError
        The answer has no view.
    """
    for kind in type(answer).__mro__[:-1]:
        room, _, stem = kind.__module__.rpartition(".")
        for module in (f"{room}.view", f"{room}.view.{stem}"):
            if kind not in VIEWS and room.startswith("meshwright"):
                try:
                    import_module(module)
                except ModuleNotFoundError as error:
                    if error.name not in (module, f"{room}.view"):
                        raise
        if kind in VIEWS:
            return _completed(VIEWS[kind](answer, **beside), answer)
    raise UnsupportedError(f"{type(answer).__name__} has no view")


def _completed(page: Page, answer: object) -> Page:
    """Return a page without empty sections, with the warnings and the origin of its answer."""
    told = {
        name: getattr(page, name) or getattr(answer, name, getattr(page, name))
        for name in ("warnings", "command", "version")
    }
    if not isinstance(page.sections, Later):
        told["sections"] = [section for section in page.sections if section.parts]
    return replace(page, **told)
