"""Why the paper streams tensors: Figs. 4, 5, 7 and 9, before its own evaluation begins."""

import sys

from meshwright.base.registry import import_siblings

import_siblings(sys.modules[__name__])
