"""Where a claim does not follow from Table I: under which declared setting it would."""

import sys

from meshwright.base.registry import import_siblings

import_siblings(sys.modules[__name__])
