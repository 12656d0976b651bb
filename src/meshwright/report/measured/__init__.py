"""What measured jobs say, for a reader."""
