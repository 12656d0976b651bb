"""Operators as kernels, by the kind of their arithmetic."""
