"""One published figure or question per file, rebuilt from the public pieces."""

import sys

from meshwright.base.registry import import_siblings
from meshwright.studies.registry import studies as studies

import_siblings(sys.modules[__name__], "studies")
