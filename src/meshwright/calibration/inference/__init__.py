"""Serving held against measurements: rows of requests become jobs, priced as columns."""
