"""Operators under a tensor stream: what travels beside each, and what the rounds cost."""
