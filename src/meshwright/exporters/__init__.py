"""Plans as files that frameworks read: one target per file, and what each cannot express."""

from meshwright.exporters import targets as targets
from meshwright.exporters.registry import Exporter as Exporter
from meshwright.exporters.registry import exporters as exporters
from meshwright.exporters.registry import rendered as rendered
from meshwright.exporters.writing import write as write
