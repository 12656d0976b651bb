"""Plans of dataflow graphs, told in text and as data."""

from meshwright.report.dataflow.record import plans_record
from meshwright.report.dataflow.text import plans_lines

__all__ = ["plans_lines", "plans_record"]
