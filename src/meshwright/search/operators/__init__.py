"""One strategy for each operator: choices with prices on nodes and edges, solved with a proof."""
