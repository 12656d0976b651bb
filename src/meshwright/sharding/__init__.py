"""Splits of work: axes, shardings, and the legal space as columns."""
