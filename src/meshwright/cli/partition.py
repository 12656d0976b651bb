"""``meshwright partition MODEL --on SYSTEM``: layers cut into stages that fit SRAM or a cache."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from meshwright.cli.progress import Counter
from meshwright.cli.question import add_calibration, given_numbers, refuse_idle
from meshwright.cli.reading import (
    Reading,
    needed,
    one_of,
    picture_file,
    quantity,
    whole_number,
)
from meshwright.cli.serving import precision_of

if TYPE_CHECKING:
    from meshwright.spec.system import SystemSpec
    from meshwright.spec.workload import Workload
    from meshwright.sram.answer import PartitionPlan
    from meshwright.sram.partition import Cut

OBJECTIVES = ("count", "balance", "time")
MODEL_ONLY = ("batch", "seq", "prefill", "training", "groups", "precision", "weights", "kv_cache",
              "optimizer", "ep")  # fmt: skip
"""Options that measured layers answer themselves."""
CUT_FIELDS = {"tp": "tensor_degree", "ep": "expert_degree", "groups": "num_groups"}
"""What the numbers of devices and groups are called of a cut."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the layers, the devices, the workload and the objective."""
    parser.add_argument("model", nargs="?", help="catalog name, Hugging Face id or config.json")
    parser.add_argument("--layers", metavar="FILE", help="measured layers: YAML, JSON or CSV")
    parser.add_argument("--on", metavar="SYSTEM", help="4xWSE-3, 64xGroq-LPU, a YAML file")
    parser.add_argument("--level", metavar="NAME", help="memory that holds the layers (nearest)")
    parser.add_argument("--capacity", metavar="BYTES", help="room of a device, such as 230MB")
    parser.add_argument("--objective", metavar="|".join(OBJECTIVES), help="of the cut (balance)")
    parser.add_argument("--batch", metavar="N", help="sequences in flight, or of a step (1)")
    parser.add_argument("--seq", metavar="TOKENS", help="context, prompt or sequence; 4k is 4096")
    parser.add_argument("--groups", metavar="N", help="groups of the batch (the best number)")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--prefill", action="store_true", help="prompts instead of decode")
    kind.add_argument("--training", action="store_true", help="forward and backward, with state")
    parser.add_argument("--precision", metavar="TYPE", help="type of the linear layers (bf16)")
    parser.add_argument("--weights", metavar="TYPE", help="type of the resident weights")
    parser.add_argument("--kv-cache", metavar="TYPE", help="type of the KV cache")
    parser.add_argument("--optimizer", metavar="NAME", help="bytes per parameter: show optimizer")
    parser.add_argument("--tp", metavar="N", help="devices that split each layer")
    parser.add_argument("--ep", metavar="N", help="of them, over how many whole experts spread")
    parser.add_argument("--picture", metavar="FILE.svg", help="draw the stages")
    add_calibration(parser)


def run(args: argparse.Namespace) -> int:
    """Cut, draw and print."""
    from meshwright.cli.output import show, write_whole
    from meshwright.sram.answer import partition_to_data
    from meshwright.sram.picture import partition_svg
    from meshwright.sram.report import partition_lines

    reading = Reading()
    path = reading.value(picture_file, args.picture) if args.picture else None
    if (args.model is None) == (args.layers is None):
        reading.fault("MODEL", "name either a model or a file with --layers")
        reading.done()
    plan = _measured(reading, args) if args.layers else _modelled(reading, args)
    if path is not None:
        write_whole(path, partition_svg(plan))
    show(partition_lines(plan), partition_to_data(plan), args.json)
    return 0 if plan.fits else 3


def _modelled(reading: Reading, args: argparse.Namespace) -> PartitionPlan:
    """Return the cut of a model."""
    from meshwright.catalog.models import load_model
    from meshwright.catalog.systems import load_system
    from meshwright.sram.partition import partition

    model = reading.value(load_model, args.model)
    system = reading.value(needed, "--on", args.on, load_system)
    cut = reading.value(_cut, args)
    workload = reading.value(_workload, args, system)
    reading.done()
    return partition(
        model, system, workload, cut, calibration=args.calibration, command=_command(),
        progress=None if args.json else Counter("batches or ways out"),
    )  # fmt: skip


def _measured(reading: Reading, args: argparse.Namespace) -> PartitionPlan:
    """Return the cut of measured layers."""
    from meshwright.catalog.footprints.reading import load_footprints
    from meshwright.catalog.systems import load_system
    from meshwright.sram.partition import partition_measured

    refuse_idle(reading, args, MODEL_ONLY, "is of use with a model only")
    if args.on is None and args.capacity is None:
        reading.fault("--capacity", "is needed", "or --on SYSTEM")
    if args.level is not None and (args.on is None or args.capacity is not None):
        reading.fault("--level", "is of use with --on and without --capacity")
    file = reading.value(load_footprints, args.layers)
    system = reading.value(load_system, args.on) if args.on else None
    cut = reading.value(_cut, args)
    reading.done()
    return partition_measured(file, cut, system, calibration=args.calibration, command=_command())


def _command() -> str:
    return " ".join(["meshwright", *sys.argv[1:]])


def _cut(args: argparse.Namespace) -> Cut:
    """Return what the options say about the cut.

    Raises
    ------
    SpecError
        Every one that is wrong.
    """
    from meshwright.sram.partition import Cut

    reading = Reading()
    found: dict[str, Any] = {"level": args.level}
    if args.objective is not None:
        found["objective"] = reading.value(one_of, "--objective", args.objective, OBJECTIVES)
    if args.capacity is not None:
        found["capacity_bytes"] = reading.value(quantity, "--capacity", args.capacity, "bytes")
    numbers = given_numbers(reading, args, CUT_FIELDS)
    reading.done()
    found |= {CUT_FIELDS[name]: number for name, number in numbers.items()}
    return Cut(**found)


def _workload(args: argparse.Namespace, system: SystemSpec) -> Workload:
    """Return what passes through the layers.

    Raises
    ------
    SpecError
        Every option that is missing or wrong.
    """
    from meshwright.catalog.workloads import load_optimizer
    from meshwright.spec.workload import Decode, Prefill, SoftwareStack
    from meshwright.train.question import training

    reading = Reading()
    idle = ("weights", "kv_cache") if args.training else ("optimizer",)
    refuse_idle(reading, args, idle, "is of no use here")
    batch = reading.value(whole_number, "--batch", args.batch or "1")
    length = reading.value(needed, "--seq", args.seq, _length)
    precision = reading.value(precision_of, args)
    optimizer = reading.value(load_optimizer, args.optimizer) if args.optimizer else None
    reading.done()
    software = SoftwareStack(cuda_graphs=True)
    shared = {"precision": precision, "software": software}
    if args.training:
        return training(
            system, global_batch_size=batch, sequence_length=length, optimizer=optimizer, **shared
        )
    if args.prefill:
        return Prefill(batch_size=batch, prompt_length=length, **shared)
    return Decode(batch_size=batch, context_length=length, **shared)


def _length(text: str) -> int:
    return whole_number("--seq", text, kilo=1024)
