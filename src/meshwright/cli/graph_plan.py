"""``plan --graph``: the arguments and the answer of a question about any computation."""

from __future__ import annotations

import argparse

from meshwright.cli.progress import Counter
from meshwright.cli.question import given_numbers
from meshwright.cli.reading import Reading, needed, whole_number

GRAPH_ONLY = ("training", "overlap")
DEGREES = ("tp", "pp", "dp")


def add_graph(parser: argparse.ArgumentParser) -> None:
    """Declare the graph, and what a pass through it is."""
    group = parser.add_argument_group("any computation instead of a model")
    group.add_argument("--graph", metavar="NAME|FILE", help="dlrm-a, fft-4096x4096, a YAML file")
    group.add_argument("--training", action="store_true", help="with the backward pass")
    group.add_argument(
        "--overlap", action="store_true", help="collectives run beside other computation"
    )


def run_graph(reading: Reading, args: argparse.Namespace, top: int) -> int:
    """Search and print."""
    from meshwright.cli.output import show
    from meshwright.dataflow.answer import plans_record
    from meshwright.dataflow.load import load_graph
    from meshwright.dataflow.report import plans_lines
    from meshwright.dataflow.search import calibrated_system, plan_dataflow

    lengths = given_numbers(reading, args, ("seq",), kilo=1024)
    passes = given_numbers(reading, args, ("global_batch",))
    allowed = {
        name: reading.value(_several, f"--{name}", getattr(args, name))
        for name in DEGREES
        if getattr(args, name) is not None
    }
    machine = reading.value(
        needed, "--on", args.on, lambda name: calibrated_system(name, args.calibration)
    )
    graph = reading.value(load_graph, args.graph, tokens=lengths.get("seq"), training=args.training)
    reading.done()
    plans = plan_dataflow(
        graph, machine, num_passes=passes.get("global_batch", 1), optimizer=args.optimizer,
        hides_network=args.overlap, allowed=allowed,
        progress=None if args.json else Counter("degrees"),
    )  # fmt: skip
    lines = plans_lines(graph, machine, plans, top=top)
    show(lines, plans_record(graph, machine, plans, top=top), args.json)
    return 0


def _several(option: str, text: str) -> tuple[int, ...]:
    """Return the whole numbers of a list."""
    return tuple(whole_number(option, part) for part in text.split(","))
