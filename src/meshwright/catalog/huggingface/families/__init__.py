"""One file per family of published models; a file that exists is registered."""
