"""Walks: who holds, computes and sends what, frame by frame, made from the enumerations."""
