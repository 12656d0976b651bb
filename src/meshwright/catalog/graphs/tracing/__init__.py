"""From shapes to named dims: what the importers of other frameworks share."""
