"""Answers about single entries: models, systems, networks, collectives, and their walks."""
