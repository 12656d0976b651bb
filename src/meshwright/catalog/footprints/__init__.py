"""Reads measured layers: YAML or JSON with a list of layers, or CSV with a line for each."""

from meshwright.catalog.footprints.reading import load_footprints

__all__ = ["load_footprints"]
