"""Traces of requests: CSV with a header, or a JSON array of objects.

Columns: ``arrival_s``, ``prompt_tokens`` and ``answer_tokens`` of each request. Requests may share
the start of their prompts: ``prefix`` names it and ``prefix_tokens`` counts its tokens, or
``conversation`` names the requests whose prompts hold all turns before them.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.base.errors import Fault, SpecError, nearest
from meshwright.catalog.files import read_json, read_text
from meshwright.spec.arrivals import ALONE, Arrivals

NEEDED = ("arrival_s", "prompt_tokens", "answer_tokens")
COLUMNS = (*NEEDED, "prefix", "prefix_tokens", "conversation")
MOST_REQUESTS = 1_000_000
MOST_TOKENS = 100_000_000


def load_trace(path: str | Path) -> Arrivals:
    """Return the requests of a file, the first one at time 0.

    Raises
    ------
    SpecError
        With the first faults of the file: the column, the row, the value, and a legal one.
    """
    file = Path(path)
    rows: Sequence[Any] = (
        read_json(file)
        if file.suffix.lower() == ".json"
        else list(csv.DictReader(io.StringIO(read_text(file)), strict=True))
    )
    if not isinstance(rows, list) or not rows or not isinstance(rows[0], dict):
        raise SpecError(Fault("", "holds no requests", f"a row with {', '.join(NEEDED)} for each"),
                        origin=str(path))  # fmt: skip
    if len(rows) > MOST_REQUESTS:
        message = f"{len(rows):,} requests; at most {MOST_REQUESTS:,} are read"
        raise SpecError(Fault("", message), origin=str(path))
    unknown = [str(name) for name in rows[0] if name not in COLUMNS]
    faults = [Fault(name, "is no column of a trace", nearest(name, COLUMNS)) for name in unknown]
    faults += [Fault(name, "is needed") for name in NEEDED if name not in rows[0]]
    if ("prefix" in rows[0]) != ("prefix_tokens" in rows[0]):
        faults.append(Fault("prefix", "is stated with prefix_tokens, or not at all"))
    if "prefix" in rows[0] and "conversation" in rows[0]:
        faults.append(Fault("conversation", "states the prefix already", "leave prefix out"))
    if faults:
        raise SpecError(faults, origin=str(path))
    return _arrivals(rows, str(path))


def _arrivals(rows: Sequence[Mapping[str, Any]], origin: str) -> Arrivals:
    faults: list[Fault] = []

    def numbers(name: str, least: float) -> np.ndarray[Any, Any]:
        found = np.zeros(len(rows))
        for place, row in enumerate(rows):
            value = row.get(name) if isinstance(row, dict) else None
            try:
                found[place] = float("nan") if isinstance(value, bool) else float(value or 0)
            except (TypeError, ValueError):
                found[place] = np.nan
            if not least <= found[place] <= MOST_TOKENS and len(faults) < 3:
                faults.append(Fault(f"{name} of request {place + 1}", f"found {value!r}",
                                    f"a number of at least {least:g}"))  # fmt: skip
        return found

    times_s = numbers("arrival_s", 0.0)
    prompts, answers = numbers("prompt_tokens", 1.0), numbers("answer_tokens", 1.0)
    shared = numbers("prefix_tokens", 0.0) if "prefix" in rows[0] else np.zeros(len(rows))
    if faults:
        raise SpecError(faults, origin=origin)
    order = np.argsort(times_s, kind="stable")
    key = "conversation" if "conversation" in rows[0] else "prefix"
    names: dict[str, int] = {}
    prefix = np.full(len(rows), ALONE, dtype=np.int64)
    for place in order.tolist():
        name = rows[place].get(key)
        if name not in (None, ""):
            prefix[place] = names.setdefault(str(name), len(names))
    columns = [column[order].astype(np.int64) for column in (prompts, answers, prefix, shared)]
    prompt, answer, prefix, shared = columns
    kept = np.minimum(shared, prompt)
    if key == "conversation":
        shared, kept = prompt, prompt + answer
    return Arrivals(times_s[order] - times_s.min(), prompt, answer, prefix, shared, kept)
