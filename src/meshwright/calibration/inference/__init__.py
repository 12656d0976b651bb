"""Serving held against measurements: rows of requests become questions, priced as columns."""
