"""Views of the answers about training: each in the module of the name of its answer's module."""
