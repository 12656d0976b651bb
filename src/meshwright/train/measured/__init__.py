"""Factors of a machine from measured jobs, and the changes and trials that follow."""
