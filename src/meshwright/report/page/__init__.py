"""A report as one HTML file: what it consists of, its charts, how it is drawn."""
