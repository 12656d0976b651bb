"""``meshwright show chip NAME|PATH``: rates, memories, power and price, each with its source."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare which chip."""
    parser.add_argument("chip", nargs="?", help="catalog name or YAML file; without one, the names")


def run(args: argparse.Namespace) -> int:
    """Print one chip, or the names of the catalog."""
    from meshwright.catalog.chips import chip_names, load_chip
    from meshwright.cli.show_model import show
    from meshwright.report.declared_values import declaration_lines, declaration_record

    if args.chip is None:
        show(chip_names(), list(chip_names()), args.json)
        return 0
    chip = load_chip(args.chip)
    about = {"name": chip.name, "vendor": chip.vendor}
    title = f"{chip.name} of {chip.vendor}"
    record = declaration_record(chip, about, chip.sources)
    show(tuple(declaration_lines(chip, title, chip.sources)), record, args.json)
    return 0
