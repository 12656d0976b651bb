"""A plan on its devices: link loads, contention, and a simulation of its step."""
