"""What happens on links: where ranks go, which way messages take, bounds, faults, simulation."""
