"""Comparisons of a run: with the dense model, with derived bytes, and with forms of streams."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from math import inf, isfinite
from typing import Any

import torch.distributed as dist
from torch import Tensor

from meshwright.run.answer import Call, RecordedSend
from meshwright.run.mesh import Mesh
from meshwright.run.recorder import RecordedPass, Recorder
from meshwright.run.sharded import WeightPart
from meshwright.streams.forms import enumerate_rounds, reverse

TOLERANCE = {"fp64": 1e-9, "fp32": 1e-4, "bf16": 5e-2}
"""Largest relative difference from the dense model, by type."""


def recorded(
    recorder: Recorder, padding: Mapping[str, float]
) -> tuple[dict[Call, float], dict[Call, int]]:
    """Return the bytes and the calls that all processes together have sent.

    Parameters
    ----------
    padding
        Padding of a call over an axis: FSDP pads the rows of a weight to equal shards [bytes].
    """
    of_all: list[Any] = [None] * dist.get_world_size()
    own = {call: (number, recorder.calls[call] * padding.get(call.axis, 0.0))
           for call, number in recorder.num_bytes.items()}  # fmt: skip
    dist.all_gather_object(of_all, (own, dict(recorder.calls)))
    num_bytes: defaultdict[Call, float] = defaultdict(float)
    calls: Counter[Call] = Counter()
    for own_bytes, own_calls in of_all:
        for call, (number, filled) in own_bytes.items():
            key = Call(call.kind, call.axis.split("/")[0], call.phase)
            num_bytes[key] += number - filled
            calls[key] += own_calls[call]
    return dict(num_bytes), dict(calls)


def wrong_passes(recorder: Recorder, mesh: Mesh) -> int:
    """Return the number of stream passes of this process that differ from their form.

    Rounds, destinations and items are compared with the list of the form, buffers in use with its
    closed form, and the bytes of the sends with those that the process group carried.
    """
    wrong = sum(_differs(made, mesh) for made in recorder.passes)
    noted = sum(num_bytes for made in recorder.passes for _, num_bytes in made.sends)
    return wrong + (noted != recorder.streamed_bytes)


def first_passes(recorder: Recorder, mesh: Mesh) -> tuple[tuple[int, ...], list[RecordedSend]]:
    """Return the sends of the first stream pass in each direction, and the ranks of its group."""
    found: dict[bool, RecordedPass] = {}
    for made in recorder.passes:
        if made.axis == recorder.passes[0].axis:
            found.setdefault(made.is_reversed, made)
    sends = [RecordedSend("backward" if is_reversed else "forward", *send, num_bytes)
             for is_reversed, made in found.items() for send, num_bytes in made.sends]  # fmt: skip
    return (mesh[recorder.passes[0].axis].ranks if found else ()), sends


def _differs(made: RecordedPass, mesh: Mesh) -> bool:
    axis = mesh[made.axis]
    rounds = enumerate_rounds(mesh.form_of(made.axis), axis.size)
    if made.is_reversed:
        rounds = reverse(rounds)
    room = mesh.form_of(made.axis).buffers(float(axis.size)).with_incoming * rounds.num_parts
    if made.most_held > room:
        return True
    expected = sorted(send for send in rounds.sends if send.source == axis.index)
    return expected != sorted(send for send, _ in made.sends)


def gradient_errors(
    gradients: Mapping[str, Tensor], held: Mapping[str, WeightPart], dense: Mapping[str, Tensor]
) -> Iterator[tuple[float, str]]:
    """Yield the largest difference of each gradient, relative to its largest entry."""
    for name, gradient in gradients.items():
        whole = dense[name]
        largest = float(whole.abs().max())
        expected = held[name].of(whole)
        if gradient.shape != expected.shape:
            yield inf, name
        elif expected.numel():
            yield relative(float((gradient - expected).abs().max()), largest), name


def relative(difference: float, scale: float) -> float:
    """Return a difference over a scale (1 if that is 0); infinite if it is not a number."""
    found = difference / scale if scale else difference
    return found if isfinite(found) else inf
