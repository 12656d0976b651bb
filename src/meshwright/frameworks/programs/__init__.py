"""The frameworks, each one table (``NAME.yaml``) and its irregular rules (``NAME.py``)."""

import sys

from meshwright.base.registry import import_siblings

import_siblings(sys.modules[__name__], "frameworks")
