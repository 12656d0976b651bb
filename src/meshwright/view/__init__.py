"""Output of results: text for people, records for programs."""
