"""The device that PyTorch runs on here, its clock, and the other processes of the job.

The only place that distinguishes CUDA, ROCm, XPU and CPU.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from meshwright.base.errors import UnsupportedError
from meshwright.spec.measured import Machine

CPU = "cpu"
LIBRARIES = {"cuda": "nccl", "xpu": "xccl", CPU: "gloo"}
"""Library of collectives, by kind of device."""
SAMPLE_S = {CPU: 0.02}
"""A sample on a CPU spans several time slices, so that processes that share a core count so."""
SHORTEST_SAMPLE_S = 1e-3
"""Shortest sample on an accelerator [s]: the clock is exact to a microsecond."""
WAIT = timedelta(minutes=5)


class Device:
    """The device of this process, and its clock."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        found = (
            torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        )
        self.kind: str = CPU if found is None else str(found.type)
        if self.kind not in LIBRARIES:
            known = ", ".join(LIBRARIES)
            raise UnsupportedError(f"PyTorch runs on {self.kind} here; measured are {known}")
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.place = self.kind
        if self.kind != CPU:
            there = torch.accelerator.device_count()
            if self.local_rank >= there:
                message = f"process {self.local_rank} of this host has no device of its {there}"
                raise UnsupportedError(f"{message}; torchrun --nproc-per-node {there}")
            torch.accelerator.set_device_index(self.local_rank)
            self.place = f"{self.kind}:{self.local_rank}"
        self.sample_s = SAMPLE_S.get(self.kind, SHORTEST_SAMPLE_S)

    @property
    def name(self) -> str:
        """Name of the device."""
        if self.kind == CPU:
            return _cpu_name()
        return str(getattr(self.torch, self.kind).get_device_name(self.local_rank))

    def machine(self, ranks: Ranks) -> Machine:
        """Return the machine that this process runs on."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
        if self.kind == CPU:
            pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            memory, units = pages / ranks.per_host, self.torch.get_num_threads()
        else:
            module = getattr(self.torch, self.kind)
            about = module.get_device_properties(self.local_rank)
            memory = about.total_memory
            units = int(getattr(about, "multi_processor_count", 0))
        return Machine(
            device=self.name, kind=self.kind, num_devices=ranks.number,
            devices_per_host=ranks.per_host, memory_bytes=float(memory), num_units=units,
            host_cores=cores or os.cpu_count() or 1, torch=str(self.torch.__version__),
            library=ranks.library,
        )  # fmt: skip

    def synchronize(self) -> None:
        """Wait until the device has done all that was launched."""
        if self.kind != CPU:
            self.torch.accelerator.synchronize()

    def seconds(self, run: Callable[[], object], times: int) -> float:
        """Return the mean time of one of several runs in a row, on the clock of the device [s]."""
        if self.kind == CPU:
            return self.host_seconds(run, times)
        start, end = (self.torch.Event(self.place, enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(times):
            run()
        end.record()
        self.synchronize()
        return float(start.elapsed_time(end)) * 1e-3 / times

    def host_seconds(self, run: Callable[[], object], times: int) -> float:
        """Return the mean time of one of several runs on the host, launches alone [s]."""
        self.synchronize()
        start = time.perf_counter()
        for _ in range(times):
            run()
        taken = time.perf_counter() - start
        self.synchronize()
        return taken / times


def _cpu_name() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    stated = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(stated, "") or platform.processor() or platform.machine() or "CPU"


class Ranks:
    """The processes of the job; one alone where torchrun did not start it."""

    def __init__(self, torch: Any, device: Device) -> None:
        self.torch, self.device = torch, device
        self.number = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0"))
        self.per_host = int(os.environ.get("LOCAL_WORLD_SIZE", str(self.number)))
        self.library, self._control = "", None
        if self.number > 1:
            dist = torch.distributed
            if not dist.is_available():
                raise UnsupportedError("this PyTorch has no torch.distributed; run one process")
            self.library = LIBRARIES[device.kind]
            dist.init_process_group(self.library, timeout=WAIT)
            self._control = dist.new_group(backend="gloo", timeout=WAIT)

    @property
    def is_first(self) -> bool:
        """Whether this process writes for all."""
        return self.rank == 0

    def largest(self, values: Sequence[float]) -> list[float]:
        """Return the largest of each value over all processes, which wait for one another."""
        return self._reduced(values, "MAX")

    def mean(self, values: Sequence[float]) -> list[float]:
        """Return the mean of each value over all processes."""
        return [value / self.number for value in self._reduced(values, "SUM")]

    def _reduced(self, values: Sequence[float], operation: str) -> list[float]:
        if self._control is None:
            return list(values)
        dist = self.torch.distributed
        column = self.torch.tensor(list(values), dtype=self.torch.float64)
        dist.all_reduce(column, getattr(dist.ReduceOp, operation), group=self._control)
        return [float(value) for value in column.tolist()]

    def close(self) -> None:
        """Leave the job."""
        if self._control is not None:
            self.torch.distributed.destroy_process_group()
            self._control = None
