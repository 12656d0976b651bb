"""A report as one HTML file: its parts, its charts, its drawing."""
