"""Training on a grid of devices: placement, shared links, a strategy for each operator."""
