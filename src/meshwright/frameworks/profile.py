"""Traces of the PyTorch profiler: the time of a measured step by kind of work.

Read event by event, so that a file may be larger than memory. Where a device ran kernels, its
streams count; on a CPU its operators do. Each moment counts for the first kind of :class:`Work`
under way: computation hides communication, and idle time is the host's.

Source: Trace Event Format (Google), as libkineto writes it: complete events, microseconds.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO

import numpy as np

from meshwright.base.arrays import FloatArray
from meshwright.base.errors import Fault, SpecError
from meshwright.base.files import opened, unreadable
from meshwright.base.records import Brief
from meshwright.catalog.files import shown


class Work(StrEnum):
    """Kinds of work, the first one under way counts."""

    ATTENTION = "attention"
    PRODUCTS = "products"
    OPTIMIZER = "optimizer"
    OTHER = "elementwise and other"
    COPIES = "copies"
    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    SEND = "send"
    BROADCAST = "broadcast"
    COLLECTIVE = "other collective"


COMMUNICATION = (
    Work.ALL_REDUCE, Work.ALL_GATHER, Work.REDUCE_SCATTER, Work.ALL_TO_ALL, Work.SEND,
    Work.BROADCAST, Work.COLLECTIVE,
)  # fmt: skip
COMPUTATION = (Work.ATTENTION, Work.PRODUCTS, Work.OPTIMIZER, Work.OTHER)
_COLLECTIVES = (
    (Work.ALL_REDUCE, re.compile(r"all_?reduce", re.I)),
    (Work.ALL_GATHER, re.compile(r"all_?gather", re.I)),
    (Work.REDUCE_SCATTER, re.compile(r"reduce_?scatter", re.I)),
    (Work.ALL_TO_ALL, re.compile(r"all_?to_?all", re.I)),
    (Work.SEND, re.compile(r"send|recv", re.I)),
    (Work.BROADCAST, re.compile(r"broadcast", re.I)),
)
_OF_LIBRARIES = re.compile(r"^(nccl|rccl|gloo:|ccl|oneccl|xccl)|ncclDevKernel|ncclKernel", re.I)
_KINDS = (
    (Work.ATTENTION, re.compile(r"flash|fmha|attention|attn|sdpa", re.I)),
    (Work.OPTIMIZER, re.compile(r"adam|sgd|lamb|adagrad|optimizer", re.I)),
    (Work.PRODUCTS, re.compile(
        r"gemm|gemv|cutlass|nvjet|xmma|matmul|cijk_|scaled_mm|aten::(add|b|badd|_grouped_)?mm$"
        r"|s\d+816|mkldnn_linear|onednn", re.I)),
)  # fmt: skip
_COPY = re.compile(r"^mem(cpy|set)", re.I)
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_STEP = re.compile(r"ProfilerStep#\d+$")
MOST_BYTES = 16 * 2**30
"""Largest trace, unpacked [bytes]: minutes of a device; a longer one is a mistake."""
MOST_EVENTS = 10_000_000
"""Most events of a trace: about two gigabytes of memory."""
MOST_EVENT = 16 * 2**20
"""Most characters of one event, or before the first one."""
CHUNK = 2**20
MICRO = 1e-6


@dataclass(frozen=True)
class Profile(Brief):
    """Time of the mean step of a trace by kind of work; parts and idle time sum to the step."""

    step_s: float
    num_steps: int
    """Number of steps; 0: the trace names no step and is taken as one."""
    on_device: bool
    """Whether kernels of a device count, or the operators of a CPU."""
    parts_s: Mapping[Work, float]
    """Time of each kind of work; of communication the exposed part [s]."""
    hidden_s: Mapping[Work, float]
    """Hidden time of each kind of communication, behind computation [s]."""
    idle_s: float
    """Time with nothing under way: the host prepares, or waits [s]."""


@dataclass
class _Found:
    """Times of the events in microseconds, by kind of work."""

    device: dict[Work, list[tuple[float, float]]]
    host: dict[Work, list[tuple[float, float]]]
    steps: list[tuple[float, float]]
    device_steps: list[tuple[float, float]]


def read_profile(path: Path) -> Profile:
    """Return the time of the mean step of a trace by kind of work.

    Raises
    ------
    SpecError
        When it is no trace of the PyTorch profiler, or holds no work; names place and fault.
    """
    found = _Found({}, {}, [], [])
    try:
        with opened(path, most_bytes=MOST_BYTES) as file:
            entries = _entries(io.TextIOWrapper(file, encoding="utf-8-sig"))
            for index, event in enumerate(entries):
                if index >= MOST_EVENTS:
                    fault = Fault("traceEvents", f"are more than {MOST_EVENTS:,}", "fewer steps")
                    raise SpecError(fault)
                _keep(found, event, index)
    except SpecError as error:
        raise SpecError(error.faults, origin=str(path)) from error
    except (OSError, ValueError) as error:
        raise SpecError(unreadable(error), origin=str(path)) from error
    on_device = bool(found.device)
    work = found.device if on_device else found.host
    if not work:
        fix = "profile with activities of the CPU or the device, then export_chrome_trace"
        raise SpecError(
            Fault("traceEvents", "hold no kernel and no operator", fix), origin=str(path)
        )
    steps = (found.device_steps if on_device else []) or found.steps
    everything = [span for spans in work.values() for span in spans]
    begin = min(span[0] for span in steps or everything)
    end = max(span[1] for span in steps or everything)
    shares = _shares(work, begin, end)
    if shares is None:
        message = "no kernel and no operator is within its steps"
        raise SpecError(Fault("traceEvents", message), origin=str(path))
    parts, hidden, idle = shares
    each = MICRO / max(len(steps), 1)
    return Profile(
        step_s=(end - begin) * each, num_steps=len(steps), on_device=on_device,
        parts_s={kind: taken * each for kind, taken in parts.items()},
        hidden_s={kind: taken * each for kind, taken in hidden.items()},
        idle_s=idle * each,
    )  # fmt: skip


def _entries(file: IO[str]) -> Iterator[object]:
    """Yield the entries of the array of events in a text."""
    text = file.read(CHUNK)
    start = r"\s*\[" if text.lstrip()[:1] == "[" else r'"traceEvents"\s*:\s*\['
    while not (found := re.search(start, text)):
        more = file.read(CHUNK)
        if not more or len(text) > MOST_EVENT:
            fix = "a trace of torch.profiler: export_chrome_trace"
            raise SpecError(Fault("traceEvents", "is missing", fix))
        text += more
    decoder, at, index = json.JSONDecoder(), found.end(), 0
    while True:
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        if at < len(text) and text[at] == "]":
            return
        try:
            entry, at = decoder.raw_decode(text, at)
        except (json.JSONDecodeError, RecursionError) as error:
            more = file.read(CHUNK)
            if not more or len(text) - at > MOST_EVENT:
                message = "the file ends within it" if not more else "is no JSON"
                raise SpecError(Fault(f"traceEvents[{index}]", message)) from error
            text, at = text[at:] + more, 0
            continue
        yield entry
        index += 1


def _keep(found: _Found, event: object, index: int) -> None:
    """Keep the time of an event, as a step or as work."""
    if not isinstance(event, dict):
        message = f"found {type(event).__name__}, expected an object"
        raise SpecError(Fault(f"traceEvents[{index}]", message))
    category, name = event.get("cat"), event.get("name")
    if event.get("ph") != "X" or not isinstance(category, str) or not isinstance(name, str):
        return
    is_step = _STEP.search(name) is not None and category.endswith("user_annotation")
    on_device = category.lower() in _DEVICE
    kind = None if is_step else kind_of(name, event.get("args"), on_device=on_device)
    is_operator = category == "cpu_op" or (kind in COMMUNICATION and "annotation" in category)
    if not (is_step or on_device or is_operator):
        return
    span = _span(event, index)
    if is_step:
        steps = found.device_steps if category.startswith("gpu") else found.steps
        steps.append(span)
    elif kind is not None and not category.startswith("gpu_user"):
        work = found.device if on_device else found.host
        work.setdefault(kind, []).append(span)


_LATEST_US = 1e24
"""Latest time of an event that a clock can have [us]."""


def _span(event: Mapping[str, object], index: int) -> tuple[float, float]:
    """Return the begin and the end of an event [us]."""
    values = []
    for name in ("ts", "dur"):
        value = event.get(name)
        least = 0.0 if name == "dur" else -_LATEST_US
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not (least <= value < _LATEST_US)
        ):
            what = "is missing" if value is None else f"found {shown(value)}"
            message = f"{what}, expected microseconds"
            raise SpecError(Fault(f"traceEvents[{index}].{name}", message))
        values.append(float(value))
    return values[0], values[0] + values[1]


def kind_of(name: str, args: object, *, on_device: bool) -> Work:
    """Return the kind of a kernel or an operator by its name."""
    if _OF_LIBRARIES.search(name):
        stated = args.get("Collective name") if isinstance(args, Mapping) else None
        for text in (stated, name):
            for kind, pattern in _COLLECTIVES:
                if isinstance(text, str) and pattern.search(text):
                    return kind
        return Work.COLLECTIVE
    if on_device and _COPY.search(name):
        return Work.COPIES
    return next((kind for kind, pattern in _KINDS if pattern.search(name)), Work.OTHER)


def _shares(
    work: Mapping[Work, list[tuple[float, float]]], begin: float, end: float
) -> tuple[dict[Work, float], dict[Work, float], float] | None:
    """Return time by kind, hidden communication and idle time; None: nothing but idle time.

    Spans of one kind are joined first, so that several streams count once.
    """
    joined = {kind: _joined(spans, begin, end) for kind, spans in work.items()}
    if not any(len(spans) for spans in joined.values()):
        return None
    parts, hidden = dict[Work, float](), dict[Work, float]()
    taken = np.zeros((0, 2))
    for kind in Work:
        if kind not in joined:
            continue
        spans = joined[kind]
        both = _joined(np.concatenate([taken, spans]), begin, end)
        parts[kind] = _length(both) - _length(taken)
        if kind in COMMUNICATION:
            hidden[kind] = _length(spans) - parts[kind]
        taken = both
    return parts, hidden, (end - begin) - _length(taken)


def _length(spans: FloatArray) -> float:
    return float((spans[:, 1] - spans[:, 0]).sum())


def _joined(spans: list[tuple[float, float]] | FloatArray, begin: float, end: float) -> FloatArray:
    """Return spans joined where they touch, cut to a window, in order: (spans, 2)."""
    table: FloatArray = np.clip(np.asarray(spans, dtype=float).reshape(-1, 2), begin, end)
    table = table[table[:, 1] > table[:, 0]]
    table = table[np.argsort(table[:, 0], kind="stable")]
    if not len(table):
        return table
    furthest = np.maximum.accumulate(table[:, 1])
    is_first = np.concatenate([[True], table[1:, 0] > furthest[:-1]])
    last = np.concatenate([np.flatnonzero(is_first)[1:] - 1, [len(table) - 1]])
    joined: FloatArray = np.stack([table[is_first, 0], furthest[last]], axis=1)
    return joined
