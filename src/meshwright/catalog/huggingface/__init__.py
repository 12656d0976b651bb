"""Reads a Hugging Face ``config.json`` into a model, without ``transformers``.

One small file per family stands in ``families``; ``read.read_config`` finds the one that fits.
"""
