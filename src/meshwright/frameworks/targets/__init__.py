"""The frameworks that a plan can be written for, one per file."""

import sys

from meshwright.base.registry import import_siblings

import_siblings(sys.modules[__name__], "exporters")
