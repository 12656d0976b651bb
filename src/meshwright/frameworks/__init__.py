"""Plans as files that frameworks read: one target per file, with its limits."""

from meshwright.frameworks import targets as targets
from meshwright.frameworks.registry import export as export
from meshwright.frameworks.registry import rendered as rendered
