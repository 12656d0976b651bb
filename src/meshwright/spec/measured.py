"""Measurements on a machine: each kernel with its shape and times, and where it ran."""

from __future__ import annotations

from typing import Literal

from meshwright.spec.declaration import Bytes, Count, CountOrZero, Declaration, Seconds
from meshwright.spec.system import DType

KernelName = Literal[
    "matmul", "copy", "triad", "update",
    "norm_forward", "norm_backward", "activation_forward", "activation_backward", "sum_forward",
    "eager_norm_forward", "eager_rotary_forward", "eager_gated_forward",
    "attention_forward", "attention_backward", "launch",
    "send", "all_reduce", "all_gather", "reduce_scatter", "all_to_all",
    "matmuls_alone", "matmuls_overlapped", "step",
]  # fmt: skip


class Timing(Declaration):
    """One kernel of one shape: quartiles over several samples, each long enough for the clock.

    All devices run it at the same time. The time of a collective is that of its last member, that
    of anything else the mean over the devices.
    """

    kernel: KernelName
    dtype: DType
    shape: tuple[Count, ...]
    """Rows, inner size and columns of products; batch, heads, length and head size of attention;
    elements of copies, elementwise kernels and updates; bytes of collectives, as
    :class:`~meshwright.spec.collective.CollectiveKind` counts them; for ``matmuls_alone`` and
    ``matmuls_overlapped`` the shape of a product, the number of products, and the bytes of the
    all-reduce; for a step the layers, the tokens of a sequence and the sequences of a device."""
    group: Count = 1
    """Members of a collective."""
    stride: Count = 1
    """Ranks from member to member."""
    median_s: Seconds
    p25_s: Seconds
    p75_s: Seconds
    num_samples: Count


class Machine(Declaration):
    """Machine on which a run was measured."""

    device: str
    """As its driver calls it."""
    kind: str
    """As PyTorch calls it: cuda (ROCm as well), xpu, cpu."""
    num_devices: Count
    """Processes, each with one device."""
    devices_per_host: Count
    memory_bytes: Bytes
    """Memory of one device."""
    num_units: CountOrZero = 0
    """Multiprocessors of a GPU, threads of a process on a CPU; 0: not known."""
    host_cores: Count
    """Cores of a host, which all its processes share."""
    torch: str
    library: str = ""
    """Library of collectives: nccl, gloo; empty: one process."""


class Measured(Declaration):
    """All rows of one run of ``meshwright measure``."""

    machine: Machine
    taken_s: Seconds
    left_out: tuple[str, ...] = ()
    """Kernels that the machine cannot run, or for which there was no time."""
    unexplained: float | None = None
    """80th percentile of |ln(formula / measured)| over products and attention, with the
    constants."""
    rows: tuple[Timing, ...]

    def of(self, *kernels: str) -> list[Timing]:
        """Return the rows of some kernels, in the order in which they ran."""
        return [row for row in self.rows if row.kernel in kernels]
