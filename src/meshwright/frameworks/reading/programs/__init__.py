"""Programs with options that are read, one per file."""

import sys

from meshwright.base.registry import import_siblings

import_siblings(sys.modules[__name__], "readers")
