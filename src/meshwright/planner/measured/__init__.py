"""What follows from measured jobs: factors of the resources, losses, changes, trials."""
