"""Measured rows in the words of their source, for tests."""

from source_questions import asked
from source_words import rows_of as source_rows


def rows_of(stated):
    """Return rows of the product from rows in the words of a source."""
    return [asked(row) for row in source_rows(stated)]
