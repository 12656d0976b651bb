"""Units, arrays, registries and errors: no domain knowledge."""
