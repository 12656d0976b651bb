"""One algorithm per file; a file that exists here is registered."""
