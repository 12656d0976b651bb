"""``meshwright show graph NAME|PATH``: the kernels of a computation, and how they may be split."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare which graph."""
    parser.add_argument(
        "graph",
        nargs="?",
        help="catalog name, file, hpl-NxB, fft-AxB or a model; without one, the names",
    )
    parser.add_argument("--tokens", help="length of the sequence of a model (default 2048)")
    parser.add_argument("--training", action="store_true", help="with the backward pass")
    parser.add_argument("--yaml", action="store_true", help="print the graph as a file of a graph")


def run(args: argparse.Namespace) -> int:
    """Print one graph, or the names of the catalog."""
    from meshwright.base.errors import Fault, SpecError
    from meshwright.catalog.graphs.files import graph_names, graph_yaml
    from meshwright.cli.output import show
    from meshwright.cli.reading import whole_number
    from meshwright.dataflow.load import load_graph
    from meshwright.dataflow.report import graph_lines, graph_record
    from meshwright.graph.kernels.declared import to_spec

    if args.graph is None:
        show(graph_names(), list(graph_names()), args.json)
        return 0
    if args.yaml and args.json:
        raise SpecError(Fault("--json", "is of no use with --yaml", "take one of them"))
    tokens = None if args.tokens is None else whole_number("--tokens", args.tokens, kilo=1024)
    graph = load_graph(args.graph, tokens=tokens, training=args.training)
    if args.yaml:
        show([graph_yaml(to_spec(graph)).rstrip()], None, as_json=False)
        return 0
    show(graph_lines(graph), graph_record(graph), args.json)
    return 0
