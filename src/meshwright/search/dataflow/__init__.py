"""The best way to spread a dataflow graph over devices: shardings, stages, degrees."""
