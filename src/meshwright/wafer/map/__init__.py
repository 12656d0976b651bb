"""A picture of a grid of devices: who belongs together, and how hot the links are."""
