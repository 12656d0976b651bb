"""Any computation as kernels and the tensors between them: one path for all workloads."""
