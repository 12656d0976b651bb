"""A user's own machine measured: kernels, memory, network, launches, a short step."""
