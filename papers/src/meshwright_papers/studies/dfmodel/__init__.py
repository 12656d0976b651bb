"""Claims of DFModel (arXiv 2412.16432) on its mappings, its search and its predictions."""

import sys

from meshwright.base.registry import import_siblings

import_siblings(sys.modules[__name__])
