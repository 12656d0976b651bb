"""Ways to split the kernels of a dataflow graph."""
