"""Modules for devices, files and data that parsers import but do not need."""

import importlib.abc
import importlib.machinery
import sys
from unittest.mock import MagicMock


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds packages of some names, whatever is asked of them."""

    def __init__(self, names):
        self.names = tuple(names)

    def find_spec(self, name, path=None, target=None):
        """Return a package for a name that is absent here."""
        if name.startswith(self.names):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        """Return a module that has any name."""
        module = MagicMock(name=spec.name)
        module.__path__, module.__spec__, module.__name__ = [], spec, spec.name
        module.__version__ = "2.0.0"
        return module

    def exec_module(self, module):
        """Run nothing."""


def take_as_there(*names):
    """Let modules of these names be imported, unless they are there."""
    sys.meta_path.append(Absent(names))
