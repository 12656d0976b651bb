"""Which cut of a row of layers, in how many groups, on how many replicas; else what would help."""
