"""``meshwright fuse GRAPH --on CHIP``: kernels fused into partitions that run on one chip."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from meshwright.cli.progress import Counter
from meshwright.cli.question import given_numbers, refuse_idle
from meshwright.cli.reading import Reading, needed, one_of, picture_file, quantity

if TYPE_CHECKING:
    from meshwright.dataflow.fusion.answer import FusionQuestion


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the graph, the chip, and what its group shares."""
    parser.add_argument("graph", help="catalog name, file, hpl-NxB, fft-AxB or a model")
    parser.add_argument("--on", metavar="CHIP", help="catalog name or YAML file: SN10, H100")
    parser.add_argument("--tp", metavar="N", help="chips over which kernels are split (1)")
    parser.add_argument("--pp", metavar="N", help="stages over which repetitions are spread (1)")
    parser.add_argument("--chips", metavar="N", help="tp x pp, every division of it tried")
    parser.add_argument("--tile", metavar="N", help="length of a tile (the best power of two)")
    parser.add_argument("--micro-batch", metavar="N", help="sequences that pass at once (the best)")
    parser.add_argument("--link", metavar="RATE", help="one direction of a link between chips")
    parser.add_argument("--tokens", help="length of the sequence of a model (default 2048)")
    parser.add_argument("--training", action="store_true", help="with the backward pass")
    parser.add_argument(
        "--kernel-by-kernel", action="store_true", help="no fusion: one kernel after the other"
    )
    parser.add_argument(
        "--rules", metavar="own|dfmodel", default="own",
        help="dfmodel: the rules and the chips of that peer",
    )  # fmt: skip
    parser.add_argument("--picture", metavar="FILE.svg", help="draw cores over time")


def run(args: argparse.Namespace) -> int:
    """Fuse, draw and print."""
    from meshwright.cli.output import show, write_whole
    from meshwright.dataflow.fusion.answer import fusion_to_data
    from meshwright.dataflow.fusion.fuse import fuse_graph
    from meshwright.dataflow.fusion.picture import fusion_svg
    from meshwright.dataflow.fusion.report import fusion_lines

    reading = Reading()
    path = reading.value(picture_file, args.picture) if args.picture else None
    chips = given_numbers(reading, args, ("chips",)).get("chips")
    if chips is not None:
        refuse_idle(reading, args, ("tp", "pp"), "is chosen where --chips is given")
    question = reading.value(_question, args)
    reading.done()
    answer = fuse_graph(
        question, chips=chips, progress=None if args.json else Counter("tiles and divisions")
    )
    if path is not None:
        write_whole(path, fusion_svg(answer))
    show(fusion_lines(answer), fusion_to_data(answer), args.json)
    return 0


def _question(args: argparse.Namespace) -> FusionQuestion:
    """Return what the options ask.

    Raises
    ------
    SpecError
        Every option that is wrong.
    """
    from meshwright.dataflow.fusion.answer import FusionQuestion
    from meshwright.dataflow.fusion.fuse import target_named
    from meshwright.dataflow.fusion.problem import RULES
    from meshwright.dataflow.load import load_graph

    reading = Reading()
    rules = reading.value(one_of, "--rules", args.rules, RULES)
    link = reading.value(quantity, "--link", args.link, "bytes_per_s") if args.link else None
    numbers = given_numbers(reading, args, ("tp", "pp", "tile", "micro_batch"))
    lengths = given_numbers(reading, args, ("tokens",), kilo=1024)
    reading.done()
    graph = reading.value(load_graph, args.graph, training=args.training, **lengths)
    target = reading.value(needed, "--on", args.on, lambda name: target_named(name, rules, link))
    reading.done()
    return FusionQuestion(
        graph=graph,
        target=target,
        rules=rules,
        runs_by_kernel=args.kernel_by_kernel,
        **numbers,
    )
