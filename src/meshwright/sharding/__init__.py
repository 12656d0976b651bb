"""How work may be split: axes, shardings, the legal space as columns."""
