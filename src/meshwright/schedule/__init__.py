"""Pipeline orders: closed form of bubble and in-flight, and the order itself; no network."""

import sys

from meshwright.base.registry import import_siblings
from meshwright.schedule.registry import schedules as schedules

import_siblings(sys.modules[__name__], "schedules")
