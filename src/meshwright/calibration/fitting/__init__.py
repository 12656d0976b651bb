"""Few constants fitted to many rows, with each source left out in turn."""
