"""What to change in a plan that runs, and which plans to try for a few steps."""
