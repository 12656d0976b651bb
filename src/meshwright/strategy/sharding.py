"""Communication derived from shardings: the four-case rule on named dims."""
