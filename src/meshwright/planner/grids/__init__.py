"""Plans on a grid of devices: placed, drawn, simulated."""
