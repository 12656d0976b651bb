"""The user's input: frozen declarations of model, chip, system, workload and calibration."""
