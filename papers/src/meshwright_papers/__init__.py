"""Published figures rebuilt, the models of others, and a learned model, on top of meshwright."""
