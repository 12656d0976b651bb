"""Seconds of single kernels from their shapes, a chip's data sheet and a fitted curve."""
