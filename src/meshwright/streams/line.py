"""Streams on a line of devices, one hop a round in both directions: ``hold`` and ``stream``.

Express waves carry every sub-tensor once to each member. The members of the left half use them
in the order i, i + 1, ..., N - 1, 0, 1, ..., those of the right half in the mirrored order, so the
sub-tensors behind them pass too early. ``hold`` keeps those copies until their round; ``stream``
lets them go and sends them again just in time (a second wave outwards, a return wave back), so
that what is held does not grow with N.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.base.arrays import N, ceil_div, larger, positive_part, smaller
from meshwright.streams.registry import Buffers, Send, streams


@dataclass(frozen=True)
class Line:
    """The line form with its knob: how many passing copies each half keeps.

    With ``num_held`` = 0 it is ``stream``; from ceil(N / 2) on it is ``hold``.

    Source: order and waves reconstructed from TATP in TEMP (arXiv 2512.14256); proven by replay.
    """

    num_held: float

    needs_cycle = False

    def num_parts(self, num_members: N) -> N:
        """Sub-tensors travel whole."""
        return 0 * num_members + 1

    def num_hops(self, num_members: N) -> N:
        """Neighbours only."""
        return 0 * num_members + 1

    def buffers(self, num_members: N) -> Buffers[N]:
        """At most 2 + h resident, and 4 + h with what arrives.

        With n = ceil(N / 2) and the turn T = floor((2 n - 5) / 3), no less than 0:
        resident min(h + 2, max(T + 2, h + 1), n, N - 1), and with what arrives
        min(h + 4, max(4, T + 3, h + 2), n + 1, N - 1 + r), r = 1 where anything is sent again.

        Source: derived from the waves; equal to the counted ones for every knob and N = 1 .. 64.
        """
        held, half = self.num_held, ceil_div(num_members, 2)
        others = num_members - 1
        turn = positive_part(ceil_div(2 * half - 7, 3))
        resident = smaller(larger(turn + 2, held + 1), held + 2)
        incoming = smaller(larger(turn + 3, larger(held + 2, 4)), held + 4)
        repeated = smaller(positive_part(half - 1 - held), 1)
        return Buffers(
            resident=smaller(resident, smaller(half, others)),
            with_incoming=smaller(incoming, smaller(half + 1, others + repeated)),
        )

    def transfers(self, num_members: N) -> N:
        """N (N - 1) + (n - 1 - h)^2 + (N - n - 1 - h)^2 with n = ceil(N / 2), no less than 0."""
        left = ceil_div(num_members, 2)
        again_left = positive_part(left - 1 - self.num_held)
        again_right = positive_part(num_members - left - 1 - self.num_held)
        count: N = (
            num_members * (num_members - 1) + again_left * again_left + again_right * again_right
        )
        return count

    def num_shared_rounds(self, num_members: N) -> N:
        """min(N - 2, 4 (n - 1 - h) - 2), no less than 0: only what is sent again meets anything.

        The express waves and their reversals never use one link in the same direction and round:
        in round t items go right beyond member t, accumulators before it.

        Source: derived from the waves; equal to the counted ones for every knob.
        """
        again = positive_part(ceil_div(num_members, 2) - 1 - self.num_held)
        rounds: N = positive_part(smaller(num_members - 2, 4 * again - 2))
        return rounds

    def num_exchange_rounds(self, num_members: N) -> N:
        """2 N - 1: the farthest partial exists in round N - 1 and has N - 1 hops to go."""
        return 2 * num_members - 1

    def uses(self, num_members: int) -> list[list[tuple[int, ...]]]:
        """Member i uses (i + t) mod N in round t, on the right half (i - t) mod N."""
        left = (num_members + 1) // 2
        signs = [1 if member < left else -1 for member in range(num_members)]
        return [
            [((member + sign * turn) % num_members,) for member, sign in enumerate(signs)]
            for turn in range(num_members)
        ]

    def sends(self, num_members: int) -> list[Send]:
        """Express waves, then on each side the waves that bring back what was not held."""
        left = (num_members + 1) // 2
        return [
            *_express_waves(num_members),
            *_repeated_waves(num_members, left, self.num_held, is_mirrored=False),
            *_repeated_waves(num_members, num_members - left, self.num_held, is_mirrored=True),
        ]


def _express_waves(num_members: int) -> list[Send]:
    """Return the two waves in which every sub-tensor leaves its home in round 0 at full speed."""
    waves: list[Send] = []
    for item in range(num_members):
        waves += [Send(turn, item - turn, item - turn - 1, item) for turn in range(item)]
        rightward = range(num_members - 1 - item)
        waves += [Send(turn, item + turn, item + turn + 1, item) for turn in rightward]
    return waves


def _repeated_waves(
    num_members: int, half: int, num_held: float, *, is_mirrored: bool
) -> list[Send]:
    """Return the second and the return wave of each sub-tensor that one half does not hold.

    Written for the left half of ``half`` members; the right half is its mirror image. The second
    wave leaves home s in round N - 2 n + 2 + 2 s and reaches the middle member as it needs it;
    the return wave walks back one member a round, each of which needs it on arrival.
    """

    def place(position: int) -> int:
        return num_members - 1 - position if is_mirrored else position

    waves: list[Send] = []
    first = half - 1 if num_held >= half - 1 else int(num_held)
    for s in range(first, half - 1):
        start = num_members - 2 * half + 2 + 2 * s
        outward = range(s, half - 1)
        waves += [Send(start + k - s, place(k), place(k + 1), place(s)) for k in outward]
        backward = range(half - 1, s + 1, -1)
        waves += [Send(num_members - k + s, place(k), place(k - 1), place(s)) for k in backward]
    return waves


streams.register("stream")(Line(num_held=0.0))
streams.register("hold")(Line(num_held=np.inf))
