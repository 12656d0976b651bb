"""Reads and checks files into declarations; holds no formula."""
