"""One command per file: parse, call, print."""
