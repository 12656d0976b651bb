"""Options of the verbs: their table, and from their values to model, system and workload."""
