"""Graphs from files and from other frameworks: read and checked, or written, in one format."""
