"""Tells results: text for people, records for programs."""
