"""A plan executed: for real on a few processes, dry at its full size. Needs PyTorch."""
