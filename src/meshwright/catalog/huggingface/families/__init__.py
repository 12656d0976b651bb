"""Families of published models, by kinship; a file in this folder is registered."""
