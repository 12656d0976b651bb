"""Order ideals: sets of kernels that hold all that their members read.

Kernels cut into parts that run one after the other are a chain of ideals, from none of the kernels
to all of them: each part is the difference of an ideal and the one before it.

Sets are rows of booleans while they are enumerated. They grow one kernel at a time, in an order in
which kernels can run, so each is found once, and a set that is not kept is never grown further.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

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
    numbers = np.arange(len(needs))
    missing = needs.T.astype(np.float32)
    origin, rows, latest = np.arange(len(start)), start, np.full(len(start), -1)
    count = 0
    while len(rows):
        can_join = ~rows & ((~rows).astype(np.float32) @ missing == 0)
        row, kernel = np.nonzero(can_join & (numbers > latest[:, None]))
        rows, origin = rows[row], origin[row]
        rows[np.arange(len(rows)), kernel] = True
        if kept is not None:
            stay = kept(start[origin], rows, kernel)
            rows, origin, kernel = rows[stay], origin[stay], kernel[stay]
        latest = kernel
        count += len(rows)
        if count > most:
            message = f"more than {most} sets of kernels: too many branches lie side by side"
            raise TooWideError(message)
        if len(rows):
            yield origin, rows


def as_bits(rows: BoolArray) -> tuple[int, ...]:
    """Return sets of kernels as whole numbers: bit k stands for kernel k."""
    packed = np.packbits(rows, axis=1, bitorder="little")
    return tuple(int.from_bytes(row.tobytes(), "little") for row in packed)


def members(kernels: int) -> tuple[int, ...]:
    """Return the numbers of the kernels in a set that is given as bits."""
    return tuple(place for place in range(kernels.bit_length()) if kernels >> place & 1)
