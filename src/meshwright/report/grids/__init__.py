"""What a plan looks like on a grid: its placement, its operators, its simulation."""
