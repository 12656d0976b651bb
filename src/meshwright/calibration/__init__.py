"""Predictions held against published measurements: rows, questions, errors, fits."""
