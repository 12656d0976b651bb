"""The one chain from strategy to price."""
