"""The evaluation of TEMP (arXiv 2512.14256), figure by figure, from the public pieces."""

import sys

from meshwright.base.registry import import_siblings

import_siblings(sys.modules[__name__])
