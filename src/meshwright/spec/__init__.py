"""What the user states: frozen declarations of model, chip, system, workload and calibration."""
