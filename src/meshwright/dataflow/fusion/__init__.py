"""Kernels fused into partitions that run on a chip one after the other."""
