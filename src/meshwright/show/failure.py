"""An error as data, for programs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.base.errors import Fault, SpecError, UnsupportedError, message_of


@dataclass(frozen=True)
class ReportedError:
    """Error with its kind and its faults."""

    kind: str
    """``spec``, ``unknown_name``, ``unsupported``, ``infeasible``, ``unlawful``, ``usage`` or
    ``file``."""
    message: str
    faults: Sequence[Fault]
    """Faults, each with its place and the nearest fix."""


@dataclass(frozen=True)
class Failure:
    """Output where a question has no answer."""

    error: ReportedError


def failure(error: Exception) -> Failure:
    """Return an error as data."""
    faults = error.faults if isinstance(error, SpecError | UnsupportedError) else ()
    return Failure(ReportedError(kind_of(error), message_of(error), faults))


def kind_of(error: Exception) -> str:
    """Return the kind in lower case: ``spec``, ``unknown_name``, ``infeasible``, ``usage``."""
    if isinstance(error, OSError):
        return "file"
    name = type(error).__name__.removesuffix("Error")
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
