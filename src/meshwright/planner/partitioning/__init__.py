"""Layers cut into stages that fit a level of memory."""
