"""Demands gathered by their data: the holders of each piece, and its receivers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meshwright.base.arrays import FloatArray, IntArray
from meshwright.network.traffic import Demands


class Messages(NamedTuple):
    """One row for each piece of data, largest first; as kernels read them.

    A device that receives a payload may pass it on, so the senders of a payload that do not
    receive it too are its holders, and any of them may serve any receiver.
    """

    num_bytes: FloatArray
    holder_offsets: IntArray
    holders: IntArray
    receiver_offsets: IntArray
    receivers: IntArray
    payload: IntArray


def make_messages(demands: Demands, num_nodes: int) -> tuple[Messages, IntArray]:
    """Return the messages of demands, and the message that each row belongs to.

    Rows to oneself belong to -1. Where all senders of a payload receive it too, all of them are
    taken to hold it.
    """
    moving = np.flatnonzero(demands.source != demands.destination)
    keys = np.stack([-demands.num_bytes[moving], demands.payload[moving]])
    kinds, of_row = np.unique(keys, axis=1, return_inverse=True)
    of_row = of_row.reshape(-1)
    sent = np.unique(of_row * num_nodes + demands.source[moving])
    received = np.unique(of_row * num_nodes + demands.destination[moving])
    first = np.setdiff1d(sent, received, assume_unique=True)
    has_holder = np.isin(sent // num_nodes, first // num_nodes)
    held = np.union1d(first, sent[~has_holder])
    needed = np.setdiff1d(received, held, assume_unique=True)
    num_messages = kinds.shape[1]
    messages = Messages(
        -kinds[0],
        offsets_of(held // num_nodes, num_messages),
        held % num_nodes,
        offsets_of(needed // num_nodes, num_messages),
        needed % num_nodes,
        kinds[1].astype(np.int64),
    )
    message_of = np.full(len(demands), -1, dtype=np.int64)
    message_of[moving] = of_row
    return messages, message_of


def split_in(messages: Messages, num_parts: int) -> Messages:
    """Return the messages cut into equal parts that may take different ways."""
    chosen = np.repeat(np.arange(len(messages.num_bytes)), num_parts)
    holder_offsets, holders = taken(messages.holder_offsets, messages.holders, chosen)
    receiver_offsets, receivers = taken(messages.receiver_offsets, messages.receivers, chosen)
    return Messages(
        messages.num_bytes[chosen] / num_parts,
        holder_offsets,
        holders,
        receiver_offsets,
        receivers,
        messages.payload[chosen],
    )


def offsets_of(of_row: IntArray, num_rows: int) -> IntArray:
    """Return the offset of each row among entries sorted by row."""
    counts = np.bincount(of_row, minlength=num_rows)
    return np.concatenate(([0], np.cumsum(counts)))


def taken(offsets: IntArray, entries: IntArray, rows: IntArray) -> tuple[IntArray, IntArray]:
    """Return the compressed rows that are chosen, in their order."""
    counts = np.diff(offsets)[rows]
    starts = np.concatenate(([0], np.cumsum(counts)))
    within = np.arange(starts[-1]) - np.repeat(starts[:-1], counts)
    return starts, entries[np.repeat(offsets[rows], counts) + within]
