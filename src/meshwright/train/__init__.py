"""Training a model: its strategies, the cost of each, the best one and the reasons."""
