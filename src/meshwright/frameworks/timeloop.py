"""A chip and the products of a plan as inputs of Timeloop and Accelergy, format 0.4.

``architecture.yaml`` is the chip: its memories from far to near, the mesh of its cores, the array
of each, and a multiply-add. ``problem-N.yaml`` is a product as it runs on one device.
``ERT.yaml``, the energy of each access, is written where the chip states all of them; otherwise
Accelergy estimates them.

Sources, read on 2026-11-27: Accelergy-Project/timeloopfe, ``timeloopfe/v4/arch.py`` (classes of
components, attributes of storage, ``spatial``), ``problem.py`` and ``ert.py``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from meshwright.base.errors import Fault, SpecError
from meshwright.cost.operator import stated_rate
from meshwright.dataflow.answer import SplitPlan
from meshwright.dataflow.energy import local_kernels
from meshwright.dataflow.roofline import CalibratedSystem, product_shape
from meshwright.graph.kernels.graph import DataflowGraph
from meshwright.graph.kernels.kernel import Unit
from meshwright.spec.system import ChipSpec, MemoryLevel
from meshwright.sram.question import EXTERNAL

WORD_BITS = 16
PICOJOULES = 1e12
TOP = "system_top_level"
"""Name that the front end gives to the root of an architecture."""
Shape = tuple[int, int, int, int]
"""Count, rows, inner and columns of a product."""


def timeloop_files(
    graph: DataflowGraph, machine: CalibratedSystem, plan: SplitPlan
) -> dict[str, str]:
    """Return the files of a chip and of the products that a device of a plan runs, by name.

    Raises
    ------
    SpecError
        When the chip does not state the arrays of its cores.
    """
    chip = machine.spec.chip
    if chip.num_cores is None or chip.array_rows is None or chip.array_columns is None:
        fix = "SN10, TEMP-die, or a chip file with num_cores, array_rows and array_columns"
        message = f"{chip.name} states no arrays of its cores"
        raise SpecError(Fault("--timeloop", message, fix))
    files = {"architecture.yaml": architecture(chip)}
    if (energies := reference_table(chip)) is not None:
        files["ERT.yaml"] = energies
    for number, (shape, names) in enumerate(products(graph, machine, plan).items()):
        files[f"problem-{number}.yaml"] = problem(shape, names)
    return files


def products(
    graph: DataflowGraph, machine: CalibratedSystem, plan: SplitPlan
) -> dict[Shape, list[str]]:
    """Return the kernels of each product of a device, by its shape."""
    found: dict[Shape, list[str]] = {}
    for kernel, sizes in local_kernels(graph, machine, plan):
        if kernel.unit is Unit.MATRIX:
            count, rows, inner, columns = (math.ceil(n) for n in product_shape(kernel, sizes))
            found.setdefault((count, rows, inner, columns), []).append(kernel.name)
    return found


def architecture(chip: ChipSpec) -> str:
    """Return the memories and cores of a chip; rates are words of 16 bits in a cycle."""
    cores, rows, columns = chip.num_cores or 1, chip.array_rows or 1, chip.array_columns or 1
    across = next(n for n in range(math.isqrt(cores), 0, -1) if cores % n == 0)
    cycle_s = 1.0 / clock_hz(chip)
    lines = ["architecture:", "  version: 0.4", "  nodes:"]
    lines += _node("Container", "chip", {}, {"global_cycle_seconds": f"{cycle_s:.6e}"})
    for memory in reversed(chip.memories):
        lines += _node("Component", memory.name, {"class": _class(memory)}, _storage(memory, chip))
    mesh = f"{{meshX: {across}, meshY: {cores // across}}}"
    lines += _node("Container", "core", {"spatial": mesh}, {})
    array = f"{{meshX: {columns}, meshY: {rows}}}"
    macs = {"class": "fpmac", "spatial": array}
    lines += _node("Component", "mac", macs, {"datawidth": str(WORD_BITS)})
    return "\n".join(lines) + "\n"


def clock_hz(chip: ChipSpec) -> float:
    """Return the clock of the arrays [Hz]; where none is stated, that at which they reach the peak.

    rate / (2 cores rows columns): 320 TFLOP/s on 640 cores of 32 x 6 are 1.302 GHz.
    """
    macs = (chip.num_cores or 1) * (chip.array_rows or 1) * (chip.array_columns or 1)
    return chip.clock_hz or stated_rate(chip, chip.word) / (2.0 * macs)


def reference_table(chip: ChipSpec) -> str | None:
    """Return the energy of each access [pJ]; None where the chip does not state all of them."""
    per_flop = chip.energy_j_per_flop
    if per_flop is None or any(memory.energy_j_per_byte is None for memory in chip.memories):
        return None
    num_macs = (chip.num_cores or 1) * (chip.array_rows or 1) * (chip.array_columns or 1)
    tables: list[tuple[str, tuple[str, ...], float]] = [
        (f"{memory.name}[1..1]", ("read", "write", "update"),
         (memory.energy_j_per_byte or 0.0) * WORD_BITS / 8)
        for memory in reversed(chip.memories)
    ]  # fmt: skip
    tables.append((f"mac[1..{num_macs}]", ("compute",), 2.0 * per_flop))
    lines = ["ERT:", "  version: 0.4", "  tables:"]
    for name, actions, energy_j in tables:
        lines += [f"  - name: {TOP}.{name}", "    actions:"]
        for action, energy in [*((a, energy_j) for a in actions), ("leak", 0.0)]:
            lines += [f"    - name: {action}", "      arguments: {}",
                      f"      energy: {PICOJOULES * energy:.6g}"]  # fmt: skip
    return "\n".join(lines) + "\n"


def problem(shape: Shape, names: Sequence[str]) -> str:
    """Return a product: B of them, M rows, K inner, N columns."""
    count, rows, inner, columns = shape
    lines = [f"# {', '.join(names)}", "problem:", "  version: 0.4"]
    lines += ["  instance:", f"    B: {count}", f"    M: {rows}", f"    K: {inner}",
              f"    N: {columns}", "  shape:", "    name: product",
              "    dimensions: [B, M, K, N]", "    data_spaces:"]  # fmt: skip
    for name, dims in (("Inputs", "BMK"), ("Weights", "BKN"), ("Outputs", "BMN")):
        projection = ", ".join(f"[[{dim}]]" for dim in dims)
        lines += [f"    - name: {name}", f"      projection: [{projection}]"]
    return "\n".join([*lines, "      read_write: true"]) + "\n"


def _class(memory: MemoryLevel) -> str:
    return "DRAM" if memory.name in EXTERNAL else "SRAM"


def _storage(memory: MemoryLevel, chip: ChipSpec) -> dict[str, str]:
    """Return the attributes of a memory: entries of a word, and words in a cycle."""
    found = {"width": str(WORD_BITS), "datawidth": str(WORD_BITS),
             "depth": str(int(memory.capacity_bytes * 8 / WORD_BITS))}  # fmt: skip
    if memory.bandwidth_bytes_per_s is not None:
        words = memory.bandwidth_bytes_per_s * 8 / WORD_BITS / clock_hz(chip)
        found["shared_bandwidth"] = f"{words:.6g}"
    return found


def _node(
    kind: str, name: str, fields: Mapping[str, str], attributes: Mapping[str, str]
) -> Iterator[str]:
    yield f"  - !{kind}"
    yield f"    name: {name}"
    yield from (f"    {key}: {value}" for key, value in fields.items())
    if attributes:
        yield "    attributes:"
        yield from (f"      {key}: {value}" for key, value in attributes.items())
