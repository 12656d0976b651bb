"""Requests that arrive at a rate: workers, queues and the fewest devices that take them."""
