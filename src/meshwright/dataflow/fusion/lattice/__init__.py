"""Ways to cut a graph into partitions: order ideals, and the best path over them."""
