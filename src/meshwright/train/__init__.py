"""Training a model: which strategies there are, what each costs, the best one and why."""
