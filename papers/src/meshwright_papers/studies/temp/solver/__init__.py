"""How fast plans are found, and what a learned cost model would add: Figs. 5(c) and 21."""

import sys

from meshwright.base.registry import import_siblings

import_siblings(sys.modules[__name__])
