"""Walks: tensors held, computed and sent by each member, frame by frame, from the enumerations."""
