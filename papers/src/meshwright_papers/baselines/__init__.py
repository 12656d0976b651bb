"""Simpler methods of choosing a strategy, kept to be compared with."""
