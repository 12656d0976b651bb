"""The fields that a family reads: their type, their bounds, and what holds where one is absent.

A field that is absent takes the documented default of Hugging Face's configuration class, which
the family lists here, or it is a fault; nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from meshwright.base.errors import nearest

REQUIRED: Final = object()
"""Stands for "no default": the configuration must state the field."""

MOST_LAYERS: Final = 10_000
"""No published model has a tenth of it; larger is a slip of the keyboard."""
MOST: Final = 2**31 - 1
"""The largest size of one dim: a 32-bit index."""

Kind = Literal["count", "count_or_zero", "flag", "text", "counts", "texts", "section", "anything"]


@dataclass(frozen=True)
class Key:
    """One field of a configuration, as a family reads it."""

    kind: Kind
    default: Any = REQUIRED
    nullable: bool = False
    """``null`` may be written, and means what the family says of it."""
    same_as: str = ""
    """Absent or ``null``: the value of this other field."""
    also: tuple[str, ...] = ()
    """Other names of the same field in published configurations."""
    allowed: tuple[str, ...] = ()
    most: int = MOST
    section: Mapping[str, Key] = field(default_factory=dict)
    """Fields of a nested section."""

    @property
    def is_required(self) -> bool:
        """Whether the configuration must state the field."""
        return self.default is REQUIRED and not self.same_as

    def complaint(self, value: Any) -> str:
        """Return what is wrong with a stated value, or an empty text."""
        if value is None:
            allowed = self.nullable or self.same_as or self.kind == "anything"
            return "" if allowed else f"null; expected {self.expected}"
        return _CHECKS[self.kind](value, self)

    @property
    def expected(self) -> str:
        """What may stand there, in words."""
        if self.kind in ("count", "count_or_zero"):
            least = 1 if self.kind == "count" else 0
            return f"a whole number from {least} to {self.most}"
        words = {
            "flag": "true or false",
            "text": "a text",
            "counts": "a list of whole numbers",
            "texts": "a list of texts",
            "section": "a nested section",
            "anything": "anything",
        }
        among = f", each of {', '.join(self.allowed)}" if self.allowed else ""
        return words[self.kind] + among


def count(default: Any = REQUIRED, **rest: Any) -> Key:
    """Return a field that holds a whole number of at least one."""
    return Key("count", default, **rest)


def count_or_none(**rest: Any) -> Key:
    """Return a field that may be absent or ``null``, which the family interprets."""
    return Key("count", None, nullable=True, **rest)


def count_or_zero(default: Any = REQUIRED, **rest: Any) -> Key:
    """Return a field that holds a whole number of at least zero."""
    return Key("count_or_zero", default, **rest)


def flag(default: Any = REQUIRED) -> Key:
    """Return a field that holds true or false."""
    return Key("flag", default)


def text(*allowed: str, default: Any = REQUIRED) -> Key:
    """Return a field that holds one of the allowed texts."""
    return Key("text", default, allowed=allowed)


def texts_or_none(*allowed: str) -> Key:
    """Return a field that holds a list of the allowed texts, or nothing."""
    return Key("texts", None, nullable=True, allowed=allowed)


def counts_or_none() -> Key:
    """Return a field that holds a list of whole numbers, or nothing."""
    return Key("counts", None, nullable=True)


def names(listed: str) -> frozenset[str]:
    """Return the names of a list that is written as one text."""
    return frozenset(listed.split())


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_count(value: Any, key: Key) -> str:
    least = 1 if key.kind == "count" else 0
    if _is_whole(value) and least <= value <= key.most:
        return ""
    return f"found {shown(value)}; expected {key.expected}"


def _check_flag(value: Any, key: Key) -> str:
    return "" if isinstance(value, bool) else f"found {shown(value)}; expected {key.expected}"


def _check_text(value: Any, key: Key) -> str:
    if not isinstance(value, str):
        return f"found {shown(value)}; expected {key.expected}"
    if key.allowed and value not in key.allowed:
        return f"found {shown(value)}; {nearest(value, key.allowed)}"
    return ""


def _check_counts(value: Any, key: Key) -> str:
    if isinstance(value, list) and all(_is_whole(part) and 0 <= part <= key.most for part in value):
        return ""
    return f"found {shown(value)}; expected {key.expected}"


def _check_texts(value: Any, key: Key) -> str:
    if not isinstance(value, list):
        return f"found {shown(value)}; expected {key.expected}"
    wrong = [part for part in value if not isinstance(part, str) or part not in key.allowed]
    return f"found {shown(wrong[0])}; expected {key.expected}" if wrong else ""


def _check_nothing(value: Any, key: Key) -> str:
    return ""


def _check_section(value: Any, key: Key) -> str:
    return "" if isinstance(value, Mapping) else f"found {shown(value)}; expected {key.expected}"


_CHECKS = {
    "count": _check_count,
    "count_or_zero": _check_count,
    "flag": _check_flag,
    "text": _check_text,
    "counts": _check_counts,
    "texts": _check_texts,
    "section": _check_section,
    "anything": _check_nothing,
}


def shown(value: Any) -> str:
    """Return a value as a message shows it: cut where it is long."""
    try:
        written = repr(value)
    except ValueError:
        return "a number of too many digits"
    return written if len(written) <= 60 else f"{written[:57]}..."
