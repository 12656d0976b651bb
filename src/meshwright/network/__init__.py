"""The network: placement of ranks, routes of messages, bounds, faults, simulation."""
