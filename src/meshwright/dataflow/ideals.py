"""Order ideals: sets of kernels that hold all that their members read.

Kernels cut into parts that run one after the other are a chain of ideals, from none of the kernels
to all of them: each part is the difference of an ideal and the one before it.

Sets are rows of booleans while they are enumerated. They grow one kernel at a time, in an order in
which kernels can run, so each is found once, and a set that is not kept is never grown further.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from meshwright.base.arrays import BoolArray, IntArray
from meshwright.base.errors import UnsupportedError

Kept = Callable[[BoolArray, BoolArray, IntArray], BoolArray]
"""Function that marks the sets to keep, from the rows they grew from, their own, and the kernel
that joined last."""


class TooWideError(UnsupportedError):
    """A graph has more sets of kernels than are searched."""


def order_ideals(needs: BoolArray, most: int, *, kept: Kept | None = None) -> BoolArray:
    """Return all order ideals, shape (ideals, kernels): from the empty set to all kernels.

    The smaller ones come first. For the parameters and errors see :func:`larger_ideals`.
    """
    nothing = np.zeros((1, len(needs)), bool)
    found = larger_ideals(nothing, needs, most, kept=kept)
    return np.concatenate([nothing, *(rows for _, rows in found)])


def larger_ideals(
    start: BoolArray, needs: BoolArray, most: int, *, kept: Kept | None = None
) -> Iterator[tuple[IntArray, BoolArray]]:
    """Yield all ideals that hold a starting one, those with one kernel more first.

    Each comes with the row of ``start`` that it grew from.

    Parameters
    ----------
    start
        Ideals, shape (ideals, kernels).
    needs
        Shape (kernels, kernels), in an order in which they can run: whether the first comes only
        after the second.
    most
        Sets that may be found.
    kept
        Function that marks the sets to keep; None: all are kept.

    Raises
    ------
    TooWideError
        When there are more: too many branches lie side by side.
    """
    numbers, order = np.arange(len(needs)), _Order.of(needs)
    origin, rows = np.arange(len(start)), start
    ready = ~start & np.array(~start @ needs.T.astype(np.float32) == 0.0)
    latest, count = np.full(len(start), -1), 0
    while len(rows):
        row, kernel = np.nonzero(ready & (numbers > latest[:, None]))
        rows, ready, origin = rows[row], ready[row], origin[row]
        rows[np.arange(len(rows)), kernel] = True
        if kept is not None:
            stay = kept(start[origin], rows, kernel)
            rows, ready, origin, kernel = rows[stay], ready[stay], origin[stay], kernel[stay]
        latest = kernel
        count += len(rows)
        if count > most:
            message = f"more than {most} sets of kernels: too many branches lie side by side"
            raise TooWideError(message)
        if len(rows):
            order.mark_ready(ready, rows, kernel)
            yield origin, rows


@dataclass(frozen=True)
class _Order:
    """Kernels next to each one, padded to a common number with what marks nothing."""

    before: IntArray
    """Shape (kernels, most): kernels that it needs directly; padded with the first of them."""
    after: IntArray
    """Shape (kernels, most): kernels that need it directly; padded with -1."""

    @classmethod
    def of(cls, needs: BoolArray) -> _Order:
        """Return the order of direct needs: those that no other need implies."""
        direct, _ = _direct_and_all(needs)
        return cls(_listed(direct, None), _listed(direct.T, -1))

    def mark_ready(self, ready: BoolArray, rows: BoolArray, joined: IntArray) -> None:
        """Mark the kernels that can run now that one joined each row, which no longer can."""
        numbers = np.arange(len(rows))
        ready[numbers, joined] = False
        for following in self.after[joined].T:
            found = np.flatnonzero(following >= 0)
            kernel = following[found]
            ready[found, kernel] = rows[found[:, None], self.before[kernel]].all(axis=1)


def _listed(pairs: BoolArray, pad: int | None) -> IntArray:
    """Return the columns that are marked in each row, padded; with their first where None."""
    size = pairs.sum(axis=1)
    most = int(size.max(initial=0))
    found = np.argsort(~pairs, axis=1, kind="stable")[:, :most]
    padding = found[:, :1] if pad is None else pad
    return np.where(np.arange(most) < size[:, None], found, padding)


def all_needs(needs: BoolArray) -> BoolArray:
    """Return whether each kernel depends on each other one, directly or through others."""
    return _direct_and_all(needs)[1]


def _direct_and_all(needs: BoolArray) -> tuple[BoolArray, BoolArray]:
    """Return the needs that no other need implies, and all needs through others."""
    direct, every = np.zeros_like(needs), np.zeros_like(needs)
    for kernel, left in enumerate(needs.copy()):
        while left.any():  # no other one that is left needs the last one
            last = len(left) - 1 - int(left[::-1].argmax())
            direct[kernel, last] = every[kernel, last] = True
            every[kernel] |= every[last]
            left &= ~every[kernel]
    return direct, every


def as_bits(rows: BoolArray) -> tuple[int, ...]:
    """Return sets of kernels as whole numbers: bit k stands for kernel k."""
    packed = np.packbits(rows, axis=1, bitorder="little")
    return tuple(int.from_bytes(row.tobytes(), "little") for row in packed)


def members(kernels: int) -> tuple[int, ...]:
    """Return the numbers of the kernels in a set that is given as bits."""
    return tuple(place for place in range(kernels.bit_length()) if kernels >> place & 1)
