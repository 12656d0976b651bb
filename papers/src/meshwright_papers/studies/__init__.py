"""One published figure or question per file, rebuilt from the public pieces."""

import sys

from meshwright.base.registry import import_siblings
from meshwright_papers.studies.study import collection as collection

import_siblings(sys.modules[__name__])
