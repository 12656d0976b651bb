"""Starts and watches the processes of a run, or joins those of torchrun; errors name the process.

A member is a function of its task, its rank, the address of the group, and a callback for the
number of finished steps. The first member returns the report.
"""

from __future__ import annotations

import os
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import connection, get_context
from typing import Any

import torch.distributed as dist

from meshwright.base.errors import Fault, MeshwrightError, SpecError

HOST = "127.0.0.1"
GRACE_S = 2.0
"""Longest wait for the exit of a process that has closed its pipe, and for the cause of a lost
connection [s]."""
CAUSE_S = 0.2
"""Wait for failures of other processes before the cause is determined [s]."""
LOST = ("Connection", "connection", "closed", "Broken pipe")
"""Words in the errors of processes that lost the connection to another one."""
Member = Callable[[Any, int, str, Callable[[int], None]], Any]


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as one:
        one.bind((HOST, 0))
        return int(one.getsockname()[1])


def check_port(port: int) -> None:
    """Refuse a port that is in use.

    Raises
    ------
    SpecError
        The port is in use.
    """
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((HOST, port))
        except OSError:
            raise _busy(port) from None


def _is_lost(text: str) -> bool:
    """Return whether a process failed since it lost the connection to another one."""
    return any(word in text for word in LOST)


def _busy(port: int) -> SpecError:
    return SpecError(Fault("--port", f"port {port} is in use, by another run perhaps",
                           "another port, or none"))  # fmt: skip


def is_of_torchrun() -> bool:
    """Return whether torchrun or another launcher has started this process."""
    return "RANK" in os.environ or "WORLD_SIZE" in os.environ


def join_torchrun(member: Member, orders: Any, needed: int) -> Any:
    """Run as one of the processes that torchrun started, and return what the member returns.

    Raises
    ------
    SpecError
        Variables of torchrun are missing or no numbers, or its processes are not those needed.
    """
    faults = []
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        found = os.environ.get(name)
        if found is None:
            message = "is not set, but RANK or WORLD_SIZE is"
            faults.append(Fault(name, message, "start with torchrun"))
        elif name != "MASTER_ADDR" and not found.isdigit():
            faults.append(Fault(name, f"found {found}, expected a whole number"))
        elif name == "WORLD_SIZE" and int(found) != needed:
            message = f"found {found}, the plan as run has {needed}"
            faults.append(Fault(name, message, f"torchrun --nproc-per-node {needed}"))
    if faults:
        raise SpecError(faults)
    try:
        return member(orders, int(os.environ["RANK"]), "env://", lambda done: None)
    except dist.DistNetworkError as error:
        port = os.environ["MASTER_PORT"]
        message = f"no process group at port {port}: {str(error).splitlines()[0]}"
        raise SpecError(Fault("MASTER_PORT", message, "another port")) from None


def spawn(
    member: Member, orders: Any, names: Sequence[str], port: int, count: Callable[[int], None]
) -> Any:
    """Start a process for each name on this machine, and return what the first one returns.

    Raises
    ------
    SpecError
        The port is in use.
    MeshwrightError
        A process failed or was killed; the message has its name.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload([member.__module__])
    ends, processes = [], []
    try:
        for rank in range(len(names)):
            here, there = context.Pipe(duplex=False)
            given = (member, orders, rank, f"tcp://{HOST}:{port}", there)
            process = context.Process(target=_work, args=given, daemon=True)
            process.start()
            there.close()
            ends.append(here)
            processes.append(process)
        return _watch(names, processes, ends, port, count)
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.join()


def _work(member: Member, orders: Any, rank: int, where: str, there: Any) -> None:
    """Run a member in its own process; it sends step counts, its report, or its error."""
    warnings.simplefilter("ignore")
    try:
        found = member(orders, rank, where, there.send)
        if found is not None:
            there.send(found)
    except BaseException as error:
        with suppress(OSError):
            text = "".join(traceback.format_exception(error)[-1:]).strip()
            there.send(f"failed: {text}")
        sys.exit(1)


def _watch(
    names: Sequence[str], processes: list[Any], ends: list[Any], port: int,
    count: Callable[[int], None],
) -> Any:  # fmt: skip
    """Return the report of the first process; a failed process ends the run."""
    rank_of = {end: rank for rank, end in enumerate(ends)}
    failed: dict[int, str] = {}
    done = 0
    while rank_of and not failed:
        ready: list[Any] = connection.wait(list(rank_of))
        for end in ready:
            rank = rank_of[end]
            try:
                said = end.recv()
            except EOFError:
                del rank_of[end]
                processes[rank].join(GRACE_S)
                if processes[rank].exitcode:
                    failed[rank] = f"ended with exit code {processes[rank].exitcode}"
                continue
            if isinstance(said, str):
                failed[rank] = said
            elif not isinstance(said, int):
                return said
            elif rank == 0:
                done = said
                count(done)
    ends_s = time.monotonic() + (GRACE_S if _is_lost(next(iter(failed.values()))) else CAUSE_S)
    left = [end for end, rank in rank_of.items() if rank not in failed]
    while left and (wait_s := ends_s - time.monotonic()) > 0:
        others: list[Any] = connection.wait(left, wait_s)
        for end in others:
            try:
                if isinstance(said := end.recv(), str):
                    failed[rank_of[end]] = said
                    ends_s = 0.0
            except (EOFError, OSError):
                left.remove(end)
                processes[rank_of[end]].join(GRACE_S)
    codes = [process.exitcode or 0 for process in processes]
    failed |= {at: f"was killed by signal {-code}" for at, code in enumerate(codes) if code < 0}
    if any("EADDRINUSE" in text for text in failed.values()):
        raise _busy(port)
    # The cause is a process that was killed; else one with an error of its own.
    rank = min(failed, key=lambda at: (codes[at] >= 0, _is_lost(failed[at])))
    raise MeshwrightError(f"{names[rank]} {failed[rank]}; the run ended after step {done}")
