"""Thousands of plans: all combinations of what varies, kept as they come, taken up again."""
