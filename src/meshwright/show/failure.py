"""An error as data, for programs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from typing_extensions import TypedDict

from meshwright.base.errors import Fault, SpecError, UnsupportedError, message_of


class ErrorRecord(TypedDict):
    """Error with its kind and its faults."""

    kind: str
    """``spec``, ``unknown_name``, ``unsupported``, ``infeasible``, ``unlawful``, ``usage`` or
    ``file``."""
    message: str
    faults: Sequence[Fault]
    """Faults, each with its place and the nearest fix."""


class Failure(TypedDict):
    """Output where a question has no answer."""

    error: ErrorRecord


def failure(error: Exception) -> Failure:
    """Return an error as data."""
    faults = error.faults if isinstance(error, SpecError | UnsupportedError) else ()
    return {"error": {"kind": kind_of(error), "message": message_of(error), "faults": faults}}


def kind_of(error: Exception) -> str:
    """Return the kind in lower case: ``spec``, ``unknown_name``, ``infeasible``, ``usage``."""
    if isinstance(error, OSError):
        return "file"
    name = type(error).__name__.removesuffix("Error")
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
