"""The package; its public names stand in ``planner``."""
