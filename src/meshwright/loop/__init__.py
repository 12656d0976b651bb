"""One step of reinforcement learning: rollout, log-probabilities, training and resharding."""
