"""A picture of a grid of devices: who belongs together, and how hot the links are."""

from meshwright.report.wafer_map.picture import WaferMap as WaferMap
from meshwright.report.wafer_map.svg import wafer_svg as wafer_svg
from meshwright.report.wafer_map.text import wafer_text as wafer_text
