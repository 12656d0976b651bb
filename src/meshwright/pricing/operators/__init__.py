"""Prices of operators that each have a strategy of their own, and of what lies between them."""
