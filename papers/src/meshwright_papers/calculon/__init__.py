"""Training plans under the published assumptions of a peer tool, Calculon 0.1.0.

An oracle for exact search counts and for speed, and one side of the parity table. Nothing here is
how meshwright itself prices a plan.
"""
