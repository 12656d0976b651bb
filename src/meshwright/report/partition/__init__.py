"""Layers cut into stages: the screen and the picture."""

from meshwright.report.partition.picture import partition_svg
from meshwright.report.partition.text import partition_lines

__all__ = ["partition_lines", "partition_svg"]
