"""What Sphinx makes of the code while it builds the site; ``extension`` ties it together."""
