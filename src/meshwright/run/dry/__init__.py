"""Dry runs: a whole step of one rank at its true size, on fake ranks and fake tensors."""
