"""When it happens: flows that share links, computation that waits for them, and timelines."""
