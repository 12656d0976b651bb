"""The tensors that stream in layers are chosen once for each row of equal private price."""

from __future__ import annotations

import numpy as np

from meshwright.cost.problem import StreamChoices


def test_rows_that_are_known_are_not_priced_again() -> None:
    choices, asked = StreamChoices(), []

    def chosen(*tp: float) -> list[list[bool]]:
        column = np.array(tp)

        def make() -> list[object]:
            asked.append(tp)
            return [column > 2.0, False]

        found = choices.of("layer", [column, np.asarray(0.5)], make)
        return [mask.tolist() for mask in found]

    assert chosen(1.0, 4.0, 2.0) == [[False, True, False], [False, False, False]]
    assert chosen(2.0, 4.0) == [[False, True], [False, False]]
    assert asked == [(1.0, 4.0, 2.0)]
    assert chosen(4.0, 3.0) == [[True, True], [False, False]]
    assert asked == [(1.0, 4.0, 2.0), (4.0, 3.0)]
    choices.of("another layer", [np.array([1.0])], lambda: asked.append(()) or [True])
    assert asked[-1] == ()
