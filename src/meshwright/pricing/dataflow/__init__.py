"""Prices of ways to split the kernels of a dataflow graph over one group of devices."""
