"""Independent ways to the same answer: replays and enumerations that prove closed forms."""
