"""Any computation as kernels: where its graph comes from."""
