"""Any computation over chips and on a chip: kernels split, fused, staged; price, search, answer."""
