"""A step as operators with named dims, without its splits."""
