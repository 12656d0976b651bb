"""Answers that tests share: the fixture ``kept_answers`` answers each question once in a process.

It is for modules of tests of what is made of an answer: screens, files, pages. A test of a search,
or one that changes what a search calls, asks anew.
"""

from dataclasses import is_dataclass, replace
from pathlib import Path

import pytest

from meshwright import api

VERBS = [one for one in vars(api).values() if isinstance(one, api.Verb)]
KEPT = {}


def says_all(asked):
    """Return whether the words of a question say all: no file is written or read."""
    for name, stated in asked.stated.items():
        values = stated if isinstance(stated, list | tuple) else [stated]
        is_plain = all(
            isinstance(one, int | float) or (isinstance(one, str) and not Path(one).exists())
            for one in values
        )
        if asked.options[name].writes is not None or not is_plain:
            return False
    return True


def kept(verb):
    """Return what answers the questions of a verb, each once."""
    search = verb.answer

    def answer(asked, call):
        if not says_all(asked):
            return search(asked, call)
        key = f"{verb.name} {asked!r}"
        if key not in KEPT:
            KEPT[key] = search(asked, call)
        found = KEPT[key]
        has_command = is_dataclass(found) and hasattr(found, "command")
        return replace(found, command=call.command) if has_command else found

    return answer


@pytest.fixture
def kept_answers():
    """Answer a question that was asked before as it was answered then."""
    with pytest.MonkeyPatch.context() as patch:
        for verb in VERBS:
            patch.setattr(verb, "answer", kept(verb))
        yield
