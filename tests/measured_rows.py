"""Measured rows in the words of their source, for tests."""

from meshwright_papers.measurements.questions import asked
from meshwright_papers.measurements.words import rows_of as source_rows


def rows_of(stated):
    """Return rows of the product from rows in the words of a source."""
    return [asked(row) for row in source_rows(stated)]
