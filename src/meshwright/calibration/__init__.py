"""Predictions held against published measurements: rows, jobs, errors, fits."""
