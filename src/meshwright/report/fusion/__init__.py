"""Fused partitions as text, as data, and as a picture."""

from meshwright.report.fusion.picture import fusion_svg
from meshwright.report.fusion.record import fusion_record
from meshwright.report.fusion.text import fusion_lines

__all__ = ["fusion_lines", "fusion_record", "fusion_svg"]
