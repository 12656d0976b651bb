"""Balanced routing for the experts of torchtitan on fake tensors, as it is priced.

The rows between two ranks depend on the scores of the router, which fake tensors do not have.

Source: torchtitan 0.3.0, ``models/common/token_dispatcher.py``, ``AllToAllTokenDispatcher``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from torch import Tensor


@contextmanager
def balanced_routing() -> Iterator[None]:
    """Let each rank of ep send equally many rows to every rank."""
    from torchtitan.models.common.token_dispatcher import AllToAllTokenDispatcher

    dispatch = AllToAllTokenDispatcher.dispatch

    def counted(self: Any, tokens: Tensor, *routed: Any) -> Any:
        self.num_rows = tokens.shape[0] * self.top_k
        return dispatch(self, tokens, *routed)

    def splits(self: Any, own: Tensor, others: Tensor, ep: int) -> tuple[Tensor, list[int], Any]:
        each, more = divmod(self.num_rows, ep)
        rows = [each + (rank < more) for rank in range(ep)]
        return others.reshape(-1), rows, rows

    with (
        patch.object(AllToAllTokenDispatcher, "dispatch", counted),
        patch.object(AllToAllTokenDispatcher, "_sync_token_count_exchange", splits),
    ):
        yield
