"""Physical networks: nodes and directed links, one kind of network in each file."""
