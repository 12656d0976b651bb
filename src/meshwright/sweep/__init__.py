"""Thousands of plans: all combinations of the varied fields, stored as they come, resumable."""
