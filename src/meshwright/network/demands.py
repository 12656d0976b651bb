"""What has to be sent while a phase lasts: one row for each source and destination."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.base.arrays import FloatArray, IntArray


@dataclass(frozen=True)
class Demands:
    """Messages that are in flight together, as columns.

    Rows with the same payload and source carry the same data to several destinations, and may
    share a multicast tree. A device that receives a payload may pass it on, so a row may be served
    from any device that holds or receives it.
    """

    source: IntArray
    destination: IntArray
    num_bytes: FloatArray
    payload: IntArray
    """Equal numbers: the same data."""
    operation: IntArray
    """Index in ``operation_names`` of what sends it: an axis and its collective or stream."""
    operation_names: tuple[str, ...] = ("",)

    def __len__(self) -> int:
        return len(self.source)
