"""Paths and cycles of neighbouring devices: through blocks, through what faults have left."""
