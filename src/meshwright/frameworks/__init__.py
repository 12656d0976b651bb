"""Frameworks: their files are read and written by one table each, with its limits."""

from meshwright.frameworks import programs as programs
from meshwright.frameworks.registry import export as export
from meshwright.frameworks.registry import rendered as rendered
