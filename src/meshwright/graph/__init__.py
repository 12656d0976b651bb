"""A step as operators with named dims; knows nothing of how it is split."""
