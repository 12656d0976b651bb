"""Memory of measured rows: what they keep, as their sources count it, and the constants of it."""
