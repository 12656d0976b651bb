"""Readable names of dims: from the use in operators, else from the operator that makes them.

A dim first has the name of its maker (``x.0``, ``conv1.0``). Operators know more: a convolution
that its axes are batch, channels, height and width, attention that they are heads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

SPACE = {1: ("length",), 2: ("height", "width"), 3: ("depth", "height", "width")}
"""Names of the axes of an image, by their number."""
_FEATURES = "features"
"""A word that any other one replaces, and that says too little to stand alone."""
_SAME = (
    "batch channels height width depth length kernel_height kernel_width kernel_depth "
    "kernel_length vocabulary hidden tokens heads head_dim keys sides"
)
_WORDS: Mapping[str, str] = {
    **dict(zip(_SAME.split(), _SAME.split(), strict=True)),
    "query": "tokens", "shared": "queries_per_key", "value_dim": "head_dim", "group": "groups",
    "filter": "channels", "expert": "experts", "slot": "slots", "gate": "gates",
    "order": "top", "state": "states", "new_state": "states", "in": _FEATURES, "out": _FEATURES,
}  # fmt: skip
"""Words that the keys of operators give to dims."""
_LAST = re.compile(r"[^.]+(?:\.[0-9]+)*")
"""The last part of a path that says more than a number."""
_PART = re.compile(r"[._][0-9]+$")


@dataclass
class DimNames:
    """Facts on the dims of a graph while it grows."""

    makers: dict[str, tuple[str, bool]] = field(default_factory=dict)
    """Operator that made each dim, and whether the dim is one of a weight."""
    words: dict[str, str] = field(default_factory=dict)
    guesses: dict[str, str] = field(default_factory=dict)
    """Words for dims that no operator names better."""
    origins: dict[str, str] = field(default_factory=dict)
    """Dim from which a move takes its elements, by the dim that it makes."""
    stated: set[str] = field(default_factory=set)
    """Dims that a user named."""

    def use(self, dim: str, key: object) -> None:
        """Note that an operator uses a dim as one of its keys."""
        word = _WORDS.get(key) if isinstance(key, str) else None
        if word and self.words.get(dim, _FEATURES) == _FEATURES:
            self.words[dim] = word

    def guess(self, dims: Sequence[str]) -> None:
        """Take the first dim of an input for the batch, and the second of three for tokens."""
        self.guesses |= dict(
            zip(dims[:-1], ("batch", "tokens")[: max(len(dims) - 1, 0)], strict=False)
        )

    def word(self, dim: str) -> str | None:
        """Return the word for a dim, or for the dim that its elements come from."""
        while dim not in self.words and dim in self.origins:
            dim = self.origins[dim]
        word = self.words.get(dim)
        if word in (None, _FEATURES):
            word = self.guesses.get(dim, word)
        return word if word != _FEATURES or dim in self.makers else None

    def maker(self, dim: str) -> tuple[str, bool]:
        """Return the maker of a dim, or of the dim it is part of; and whether weights have it."""
        whole = dim
        while whole not in self.makers and (shorter := _PART.sub("", whole)) != whole:
            whole = shorter
        maker, is_held = self.makers.get(whole, (dim, False))
        return maker, is_held or (whole in self.origins and self.maker(self.origins[whole])[1])

    def readable(
        self, sizes: Mapping[str, int], kernels: Sequence[Sequence[str]]
    ) -> dict[str, str]:
        """Return a readable name for each dim, in the order of ``sizes``.

        Dims of weights share a name where they have one size and no kernel has both: the heads of
        all layers. All others keep apart, for they may pass in tiles.

        Parameters
        ----------
        kernels
            The dims that each kernel has.
        """
        where: dict[str, set[int]] = {dim: set() for dim in sizes}
        for number, dims in enumerate(kernels):
            for dim in dims:
                where[dim].add(number)
        taken: dict[str, tuple[int, bool, set[int]]] = {
            dim: (sizes[dim], False, where[dim]) for dim in sizes if dim in self.stated
        }
        found = {dim: dim for dim in taken}
        for dim, size in sizes.items():
            if dim in found:
                continue
            is_held = self.maker(dim)[1]
            for name in self._candidates(dim, taken):
                other = taken.get(name)
                shares = (
                    other and is_held and other[:2] == (size, True) and not other[2] & where[dim]
                )
                if other is None or shares:
                    break
            found[dim] = name
            taken[name] = (size, is_held, where[dim] | (other[2] if other else set()))
        return found

    def _candidates(self, dim: str, taken: Mapping[str, object]) -> Iterator[str]:
        """Yield names for a dim, the shortest first."""
        word, (maker, is_held) = self.word(dim), self.maker(dim)
        if word and word != _FEATURES:
            yield word
        end = f".{word or dim.removeprefix(f'{maker}.')}"
        if word and is_held:
            yield from [name for name in taken if name.endswith(end)]
        *_, last = _LAST.findall(maker)
        if word or is_held:
            yield last + end
        longer = maker + end if word else dim
        yield longer
        yield from (f"{longer}_{number}" for number in count(2))
