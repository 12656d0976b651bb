"""A row of layers cut into stages, each of which fits the memory of a device."""
