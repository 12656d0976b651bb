"""Fused partitions as text and as a picture."""

from meshwright.report.fusion.picture import fusion_svg
from meshwright.report.fusion.text import fusion_lines

__all__ = ["fusion_lines", "fusion_svg"]
