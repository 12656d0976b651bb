"""Files that start jobs, read back: what they state, as options of this program."""
