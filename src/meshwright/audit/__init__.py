"""Conservation laws that every answer obeys, whatever formula priced it."""
