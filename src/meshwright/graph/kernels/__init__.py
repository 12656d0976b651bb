"""Any computation as kernels with named dims, and the tensors between them."""
