"""Spellings of earlier versions, and those of this one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from meshwright.ask.questions import COMMANDS
from meshwright.ask.record import WITH

NEW_NAMES = {"--server": "--framework", "--ttft": "--max-ttft", "--tpot": "--max-tpot"}
"""Options that another option of the same command replaces."""


class Respelled(NamedTuple):
    """A command as it is spelled now."""

    words: list[str]
    moved: list[str]
    """The words that moved."""
    why: str


def respelled(words: Sequence[str]) -> Respelled | None:
    """Return a command of an earlier version as it is spelled now; None: it is spelled so."""
    verb, options = next((word for word in words if word in COMMANDS), ""), set(words)
    if not verb:
        return None
    asks = ""
    if verb == "plan" and {"--decode", "--prefill", "--context", "--prompt"} & options:
        asks, why = "serve", "serve answers questions of serving"
    elif verb == "plan" and any(word.split("=")[0] == "--graph" for word in words):
        asks, why = "map", "map lays graphs over devices"
    elif verb == "estimate" and {"--decode", "--prefill"} & options:
        asks, why = "estimate", "--context, --prompt and --answer state the requests"
    found, moved = list[str](), [verb, *sorted({"--decode", "--prefill"} & options)]
    if asks == "map":
        moved.append("--graph")
    listed = COMMANDS[asks or verb].rare().items()
    rare, renamed = {f"--{word.replace('_', '-')}": one for word, one in listed}, list[str]()
    for flag, value in options_in(words, verb):
        if flag in ("--decode", "--prefill") and asks:
            continue
        if flag == verb:
            found.append(asks or verb)
        elif flag == "--graph" and asks == "map":
            found.insert(found.index(asks) + 1, value or "")
        elif flag == "--global-batch" and asks == "map":
            found += ["--passes", *_given(value)]
        elif flag in NEW_NAMES and verb in ("plan", "serve", "estimate"):
            renamed.append(flag)
            found += [NEW_NAMES[flag], *_given(value)]
        elif flag in rare:
            renamed.append(flag)
            found += [f"--{WITH}", rare[flag].word + ("" if value is None else f"={value}")]
        else:
            found += [flag, *_given(value)]
    if asks:
        return Respelled(found, moved, why)
    return Respelled(found, renamed, "has a new spelling") if renamed else None


def options_in(words: Sequence[str], verb: str) -> Iterator[tuple[str, str | None]]:
    """Yield each option with the value that follows it, and each other word alone."""
    left, options = list(words), COMMANDS[verb].options.values() if verb in COMMANDS else ()
    alone = {f"--{one.word.replace('_', '-')}" for one in options if one.is_flag}
    alone |= {"--decode", "--prefill", "--json", "--detail"}
    while left:
        word = left.pop(0)
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            if equals:
                yield flag, value
                continue
            takes = flag not in alone and bool(left) and not left[0].startswith("--")
            yield flag, left.pop(0) if takes else None
        else:
            yield word, None


def _given(value: str | None) -> list[str]:
    return [] if value is None else [value]
