"""What DFModel claims of its mappings, its search and its predictions."""
