"""``meshwright show model NAME|PATH``: counts, dims, operators and conventions of a model."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare which model."""
    parser.add_argument(
        "model",
        nargs="?",
        help="catalog name, Hugging Face id, config.json or its folder; without one, the names",
    )


def run(args: argparse.Namespace) -> int:
    """Print one model, or the names of the catalog."""
    from meshwright.catalog.models import model_names

    if args.model is None:
        show(model_names(), list(model_names()), args.json)
        return 0
    return show_model(args.model, as_json=args.json)


def show_model(name_or_path: str, *, as_json: bool) -> int:
    """Print a model as text or as JSON, and return the exit status."""
    from meshwright.catalog.models import load_model
    from meshwright.graph.transformer import build_graph
    from meshwright.report.model import model_lines, model_record

    model = load_model(name_or_path)
    record = model_record(model, build_graph(model))
    show(tuple(model_lines(model, record)), record, as_json)
    return 0


def show(lines: tuple[str, ...], data: object, as_json: bool) -> None:
    """Print lines for a reader, or data for a program."""
    if as_json:
        import json

        print(json.dumps(data, indent=2))
    else:
        print("\n".join(lines))
