"""The files of a program: a trace for each rank, and the ranks of the groups."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from meshwright.frameworks.chakra.step_program import StepProgram
from meshwright.frameworks.chakra.wire import encoded_trace

PREFIX = "step"
"""Traces are named by it, the rank and ``et``."""
GROUPS = "comm_groups.json"


class TraceFiles(Mapping[str, bytes]):
    """Content of each file by name; a trace is made when it is asked for, as all may be large."""

    def __init__(self, program: StepProgram) -> None:
        self._program = program
        self._groups = {str(name): members for name, members in program.groups.items()}
        self._ranks = {f"{PREFIX}.{rank}.et": rank for rank in range(program.num_ranks)}

    def __getitem__(self, name: str) -> bytes:
        if name == GROUPS:
            return (json.dumps(self._groups, indent=1) + "\n").encode()
        return b"".join(encoded_trace(self._program.nodes(self._ranks[name])))

    def __iter__(self) -> Iterator[str]:
        yield GROUPS
        yield from self._ranks

    def __len__(self) -> int:
        return len(self._ranks) + 1
