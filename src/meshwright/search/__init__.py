"""Finding the best plan, with a proof."""
